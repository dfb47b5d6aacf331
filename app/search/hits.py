"""What a search finds: images and captions with their scores."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from polyview.app.search.query import Term
from polyview.export.pack.calibration import Judgement


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
        terms: the T terms that count: none alike and none of weight 0; none where they cancel out.
        searched: how many images were ranked.
        caveat: in what way the best images are not exact; empty where they are.
        judgement: how sure the method is of the hits; None where nothing is known of that.
    """

    hits: list[Hit]
    captions: list[Caption]
    terms: tuple[Term, ...]
    searched: int
    caveat: str = ""
    judgement: Judgement | None = None


class Scores(NamedTuple):
    """Scores (N,) float32 of images and their ids (N,), in the order of the gallery.

    Where they are of files, each by its best image, `shown` says by which: ids (N,).
    """

    ids: np.ndarray
    values: np.ndarray
    shown: np.ndarray | None = None

    @property
    def images(self) -> np.ndarray:
        """Ids (N,) of the images that the scores are of."""
        return self.ids if self.shown is None else self.shown


def best_of_files(scores: Scores, files: int) -> Scores:
    """Scores of files by their best images, in the order of the files; a clip has several.

    Args:
        scores: of images.
        files: how many the collection has; see `Collection.file_id`.

    >>> best_of_files(Scores(np.array([0, 1, 3, 5]), np.array([0.1, 0.2, 0.4, 0.3])), 2)
    Scores(ids=array([0, 1]), values=array([0.1, 0.4]), shown=array([0, 3]))
    """
    owners = scores.ids % files
    order = np.lexsort((scores.ids, -scores.values, owners))
    first = np.ones(len(order), bool)
    first[1:] = owners[order][1:] != owners[order][:-1]
    best = order[first]
    return Scores(owners[best], scores.values[best], scores.ids[best])


def in_all(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Scores:
    """Sums of scores of the images that are in all parts."""
    ids = min((ids for ids, _ in parts), key=len)
    if all(np.array_equal(others[: len(ids)], ids) for others, _ in parts):
        rows = [scores[: len(ids)] for _, scores in parts]  # more may arrive meanwhile
    else:  # an image could not be read again when a later method's turn came
        ids = reduce(np.intersect1d, [others for others, _ in parts])
        places = [np.argsort(others, kind="stable") for others, _ in parts]
        rows = [
            scores[order[np.searchsorted(others[order], ids)]]
            for order, (others, scores) in zip(places, parts, strict=True)
        ]
    return Scores(ids, reduce(np.add, rows))
