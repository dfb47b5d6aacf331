"""A pack's tokenizer: it may split texts as it likes, but not make them grow without end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.fields import PackError, read_json

_MOST_GROWTH = 64  # times a text's length
_MOST_MARKS = 64  # tokens put before and after a text


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer that neither pads nor cuts.

    Args:
        path: in the format of Hugging Face `tokenizers`.

    Raises:
        FileNotFoundError: there is no such file.
        PackError: it cannot be read, or makes a short text long enough to fill the memory.
    """
    said = read_json(path)
    if not isinstance(said, dict):
        raise PackError(f"{path} is not a readable tokenizer: it is no JSON object")
    growth = math.prod(_growths(said.get("normalizer")))
    marks = sum(_marks(said.get("post_processor")))
    if growth > _MOST_GROWTH or marks > _MOST_MARKS:
        what = f"{growth:,} times as long" if growth > _MOST_GROWTH else f"{marks:,} tokens longer"
        raise PackError(f"{path} can make a text {what}, which no model needs; export it again")
    try:
        tokenizer = Tokenizer.from_file(str(path))
        # The pack's own max_length cuts texts, so that the cut can be reported.
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except Exception as error:
        # tokenizers raises the bare Exception for whatever it cannot read.
        raise PackError(f"{path} is not a readable tokenizer: {error}") from error
    return tokenizer


def _parts(step: Any, inner: str) -> Iterator[dict[str, Any]]:
    """A step and, where it is a sequence, those it is made of."""
    waiting = [step]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            within = found.get(inner)
            waiting += within if isinstance(within, list) else []


def _growths(normalizer: Any) -> Iterator[int]:
    """How often each step can multiply a text's length."""
    for step in _parts(normalizer, "normalizers"):
        for put in (step.get("content"), step.get("prepend")):
            # as often as there are places between characters
            yield 1 + len(put) if isinstance(put, str) and len(put) > 1 else 1


def _marks(processor: Any) -> Iterator[int]:
    """How many tokens each step adds to a text."""
    for step in _parts(processor, "processors"):
        single, special = step.get("single"), step.get("special_tokens")
        for piece in single if isinstance(single, list) else []:
            mark = piece.get("SpecialToken") if isinstance(piece, dict) else None
            known = special.get(str(mark.get("id"))) if isinstance(mark, dict) and special else None
            ids = known.get("ids") if isinstance(known, dict) else None
            yield len(ids) if isinstance(ids, list) else 1
