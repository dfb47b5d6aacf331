"""Example queries: captions that only one method answers well, sentences, and a sum of terms.

Curated captions, on which methods differ, are in a file beside the pack's folder, `Curated` as
JSON, written by `python -m tests.app.search.curated`.
"""

import logging
from collections import Counter
from pathlib import Path

from pydantic import BaseModel, PositiveInt, ValidationError

from polyview.app.gallery.scan import Collection
from polyview.app.search.answers import parse, unsupported_aspects
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo

_LONGEST = 40  # characters of an example sentence, at most
# example sentences for collections without captions
_SENTENCES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")
_ALGEBRA = "2: a dog + grass - people"
_log = logging.getLogger(__name__)


class Example(BaseModel):
    """A caption of the gallery to compare methods with."""

    caption: str
    view: str | None  # the aspect of the image that the caption describes, if known
    winner: str  # the only method that ranks a right image first
    ranks: dict[str, PositiveInt]  # the rank of the first right image by method
    why: str  # an explanation for people; empty if it may no longer hold


class Curated(BaseModel):
    """The content of a file of examples, with the checksum of its pack."""

    checksum: str
    examples: list[Example]


def curated_file(info: PackInfo) -> Path:
    """The file of a pack's curated examples, beside its folder."""
    return info.folder.parent / f"{info.folder.name}.examples.json"


def curated(info: PackInfo, collection: Collection) -> list[Example]:
    """The curated examples whose captions are in the collection; without `why` if it is old."""
    file = curated_file(info)
    if not file.is_file():
        return []
    try:
        record = Curated.model_validate_json(file.read_bytes())
    except (ValidationError, OSError) as error:
        _log.warning("the examples in %s are not used: %s", file.name, error)
        return []
    updates = {} if record.checksum == info.checksum else {"why": ""}
    examples = (example for example in record.examples if example.caption in collection.relevant)
    return [example.model_copy(update=updates) for example in examples]


def sentences(retriever: Retriever, count: int) -> list[str]:
    """At most `count` example sentences: short captions without unsupported aspects."""
    captions = [
        text
        for text, _ in retriever.collection.captions
        if len(text) <= _LONGEST and not unsupported_aspects(retriever.info, text)
    ]
    if not captions:
        return [text for text in _SENTENCES if not retriever.unknown(text)][:count]
    return list(dict.fromkeys(captions[:: max(1, len(captions) // count)]))[:count]


def algebra(retriever: Retriever) -> str:
    """An example query of the three most frequent objects; "" if the pack lacks a word."""
    objects = Counter(name for image in retriever.collection.images for name in set(image.objects))
    common = [name for name, _ in objects.most_common(3)]
    example = "2: {} + {} - {}".format(*common) if len(common) == 3 else _ALGEBRA
    return "" if retriever.unknown(*(term.words for term in parse(example))) else example
