"""The results of a search: hits, captions and their metadata, as every interface returns them.

Ids of images and views count from 0.
"""

from typing import Any

from pydantic import BaseModel


class NotReadyError(ValueError):
    """Nothing can be searched yet; the message states the progress."""


class Hit(BaseModel):
    """An image found; for a clip its best frame, or the frame that adds most to the score.

    Attributes:
        image_id: its id in the collection; for frames of clips, see `Collection.frame`.
        file: its file name in the collection.
        score: the method's score, higher is better.
        view: the image view that won, from 0; None if no single view did.
        rank: 1 for the best.
        seconds: the time of the frame in its clip; None for a still image.
        frame: its number in the clip, from 0; None for a still image.
        captions: captions of the image, if any.
        objects: objects in the image, if known.
        satisfies: whether it is known to satisfy the query, if that is a caption of the collection.
        probability: the probability that it satisfies the query, if the pack is calibrated.
        width: width of its thumbnail in pixels, if requested, like the next two.
        height: height of its thumbnail.
        alike: rank of the first hit that looks nearly the same.
        before: rank without the lens.
    """

    image_id: int
    file: str = ""
    score: float
    view: int | None = None
    rank: int
    seconds: float | None = None
    frame: int | None = None
    captions: list[str] = []
    objects: list[Any] = []
    satisfies: bool | None = None
    probability: float | None = None
    width: int | None = None
    height: int | None = None
    alike: int | None = None
    before: int | None = None


class Caption(BaseModel):
    """A caption found, and the image it was written for; see `Hit`."""

    text: str
    image_id: int
    score: float
    view: int | None
    rank: int


class Unknown(BaseModel):
    """A word that the pack lacks.

    Attributes:
        word: the word as typed.
        nearest: similar known words, if it is not replaced.
        read_as: the known word that replaces it; None if there is none.
    """

    word: str
    nearest: list[str]
    read_as: str | None


class QueryTerm(BaseModel):
    """A term of a query: words (empty for an image) and a weight.

    Attributes:
        count: in an explanation, the number of words that its encoder reads.
    """

    words: str
    weight: float
    count: int | None = None


class Timed(BaseModel):
    """An answer with the milliseconds that it took."""

    ms: float = 0.0


class Answer(Timed):
    """The answer to a question, best hits first.

    `matches` says whether anything satisfies the query (null if the pack cannot tell); `exact`
    whether the hits are certainly the best; `unfamiliar` whether the query image is unlike the
    pack's training images (null without one, or if the pack cannot tell); `unsupported` lists query
    aspects that no method of the pack supports: "sides", "negation". For an uploaded query image,
    `images` repeats the hits.
    """

    query: str = ""
    read_as: str = ""
    method: str
    k: int
    filters: dict[str, list[str]] = {}
    searched: int
    terms: list[QueryTerm] = []
    exact: bool
    matches: bool | None
    unfamiliar: bool | None = None
    unknown: list[Unknown] = []
    unsupported: list[str] = []
    remark: str
    hits: list[Hit]
    captions: list[Caption]
    images: list[Hit] = []
