"""A pack's tokenizer: of known parts only, which read any text in little time and memory."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from export.pack.validation import PackError, read_json

# The words that nltk's word_tokenize finds in a lower-case caption: contractions come apart, words
# keep inner hyphens, points and apostrophes, numbers their commas, all other marks stand alone.
WORDS = (
    r"can(?=not\b)|(?<=\bcan)not\b"
    r"|\w+(?=n't\b)|n't\b|'(?:s|m|d|ll|re|ve)\b"
    r"|(?<!\w)(?:[a-z]\.){2,}|\.{2,}|--+"
    r"|\d+(?:[.,:]\d+)+"
    r"|\w+(?:[-./]\w+|'(?!(?:s|m|d|ll|re|ve)\b)\w+)*"
    r"|[^\w\s]"
)
# The one of CLIP, as transformers writes it now, as the converted files on the Hub have it.
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PUNCTUATION = r"[!-/:-@\[-`{-~]"  # of ASCII, which SigLIP does not read
# Whether another regular expression ends is not to be told by looking at it.
_PATTERNS = {r"\s+", WORDS, _CLIP, rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}", _PUNCTUATION}
# A section of the file -> the parts it may be made of, and the key of a sequence's parts: those of
# word lists, BERT and CLIP, and their like that do no more work.
_KNOWN = {
    "normalizer": (
        "NFC NFD NFKC NFKD Lowercase Strip StripAccents BertNormalizer Replace",
        "normalizers",
    ),
    "pre_tokenizer": (
        "Whitespace WhitespaceSplit Punctuation Digits BertPreTokenizer ByteLevel Split Metaspace",
        "pretokenizers",
    ),
    "model": ("WordLevel WordPiece BPE Unigram", ""),
    "post_processor": (
        "TemplateProcessing BertProcessing RobertaProcessing ByteLevel",
        "processors",
    ),
    "decoder": ("WordPiece ByteLevel BPEDecoder", "decoders"),
}
_MOST_PARTS = 16  # of a section
_MOST_GROWTH = 8  # times a text's length
_MOST_MARKS = 64  # tokens put before and after a text
_LONGEST_MARK = 64  # characters of a model's unknown token, prefix and suffix
_LONGEST_PIECE = 64  # characters of a piece that a whole text is searched for, at every place
_LONGEST_WORD = 1000  # characters of which word pieces are sought; their time grows by the square


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer that neither pads nor cuts.

    Args:
        path: in the format of Hugging Face `tokenizers`.

    Raises:
        FileNotFoundError: there is no such file.
        PackError: it cannot be read, is made of parts or patterns that are not known, or makes a
            short text long enough to fill the memory.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise PackError(f"{path} is not a readable tokenizer: it is no JSON object")
    try:
        parts = {section: list(_parts(content, section)) for section in _KNOWN}
        _check_model(parts["model"])
    except ValueError as error:
        raise PackError(f"{path} is no tokenizer that is read: {error}; export it again") from error
    growth = math.prod(_growth(part) for part in (*parts["normalizer"], *parts["pre_tokenizer"]))
    marks = sum(count for part in parts["post_processor"] for count in _marks(part))
    if growth > _MOST_GROWTH or marks > _MOST_MARKS:
        what = f"{growth:,} times as long" if growth > _MOST_GROWTH else f"{marks:,} tokens longer"
        raise PackError(f"{path} can make a text {what}, which no model needs; export it again")
    try:
        # what was looked at, not the file: of a key given twice, two readers may keep another one
        tokenizer = Tokenizer.from_str(json.dumps(content))
        # The pack's own max_length cuts texts, so that the cut can be reported.
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except Exception as error:
        # tokenizers raises the bare Exception for whatever it cannot read.
        raise PackError(f"{path} is not a readable tokenizer: {error}") from error
    return tokenizer


def siglip_tokenizer(given: Tokenizer) -> Tokenizer:
    """Reads a text as SigLIP does: lower case, without punctuation, in the pieces of `given`.

    What else `given` does is left out: its files write the same steps in several ways, one of them
    a table in SentencePiece's own format. NFKC is what that table does to all but rare signs.

    Args:
        given: of a SigLIP in the Hub's format.

    Raises:
        PackError: it has no mark for the end of a text.
    """
    end, model = "</s>", json.loads(given.to_str())["model"]
    if given.token_to_id(end) is None:
        raise PackError(f"the tokenizer has no {end}, with which every text ends")
    pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
    tokenizer = Tokenizer(Unigram(pieces, model["unk_id"]))
    steps = [
        normalizers.Lowercase(),
        normalizers.Replace(Regex(_PUNCTUATION), ""),
        normalizers.NFKC(),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, given.token_to_id(end))]
    )
    return tokenizer


def _parts(content: dict[str, Any], section: str) -> Iterator[dict[str, Any]]:
    """The parts of a section; those of its sequences in their place.

    Raises:
        ValueError: one is not known, or they are too many.
    """
    names, inner = _KNOWN[section]
    waiting, seen = [content.get(section)], 0
    while waiting:
        part = waiting.pop()
        if part is None:
            continue
        seen += 1
        if seen > _MOST_PARTS:
            raise ValueError(f"its {section} has more than {_MOST_PARTS} parts")
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "Sequence" and inner and isinstance(part.get(inner), list):
            waiting += part[inner]
        elif isinstance(kind, str) and kind in names.split():
            _check_pattern(part)
            yield part
        else:
            shown = part if kind is None else kind
            raise ValueError(f"its {section} is {shown!r:.60}, not of {', '.join(names.split())}")


def _check_pattern(part: dict[str, Any]) -> None:
    pattern = part.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, dict) else None
    if found is not None and found not in _PATTERNS:
        raise ValueError(
            f"its {part['type']} has the pattern {found!r:.60}; of regular expressions, only those "
            "of CLIP and of the known word lists are run"
        )


def _check_model(parts: list[dict[str, Any]]) -> None:
    for model in parts:
        if model["type"] == "Unigram":
            _check_pieces(model)
        for key, value in model.items():
            if isinstance(value, str) and len(value) > _LONGEST_MARK:
                raise ValueError(f"its {key:.60} has more than {_LONGEST_MARK} characters")
        longest = model.get("max_input_chars_per_word")
        if isinstance(longest, int) and longest > _LONGEST_WORD:
            raise ValueError(f"max_input_chars_per_word must be at most {_LONGEST_WORD}")
        if model.get("dropout"):
            raise ValueError(f"its dropout of {model['dropout']!r:.20} would read a text at random")


def _check_pieces(model: dict[str, Any]) -> None:
    pieces, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(pieces, list) or unknown not in range(len(pieces)):
        raise ValueError("its pieces are no list, or none of them stands for what is unknown")
    for piece in pieces:
        text = piece[0] if isinstance(piece, list) and piece else None
        if not isinstance(text, str) or not 1 <= len(text) <= _LONGEST_PIECE:
            raise ValueError(f"a piece must be a text of 1 to {_LONGEST_PIECE} characters")


def _growth(step: dict[str, Any]) -> int:
    """How often a step can multiply a text's length."""
    if step.get("type") == "ByteLevel":  # two bytes for most
        return 2
    put = step.get("content")
    # as often as there are places between characters
    return 1 + len(put) if isinstance(put, str) and len(put) > 1 else 1


def _marks(processor: dict[str, Any]) -> Iterator[int]:
    """How many tokens a step adds to a text."""
    single, special = processor.get("single"), processor.get("special_tokens")
    for piece in single if isinstance(single, list) else []:
        mark = piece.get("SpecialToken") if isinstance(piece, dict) else None
        known = special.get(str(mark.get("id"))) if isinstance(mark, dict) and special else None
        ids = known.get("ids") if isinstance(known, dict) else None
        yield len(ids) if isinstance(ids, list) else 1
