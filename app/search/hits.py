"""What a search finds, as every way to ask answers it: hits, captions, and what is known of them.

Ids of images and views count from 0.
"""

from typing import Any, NamedTuple

from pydantic import BaseModel


class NotReadyError(ValueError):
    """Nothing can be searched yet; the message says how far the gallery is."""


class Hit(BaseModel):
    """A found image; of a clip, its best frame, or of a set the one that adds most to its score.

    Attributes:
        image_id: its place in the collection; of a clip's frame, see `Collection.frame`.
        file: its name there.
        score: the method's score, higher is better.
        view: which of the image's views won, counted from 0; None where no single one did.
        rank: 1 for the best.
        seconds: when the frame is shown in its clip; None for a still image.
        frame: its number in the clip, from 0; None for a still image.
        captions: of the image, where there are any.
        objects: in the image, where they are known.
        satisfies: whether it is known to satisfy the query, a caption of the collection.
        probability: that it satisfies the query, where the pack can tell.
        width: of its thumbnail, in pixels, where it was asked for; so are the next two.
        height: of its thumbnail.
        alike: rank of the first hit that looks nearly the same.
        before: rank without the lens.
    """

    image_id: int
    file: str
    score: float
    view: int | None
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
    """A found caption, and the image it was written for; see `Hit`."""

    text: str
    image_id: int
    score: float
    view: int | None
    rank: int


class Found(NamedTuple):
    """What a search finds.

    Attributes:
        hits: images, best first.
        captions: captions, best first, where they were asked for and there are any.
        searched: how many images were ranked.
        caveat: in what way the best images are not exact; empty where they are.
        matches: whether anything satisfies the query; None where the method cannot tell.
        cancelled: the terms cancel out; the hits are in the order of the gallery.
    """

    hits: list[Hit]
    captions: list[Caption]
    searched: int
    caveat: str = ""
    matches: bool | None = None
    cancelled: bool = False


class Unknown(BaseModel):
    """A word that the pack lacks.

    Attributes:
        word: as it was typed.
        nearest: known ones that are spelled alike, where it is not read as one.
        read_as: the known word that it is read as; None where there is none.
    """

    word: str
    nearest: list[str]
    read_as: str | None


class QueryTerm(BaseModel):
    """A part of a query: words, empty for an image, and a weight.

    Attributes:
        count: how many words its encoder reads, in an explanation.
    """

    words: str
    weight: float
    count: int | None = None


class Answer(BaseModel):
    """What was found, best first.

    `matches` says whether anything satisfies the query, null where the pack cannot tell; `exact`
    whether no better image can be missing; `unfamiliar` whether the image asked with is unlike
    those that the pack was trained on, null where there is none or the pack cannot tell;
    `unsupported` which aspects no method of the pack tells: "sides", "negation". `images`, of an
    image that was sent, are the hits once more.
    """

    query: str
    read_as: str
    method: str
    k: int
    filters: dict[str, list[str]]
    searched: int
    ms: float
    terms: list[QueryTerm]
    exact: bool
    matches: bool | None
    unfamiliar: bool | None
    unknown: list[Unknown]
    unsupported: list[str]
    remark: str
    hits: list[Hit]
    captions: list[Caption]
    images: list[Hit] = []
