"""Hits and answers of all interfaces, and the detection of near-duplicates.

Ids of images and views count from 0.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import BaseModel

_SIDE = 16  # rows and columns of a fingerprint
# the largest differences between near-duplicates: the mean difference of colour values (0 to 255),
# the difference of a single value, and the relative difference of width / height
_MEAN_DIFFERENCE, _CELL_DIFFERENCE, _RATIO_DIFFERENCE = 4.0, 24.0, 0.02


class Hit(BaseModel):
    """An image in a result. For a clip, it is the best frame, see `Retriever.find_best_frames`."""

    image_id: int  # the id in the collection; for frames of clips, see `Clips.image`
    file: str = ""  # the path relative to the collection's folder
    score: float  # the method's score, higher is better
    view: int | None = None  # the view that wins for every term; None if there is no such view
    rank: int  # 1 for the best; 0 in a list that is not ranked
    seconds: float | None = None  # the time of the frame in its clip; None for a still image
    frame: int | None = None  # the index of the frame in its clip; None for a still image
    captions: list[str] = []
    objects: list[Any] = []  # names of the objects in the image, if known
    satisfies: bool | None = None  # whether the image is right; None if the query is not a caption
    probability: float | None = None  # chance that the image is right; None if not estimated
    width: int | None = None  # width of the thumbnail in pixels, if requested
    height: int | None = None  # height of the thumbnail in pixels, if requested
    alike: int | None = None  # rank of the first hit that looks nearly the same, if requested
    before: int | None = None  # rank without weights of views, set by `lens`


class Caption(BaseModel):
    """A caption in a result, and the image it was written for; see `Hit`."""

    text: str
    image_id: int
    score: float
    view: int | None
    rank: int


class Unknown(BaseModel):
    """A word of a query that the pack does not know."""

    word: str  # as typed
    nearest: list[str]  # known words that are spelled similarly, if no word replaces this word
    read_as: str | None  # the known word that replaces this word


class QueryTerm(BaseModel):
    """A term of a query."""

    words: str  # the words of the term; empty for an image
    weight: float
    count: int | None = None  # number of the explanation's words in this term; 0 for an image


class Timed(BaseModel):
    """An answer with its computing time."""

    ms: float = 0.0  # milliseconds


class Answer(Timed):
    """The answer to a question, best hits first."""

    query: str = ""  # the words of the question
    read_as: str = ""  # a description of the terms
    method: str
    k: int  # the requested number of hits
    filters: dict[str, list[str]] = {}  # values by fact
    searched: int  # number of ranked images
    terms: list[QueryTerm] = []
    exact: bool  # whether the hits are guaranteed to have the highest scores
    matches: bool | None  # whether any image satisfies the query; None if this cannot be estimated
    # whether an uploaded query image is unlike the pack's calibration images; None if not known
    unfamiliar: bool | None = None
    unknown: list[Unknown] = []
    unsupported: list[str] = []  # aspects that no method of the pack supports: "sides", "negation"
    remark: str  # limitations of the answer, such as unknown words
    hits: list[Hit]
    captions: list[Caption]
    images: list[Hit] = []  # equal to `hits` for an uploaded query image, otherwise empty


def add_layout(hits: Sequence[Hit], thumbnails: Mapping[int, Path]) -> None:
    """Sets `width`, `height` and `alike` of hits that have `thumbnails` (paths by image id)."""
    hits = [hit for hit in hits if hit.image_id in thumbnails]
    indices = first_alike([fingerprint(thumbnails[hit.image_id]) for hit in hits])
    for hit, index in zip(hits, indices, strict=True):
        add_size(hit, thumbnails)
        hit.alike = None if hits[index] is hit else hits[index].rank


def add_size(hit: Hit, thumbnails: Mapping[int, Path]) -> None:
    """Sets `width` and `height` of a hit, if its thumbnail exists and can be read."""
    with suppress(OSError, KeyError):
        hit.width, hit.height = image_size(thumbnails[hit.image_id])


@lru_cache(10_000)
def fingerprint(thumbnail: Path) -> np.ndarray:
    """Returns the aspect ratio and the colours of 16 x 16 cells: (1 + 16 * 16 * 3,) float32.

    Cached by path, because the name of a thumbnail changes with its image.
    """
    with Image.open(thumbnail) as image:
        ratio = image.width / image.height
        cells = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.concatenate([[ratio], np.asarray(cells).ravel()]).astype(np.float32)


@lru_cache(50_000)
def image_size(thumbnail: Path) -> tuple[int, int]:
    """Returns width and height of a thumbnail in pixels; raises OSError if it cannot be read."""
    with Image.open(thumbnail) as image:
        return image.size


def first_alike(fingerprints: Sequence[np.ndarray]) -> list[int]:
    """Returns for each of n fingerprints the index of the first similar one, or its own index.

    A fingerprint is compared only with the first of each group (its leader), so that a chain of
    small changes does not join different images.
    """
    leaders, result, table = list[int](), list[int](), np.array(fingerprints)  # (n, 1 + 3 * 16**2)
    for index, row in enumerate(table):
        differences = np.abs(table[leaders] - row)
        is_same = differences[:, 0] <= _RATIO_DIFFERENCE * row[0]
        is_same &= differences[:, 1:].mean(axis=1) <= _MEAN_DIFFERENCE
        is_same &= differences[:, 1:].max(axis=1, initial=0) <= _CELL_DIFFERENCE
        leader = leaders[int(is_same.argmax())] if is_same.any() else index
        leaders += [index] if leader == index else []
        result.append(leader)
    return result
