"""Questions: what is asked, as weighted terms; and some to begin with."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from polyview.app.search.query import Term, checked, checked_weight, parse
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo

_LONGEST_EXAMPLE = 40  # characters
# For collections without captions to choose examples from.
_EXAMPLES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")
_ALGEBRA_EXAMPLE = "2: a dog + grass - people"
_NEGATION = re.compile(r"\b(no|not(?! just| only)|without|lacks|lacking)\b", re.IGNORECASE)
_SIDES = re.compile(r"\b(left|right|above|below|beneath|higher|lower)\b", re.IGNORECASE)
_SIDES_MEASURE = "foil_replaced_relation"  # % of true captions scored above a false relation
_DISTINGUISHED = 60.0  # percent; guessing among a thousand pairs reaches less


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        words: a sentence, or several terms as `app/search/query.py` reads them; beside an image
            or examples they may be empty.
        image_id: an image of the collection that is asked with.
        image: an image from elsewhere that is asked with, decoded.
        weight: what the image's scores are multiplied by where there are words beside it.
        more: images of the collection that others are to be like.
        less: those that they are to be unlike.
    """

    words: str = ""
    image_id: int | None = None
    image: Image.Image | None = None
    weight: float = 1.0
    more: tuple[int, ...] = ()
    less: tuple[int, ...] = ()

    @property
    def has_image(self) -> bool:
        """Whether an image is part of the question."""
        return self.image is not None or self.image_id is not None

    @property
    def own(self) -> frozenset[int]:
        """The collection's images that it asks with; they are no answer to it."""
        with_image = () if self.image_id is None else (self.image_id,)
        return frozenset((*with_image, *self.more, *self.less))

    def terms(self, retriever: Retriever) -> list[Term]:
        """What it asks for, term by term; an image comes first, examples last.

        Examples count together as much as a sentence, those to be unlike half as much.

        Raises:
            ValueError: there is no such image, or it or the words cannot be read.
        """
        terms = []
        if self.image_id is not None:
            source = retriever.image(self.image_id)
            terms = [Term(image=retriever.open(self.image_id), source=source)]
        elif self.image is not None:
            terms = [Term(image=self.image)]
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
        if self.words.strip() or not (terms or examples):
            terms = [replace(term, weight=checked_weight(self.weight)) for term in terms]
            terms += parse(checked(self.words))
        return [*terms, *examples]


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
