"""What a search finds: pictures, captions, and scores, in plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Hit:
    """A found picture.

    Attributes:
        image_id: its place in the collection.
        file: its name there.
        score: the method's score, higher is better.
        view: which of the picture's views won, counted from 0; None where no single one did.
        rank: 1 for the best.
    """

    image_id: int
    file: str
    score: float
    view: int | None
    rank: int


@dataclass(frozen=True)
class CaptionHit:
    """A found caption, and the picture it was written for; see `Hit`."""

    text: str
    image_id: int
    score: float
    view: int | None
    rank: int


class Scores(NamedTuple):
    """Scores (N,) float32 of pictures and their ids (N,), in the order of the gallery."""

    ids: np.ndarray
    values: np.ndarray

    @classmethod
    def summed(cls, parts: Sequence[tuple[list[int], np.ndarray]]) -> Scores:
        """Sums of scores of the pictures that are in all parts, each of which has ascending ids."""
        ids = min((ids for ids, _ in parts), key=len)
        if all(others[: len(ids)] == ids for others, _ in parts):  # more may arrive meanwhile
            rows = [scores[: len(ids)] for _, scores in parts]
        else:  # a picture could not be read again when a later method's turn came
            ids = sorted(set(ids).intersection(*(others for others, _ in parts)))
            rows = [scores[np.isin(others, ids)] for others, scores in parts]
        return cls(np.asarray(ids), np.stack(rows).sum(axis=0, dtype=np.float32))


class Found(NamedTuple):
    """Pictures, and which of their views each part of the question was scored by.

    Attributes:
        hits: best first.
        winners: for each method, the winning view (T, n) for each of T terms and n hits.
    """

    hits: list[Hit]
    winners: Mapping[str, np.ndarray]
