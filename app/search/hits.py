"""Hits and answers, as every interface returns them, and the detection of near-duplicates.

Ids of images and views count from 0.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import BaseModel

_SIDE = 16  # rows and columns of a fingerprint
_MEAN, _MOST = 4.0, 24.0  # of 255: limits on the mean difference and the difference of any cell
_RATIO = 0.02  # largest relative difference of width / height


class Hit(BaseModel):
    """An image in a result; for a clip, its best frame or the frame that adds most to the score."""

    image_id: int  # the id in the collection; for frames of clips, see `Clips.image`
    file: str = ""  # the file name in the collection
    score: float  # the method's score, higher is better
    view: int | None = None  # the image view that won, from 0; None if no single view did
    rank: int  # 1 for the best
    seconds: float | None = None  # the time of the frame in its clip; None for a still image
    frame: int | None = None  # the frame's number in the clip, from 0; None for a still image
    captions: list[str] = []
    objects: list[Any] = []  # in the image, if known
    satisfies: bool | None = None  # whether it is right for the query, if the query is a caption
    probability: float | None = None  # of satisfying the query, if the pack is calibrated
    width: int | None = None  # of the thumbnail in pixels, if requested
    height: int | None = None
    alike: int | None = None  # rank of the first hit that looks nearly the same, if requested
    before: int | None = None  # rank without the lens


class Caption(BaseModel):
    """A caption in a result, and the image it was written for; see `Hit`."""

    text: str
    image_id: int
    score: float
    view: int | None
    rank: int


class Unknown(BaseModel):
    """A word that the pack lacks."""

    word: str  # as typed
    nearest: list[str]  # similar known words, if no word replaces it
    read_as: str | None  # the known word that replaces it; None without one


class QueryTerm(BaseModel):
    """A term of a query."""

    words: str  # empty for an image
    weight: float
    count: int | None = None  # in an explanation, the number of words that its encoder reads


class Timed(BaseModel):
    """An answer with the milliseconds that it took."""

    ms: float = 0.0


class Answer(Timed):
    """The answer to a question, best hits first."""

    query: str = ""
    read_as: str = ""  # the query in words
    method: str
    k: int
    filters: dict[str, list[str]] = {}
    searched: int  # number of images ranked
    terms: list[QueryTerm] = []
    exact: bool  # whether the hits are certainly the best
    matches: bool | None  # whether any image satisfies the query; None if the pack cannot tell
    # whether the query image differs from the training images; None without one, or if unknown
    unfamiliar: bool | None = None
    unknown: list[Unknown] = []
    unsupported: list[str] = []  # aspects that no method of the pack supports: "sides", "negation"
    remark: str
    hits: list[Hit]
    captions: list[Caption]
    images: list[Hit] = []  # the hits again, for an uploaded query image


@lru_cache(10_000)
def fingerprint(thumbnail: Path) -> np.ndarray:
    """The aspect ratio of an image and its colours in coarse cells: (1 + 16 * 16 * 3,) float32.

    Cached by path: the name of a thumbnail changes with its image.
    """
    with Image.open(thumbnail) as image:
        ratio = image.width / image.height
        cells = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.concatenate([[ratio], np.asarray(cells).ravel()]).astype(np.float32)


@lru_cache(50_000)
def image_size(thumbnail: Path) -> tuple[int, int]:
    """Width and height of a thumbnail in pixels. Raises OSError if it cannot be read."""
    with Image.open(thumbnail) as image:
        return image.size


def first_alike(prints: Sequence[np.ndarray]) -> list[int]:
    """For each of n fingerprints, the index of the first that is nearly the same, or its own.

    Images are compared only with the first of each group: chains of similar images form no group.
    """
    firsts, result, table = list[int](), list[int](), np.array(prints)  # (n, 1 + 16 * 16 * 3)
    for index, row in enumerate(table):
        differences = np.abs(table[firsts] - row)
        is_same = differences[:, 0] <= _RATIO * row[0]
        is_same &= differences[:, 1:].mean(axis=1) <= _MEAN
        is_same &= differences[:, 1:].max(axis=1, initial=0) <= _MOST
        first = firsts[int(is_same.argmax())] if is_same.any() else index
        firsts += [index] if first == index else []
        result.append(first)
    return result
