"""Queries to begin with: captions that one method alone answers well, sentences, and a sum.

The captions that methods differ on lie beside the pack's folder, within which pack.json lists
every file; `python -m tests.app.search.curated` writes them:

    {"checksum": "...", "examples": [{"caption": "...", "view": "relation", "winner": "mvam",
      "ranks": {"mvam": 1, "pvse": 14}, "why": "Only MVAM ..."}]}
"""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from polyview.app.gallery.scan import Collection
from polyview.app.search.answers import unsupported_aspects
from polyview.app.search.query import parse
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import OPEN, PackError, Text, check, read_json

_LONGEST = 40  # characters of a sentence
# For collections without captions to choose sentences from.
_SENTENCES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")
_ALGEBRA = "2: a dog + grass - people"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, config=OPEN)
class Example:
    """A caption to compare methods with.

    Attributes:
        caption: one of the gallery's.
        view: the side of its image that it speaks of, where known.
        winner: the method that alone ranks a right image first.
        ranks: for each method, the rank of its first right image.
        why: the same in a sentence; empty where it may no longer hold.
    """

    caption: Text
    view: Text | None
    winner: Text
    ranks: dict[str, Annotated[int, Field(ge=1)]]
    why: str


@dataclass(frozen=True, config=OPEN)
class _Record:
    """What a file of examples holds, and of which pack: its checksum."""

    checksum: Text
    examples: Annotated[tuple[Example, ...], FailFast()]


def curated_file(info: PackInfo) -> Path:
    """Where a pack's curated examples are: beside its folder."""
    return info.folder.parent / f"{info.folder.name}.examples.json"


def curated(info: PackInfo, collection: Collection) -> list[Example]:
    """The examples of a pack; none where there is no file, or it cannot be read.

    Those whose caption is not in the collection are left out. Where the pack was changed after
    they were found, they are still captions to try, but what they said of the methods is not kept.
    """
    file = curated_file(info)
    if not file.is_file():
        return []
    try:
        record = check(_Record, read_json(file), file.name)
    except (PackError, OSError) as error:
        _log.warning("the examples are not used: %s", error)
        return []
    known = [example for example in record.examples if example.caption in collection.relevant]
    current = record.checksum == info.checksum
    return known if current else [replace(example, why="") for example in known]


def sentences(retriever: Retriever, count: int) -> list[str]:
    """At most `count` sentences to try: short captions that a method can answer."""
    captions = [
        text
        for text, _ in retriever.collection.captions
        if len(text) <= _LONGEST and not unsupported_aspects(retriever.info, text)
    ]
    if not captions:
        return [text for text in _SENTENCES if not retriever.unknown(text)][:count]
    return list(dict.fromkeys(captions[:: max(1, len(captions) // count)]))[:count]


def algebra(retriever: Retriever) -> str:
    """A query of several terms to try, from what the collection shows most often; "" for none."""
    objects = Counter(name for p in retriever.collection.images for name in set(p.objects))
    common = [name for name, _ in objects.most_common(3)]
    example = "2: {} + {} - {}".format(*common) if len(common) == 3 else _ALGEBRA
    return "" if retriever.unknown(*(term.words for term in parse(example))) else example
