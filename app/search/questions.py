"""Questions a visitor or a program can ask, those asked before, and some to begin with."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from PIL import Image

from app.gallery.images import open_image
from app.search.query import MINUS, Term, checked, checked_weight, parse
from app.search.retriever import Retriever
from export.pack.schema import PackInfo

MAX_EXAMPLES = 10  # images of the collection to be like, or unlike
REMEMBERED = 20  # questions of one visit
_LONGEST_EXAMPLE = 40  # characters
# For collections that bring no captions to choose examples from.
_EXAMPLES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")
_ALGEBRA_EXAMPLE = "2: a dog + grass - people"
_NEGATION = re.compile(r"\b(no|not(?! just| only)|without|lacks|lacking)\b", re.IGNORECASE)
_SIDES = re.compile(r"\b(left|right|above|below|beneath|higher|lower)\b", re.IGNORECASE)
_SIDES_MEASURE = "foil_replaced_relation"  # % of true captions scored above a false relation
_DISTINGUISHED = 60.0  # percent; guessing among a thousand pairs reaches less


@dataclass(frozen=True)
class Question:
    """What is asked, kept so that it can be asked again of another method.

    Attributes:
        kind: "sample" asks for some images to begin with, "words" by words, "upload" by an
            uploaded image, "image" by one of the collection.
        words: a sentence, or several terms as `app/search/query.py` reads them; beside an image
            they may be empty.
        path: the uploaded file.
        image_id: the collection's image.
        weight: what the image's scores are multiplied by where there are words beside it.
        name: what the uploaded file was called, where `path` does not say.
        more: the collection's images that others are to be like.
        less: those that they are to be unlike.
        image: the uploaded image, decoded, where it lies in no file.
    """

    kind: Literal["sample", "words", "upload", "image"] = "sample"
    words: str = ""
    path: str = ""
    image_id: int = 0
    weight: float = 1.0
    name: str = ""
    more: tuple[int, ...] = ()
    less: tuple[int, ...] = ()
    image: Image.Image | None = None

    @property
    def own(self) -> frozenset[int]:
        """The collection's images that it asks with; they are no answer to it."""
        asked_with = (self.image_id,) if self.kind == "image" else ()
        return frozenset((*asked_with, *self.more, *self.less))

    def with_examples(self, more: bool, *image_ids: int) -> "Question":
        """The same, for images more like some of the collection's, or less like them.

        Raises:
            ValueError: these are too many.
        """
        rest = [one for one in (*self.more, *self.less) if one not in image_ids]
        if len(rest) + len(image_ids) > MAX_EXAMPLES:
            raise ValueError(f"use at most {MAX_EXAMPLES} pictures as examples; search anew first")
        kind = "words" if self.kind == "sample" else self.kind
        likes, unlikes = (
            tuple(one for one in of if one not in image_ids) + (image_ids if chosen else ())
            for of, chosen in ((self.more, more), (self.less, not more))
        )
        return replace(self, kind=kind, more=likes, less=unlikes)

    @property
    def has_image(self) -> bool:
        """Whether an image is part of the question."""
        return self.kind in ("upload", "image")

    @property
    def key(self) -> str:
        """A short name, the same for questions of the same words, however spaced, and image."""
        words = " ".join(self.words.split())
        same = (self.kind, words, self.path, self.image_id, self.more, self.less)
        return hashlib.sha256(repr(same).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What it is called among others.

        >>> Question("upload", path="/tmp/dog.png", words="on a  beach").title
        'dog.png with “on a beach”'
        """
        words = " ".join(self.words.split())
        for sign, images in (("+", self.more), (MINUS, self.less)):
            if images:
                words += f" {sign} like {', '.join(f'picture {one}' for one in images)}"
        words = words.strip()
        if not self.has_image:
            return words
        image = Path(self.path).name if self.kind == "upload" else f"picture {self.image_id}"
        return f"{image} with “{words}”" if words else f"like {image}"

    def file(self, retriever: Retriever) -> str:
        """What the image that is part of it is called; empty where there is none."""
        if self.kind == "image":
            return retriever.image(self.image_id).file
        return self.name or Path(self.path).name

    def terms(self, retriever: Retriever) -> list[Term]:
        """What it asks for, term by term; an image comes first, examples last.

        Examples count together as much as a sentence, those to be unlike half as much.

        Raises:
            ValueError: there is no such image, or it or the words cannot be read.
        """
        examples = [
            Term(
                image=retriever.open(one),
                weight=weight / len(images),
                name=f"like {Path(retriever.image(one).file).name}",
                source=retriever.image(one),
            )
            for weight, images in ((1.0, self.more), (-0.5, self.less))
            for one in images
        ]
        if examples and not self.has_image and not self.words.strip():
            return examples
        return [*self._asked(retriever), *examples]

    def _asked(self, retriever: Retriever) -> list[Term]:
        """The same without examples."""
        if not self.has_image:
            return parse(checked(self.words))
        source = retriever.image(self.image_id) if self.kind == "image" else None
        image = Term(image=self._open(retriever), source=source)
        if isinstance(self.words, str) and not self.words.strip():
            return [image]
        return [replace(image, weight=checked_weight(self.weight)), *parse(checked(self.words))]

    def _open(self, retriever: Retriever) -> Image.Image:
        if self.kind == "image":
            return retriever.open(self.image_id)
        if self.image is not None:
            return self.image
        if not self.path:
            raise ValueError("there is no picture; upload one first")
        return open_image(Path(self.path), self.name or None)


def instead(question: Question, word: str, known: str) -> Question:
    """The same question with a known word in place of an unknown one.

    >>> instead(Question("words", "a dgo and a cat"), "dgo", "dog").words
    'a dog and a cat'
    """
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
    return replace(question, words=re.sub(pattern, lambda _: known, question.words))


def remember(asked: tuple[Question, ...], question: Question) -> tuple[Question, ...]:
    """The questions of a visit, newest first; the same question moves to the front.

    Questions are the same where they have the same words, however spaced, and the same image.
    A sample is no question.
    """
    if question.kind == "sample":
        return asked
    return (question, *(old for old in asked if old.key != question.key))[:REMEMBERED]


def recall(asked: tuple[Question, ...], words: object) -> tuple[Question, ...]:
    """The questions of a visit, and after them those of earlier ones, which a browser has kept.

    Args:
        asked: of this visit, newest first.
        words: whatever the browser sends for the others; what is no question is left out.
    """
    found = {one.key: one for one in asked}
    for one in words[:REMEMBERED] if isinstance(words, list) else ():
        try:
            question = Question("words", checked(one))
        except ValueError:
            continue
        found.setdefault(question.key, question)
    return tuple(found.values())[:REMEMBERED]


def unsupported_aspects(pack: PackInfo, query: str) -> list[str]:
    """Query aspects (negation, left/right) that no method handles.

    Negation is unsupported in every pack: of captions that deny an object, no method of this
    project scores more than half above an image with that object (docs/results.md). Sides and
    heights are unsupported in packs whose methods were measured with `training.evaluate --foils`
    and scored fewer than 60 % of the true captions above those with the opposite relation.

    Returns:
        Those of "sides" and "negation" that the query asks for.
    """
    aspects = []
    values = [method.metrics.values for method in pack.methods.values() if method.metrics]
    measured = [metrics[_SIDES_MEASURE] for metrics in values if _SIDES_MEASURE in metrics]
    if _SIDES.search(query) and measured and max(measured) < _DISTINGUISHED:
        aspects.append("sides")
    if _NEGATION.search(query):
        aspects.append("negation")
    return aspects


def examples(retriever: Retriever, count: int) -> list[str]:
    """Sentences to try: short captions that a method can answer, padded with empty ones."""
    captions = [
        text
        for text, _ in retriever.collection.captions
        if len(text) <= _LONGEST_EXAMPLE and not unsupported_aspects(retriever.info, text)
    ]
    if not captions:
        known = [text for text in _EXAMPLES if not retriever.unknown(text)]
        return (known + [""] * count)[:count]
    chosen = list(dict.fromkeys(captions[:: max(1, len(captions) // count)]))[:count]
    return chosen + [""] * (count - len(chosen))


def algebra_example(retriever: Retriever) -> str:
    """A query of several terms to try, from what the collection shows most often."""
    things = Counter(name for p in retriever.collection.images for name in set(p.objects))
    common = [name for name, _ in things.most_common(3)]
    example = "2: {} + {} - {}".format(*common) if len(common) == 3 else _ALGEBRA_EXAMPLE
    return "" if retriever.unknown(*(term.words for term in parse(example))) else example
