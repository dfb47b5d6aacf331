"""The questions of one visit, newest first and each once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from app.asking import Ask

MOST = 20


def remember(asked: tuple[Ask, ...], ask: Ask) -> tuple[Ask, ...]:
    """The history after one more question; the same question moves to the front.

    Questions are the same where they have the same words, however spaced, and the same picture.
    A sample is no question.
    """
    if ask.kind == "sample":
        return asked
    others = tuple(old for old in asked if _key(old) != _key(ask))
    return (ask, *others)[:MOST]


def title(ask: Ask) -> str:
    """What a question is called in the history.

    >>> title(Ask("upload", path="/tmp/dog.png", words="on a  beach"))
    'dog.png with “on a beach”'
    """
    words = " ".join(ask.words.split())
    if ask.kind in ("words", "sample"):
        return words
    picture = Path(ask.path).name if ask.kind == "upload" else f"picture {ask.image_id}"
    return f"{picture} with “{words}”" if words else f"like {picture}"


def identify(ask: Ask) -> str:
    """A short name for a question, another one for each that `remember` keeps apart."""
    return hashlib.sha256(repr(_key(ask)).encode()).hexdigest()[:16]


def _key(ask: Ask) -> tuple[str, str, str, int]:
    return ask.kind, " ".join(ask.words.split()), ask.path, ask.image_id
