"""How long a text query takes: measured on this machine, or recorded beside a bundled pack.

What is timed is `Retriever.search` of a sentence (tokenize, ONNX text encoder, head, exact top-k
over the gallery) on captions of the collection, one query at a time.
`python -m benchmarks.gallery latency --record` writes the record.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from app.search.query import Term
from app.search.retriever import Retriever
from export.pack.schema import PackInfo
from export.pack.validation import OPEN, Text, check, read_json
from export.sessions import hardware

WARM_UP = 20
HITS = 10
_QUERIES = 60  # for each method, where a visitor waits for them

_log = logging.getLogger(__name__)


@dataclass(frozen=True, config=OPEN)
class Speed:
    """Milliseconds of a text query by method.

    Attributes:
        median: half of the queries took no longer.
        queries: how many were timed for each method.
        pictures: how many images were searched.
        hardware: what it was measured on.
        command: what measured it; empty where it was the app itself.
    """

    median: dict[str, float]
    queries: Annotated[int, Field(ge=1)]
    pictures: Annotated[int, Field(ge=1)]
    hardware: Text
    command: str = ""


def measure(retriever: Retriever, queries: int = _QUERIES) -> Speed:
    """Times every method of the pack on this machine.

    Args:
        retriever: what is searched.
        queries: timed for each method, after some that do not count.

    Raises:
        ValueError: the collection has no captions to ask for, or nothing is searchable yet.
    """
    texts = sample_captions(retriever, queries)
    median = {
        method: round(float(np.median(query_times(retriever, method, texts))), 3)
        for method in retriever.methods
    }
    return Speed(median, queries, len(retriever.index), hardware(retriever.device))


def query_times(retriever: Retriever, method: str, texts: Sequence[str]) -> np.ndarray:
    """Milliseconds of each text as a query, (len(texts),)."""
    return milliseconds(lambda text: retriever.search([Term(text)], method, HITS), texts)


def sample_captions(retriever: Retriever, count: int) -> list[str]:
    """Captions from all over the collection, in a fixed order.

    Raises:
        ValueError: there are none.
    """
    captions = [text for text, _ in retriever.collection.captions]
    if not captions:
        raise ValueError(
            f"{retriever.collection.title} has no captions to use as queries; "
            "the speed can be measured on a pack's own gallery"
        )
    places = np.linspace(0, len(captions) - 1, count).round().astype(int)
    return [captions[place] for place in places]


def milliseconds(ask: Callable[[str], object], texts: Sequence[str]) -> np.ndarray:
    """What each text took, (len(texts),), after some that do not count."""
    for text in texts[:WARM_UP]:
        ask(text)
    spent = []
    for text in texts:
        start = time.perf_counter()
        ask(text)
        spent.append((time.perf_counter() - start) * 1000)
    return np.array(spent)


def record(info: PackInfo) -> Path:
    """Where a pack's record is: beside its folder."""
    return info.folder.parent / f"{info.folder.name}.speed.json"


def recorded(info: PackInfo) -> Speed | None:
    """What was measured of a pack before, None where there is no record that can be read."""
    path = record(info)
    if not path.is_file():
        return None
    try:
        speed = check(Speed, read_json(path), path.name)
        median = {name: ms for name, ms in speed.median.items() if name in info.methods}
        return replace(speed, median=median)
    except (ValueError, OSError) as error:
        _log.warning("the recorded speed is not shown: %s", error)
        return None
