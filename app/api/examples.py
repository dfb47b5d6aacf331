"""The endpoint `examples`: captions that only one method answers well, and other queries.

Curated captions, on which methods differ, are in a JSON file (`ExampleFile`) next to the pack.
`python -m tests.app.api.test_examples PACK` writes the file.
"""

import logging
from collections import Counter
from pathlib import Path

from pydantic import BaseModel, PositiveInt, ValidationError

from polyview.app.api.search import unsupported_aspects
from polyview.app.gallery.scan import Collection
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo

_MAX_LENGTH = 40  # characters of an example sentence
# example sentences for collections without captions
_SENTENCES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")
_log = logging.getLogger(__name__)


class Example(BaseModel):
    """A caption of the gallery to compare methods with."""

    caption: str
    view: str | None  # the kind of caption, such as "counting"; None if unknown
    winner: str  # the only method that ranks a correct image first
    ranks: dict[str, PositiveInt]  # the rank of the first correct image by method
    why: str  # an explanation for people; empty if it may no longer hold


class Examples(BaseModel):
    """Example queries."""

    curated: list[Example]
    queries: list[str]  # sentences
    algebra: str  # a query of weighted terms; empty if the pack does not know a word


class ExampleFile(BaseModel):
    """The content of a file of examples, with the checksum of its pack."""

    checksum: str
    examples: list[Example]


def examples(retriever: Retriever) -> Examples:
    """Returns example queries, some of which only one method answers well."""
    return Examples(
        curated=load_examples(retriever.info, retriever.collection),
        queries=choose_sentences(retriever, 6),
        algebra=choose_terms(retriever),
    )


def example_file(info: PackInfo) -> Path:
    """Returns the path of a pack's curated examples, next to the pack's folder."""
    return info.folder.parent / f"{info.folder.name}.examples.json"


def load_examples(info: PackInfo, collection: Collection) -> list[Example]:
    """Loads the curated examples of a collection, with an empty `why` if the pack has changed."""
    file = example_file(info)
    if not file.is_file():
        return []
    try:
        record = ExampleFile.model_validate_json(file.read_bytes())
    except (ValidationError, OSError) as error:
        _log.warning("the examples in %s are not used: %s", file.name, error)
        return []
    updates = {} if record.checksum == info.checksum else {"why": ""}
    candidates = (example for example in record.examples if example.caption in collection.relevance)
    return [example.model_copy(update=updates) for example in candidates]


def choose_sentences(retriever: Retriever, count: int) -> list[str]:
    """Returns up to `count` short captions without unsupported aspects; else fixed sentences."""
    captions = [
        text
        for text, _ in retriever.collection.captions
        if len(text) <= _MAX_LENGTH and not unsupported_aspects(retriever.info, text)
    ]
    if not captions:
        return [text for text in _SENTENCES if not retriever.unknown_words(text)][:count]
    return list(dict.fromkeys(captions[:: max(1, len(captions) // count)]))[:count]


def choose_terms(retriever: Retriever) -> str:
    """Returns a query of three frequent objects or of fixed words; "" if it has an unknown word."""
    objects = Counter(name for image in retriever.collection.images for name in set(image.objects))
    words = [name for name, _ in objects.most_common(3)]
    if len(words) < 3:
        words = ["a dog", "grass", "people"]
    return "" if retriever.unknown_words(*words) else "2: {} + {} - {}".format(*words)
