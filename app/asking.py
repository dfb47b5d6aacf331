"""Questions a visitor can ask, whatever tab they are asked in, and their answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from app.pictures import open_picture
from app.retriever import CaptionHit, Hit, Retriever

MAX_CAPTIONS = 8
_LONGEST_EXAMPLE = 40  # characters
_AMONG_CAPTIONS = 100  # looked at for distinct ones: several pictures may share a caption
_SAMPLE = 12
# For collections that bring no captions to choose examples from.
_EXAMPLES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")


@dataclass(frozen=True)
class Ask:
    """A question, kept so that it can be asked again of another method.

    Attributes:
        kind: "sample" asks for some pictures to begin with, "words" by a sentence, "upload" by an
            uploaded picture, "picture" by one of the collection.
        words: the sentence.
        path: the uploaded file.
        image_id: the collection's picture.
    """

    kind: Literal["sample", "words", "upload", "picture"] = "sample"
    words: str = ""
    path: str = ""
    image_id: int = 0


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        summary: how much, for what.
        details: smaller remarks.
        hits: pictures, best first; those of a sample have rank 0.
        captions: captions, best first and each once, where a picture was asked about.
    """

    summary: str
    details: tuple[str, ...]
    hits: list[Hit]
    captions: list[CaptionHit]


def answer(retriever: Retriever, ask: Ask, method: str, count: int) -> Answer:
    """Answers a question.

    Args:
        retriever: what is searched.
        ask: the question.
        method: a method of the pack; a sample needs none.
        count: how many pictures.

    Raises:
        ValueError: the question makes no sense, or nothing is searchable yet.
    """
    if ask.kind == "sample":
        return _sample(retriever)
    start = time.perf_counter()
    captions: list[CaptionHit] = []
    if ask.kind == "words":
        hits = retriever.search_text(ask.words, method, count)
        remark = retriever.remark(ask.words)
    else:
        query = retriever.image_query(_asked_picture(retriever, ask), method)
        hits = retriever.images_for(query, method, count)
        found_captions = retriever.captions_for(query, method, _AMONG_CAPTIONS)
        captions = _distinct(found_captions)[: min(count, MAX_CAPTIONS)]
        remark = "" if captions else "This gallery has no captions."
    spent = f"{(time.perf_counter() - start) * 1000:.0f} ms"
    title = retriever.runtime.methods[method].title
    found = f"{len(hits)} of {len(retriever.index):,} pictures"
    summary = f"{found} {_subject(retriever, ask)}"
    return Answer(summary, (title, spent, remark), hits, captions)


def examples(retriever: Retriever, count: int) -> list[str]:
    """Sentences to try: short captions from all over the collection, padded with empty ones."""
    captions = [text for text, _ in retriever.collection.captions if len(text) <= _LONGEST_EXAMPLE]
    if not captions:
        return list(_EXAMPLES[:count])
    chosen = list(dict.fromkeys(captions[:: max(1, len(captions) // count)]))[:count]
    return chosen + [""] * (count - len(chosen))


def _sample(retriever: Retriever) -> Answer:
    pictures = retriever.collection.pictures
    step = max(1, len(pictures) // _SAMPLE)
    hits = [Hit(p.image_id, p.file, 0.0, 0, 0) for p in pictures[::step][:_SAMPLE]]
    count = len(pictures)
    summary = f"{count:,} pictures to search" if count > 1 else "One picture to search"
    return Answer(summary, ("Type what you look for, or choose one to look inside.",), hits, [])


def _distinct(captions: list[CaptionHit]) -> list[CaptionHit]:
    """The best hit of each text."""
    best: dict[str, CaptionHit] = {}
    for caption in captions:
        best.setdefault(caption.text, caption)
    return list(best.values())


def _asked_picture(retriever: Retriever, ask: Ask) -> Image.Image:
    if ask.kind == "picture":
        return retriever.open(ask.image_id)
    if not ask.path:
        raise ValueError("there is no picture; upload one first")
    return open_picture(Path(ask.path))


def _subject(retriever: Retriever, ask: Ask) -> str:
    """What was asked for, in words."""
    if ask.kind == "words":
        words = " ".join(ask.words.split())
        return f"for “{words if len(words) <= 80 else words[:79] + '…'}”"
    if ask.kind == "upload":
        return f"like {Path(ask.path).name}"
    return f"like {retriever.picture(ask.image_id).file}"
