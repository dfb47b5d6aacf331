"""The view-collapse meter: do a method's views of a gallery's images differ, and are all in use?

Three numbers say so:

- *Wins*: for each caption of the gallery and the image it was written for, the view with the
  highest view score wins (where views add up: the one that adds most). Views within 1e-6 of the
  highest share the win. A view's share of wins is its part of all captions.
- *Similarity*: the cosine between two different views of the same image, averaged over all pairs
  of views and all images.
- *Overlap*: two maps of the same image, negative values set to 0 and each scaled to sum to 1,
  overlap by the sum over cells of the smaller value: 1 for equal maps, 0 where they share no cell;
  averaged over all pairs of views and a sample of images. A map without a positive value counts
  as even.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from polyview.app.gallery.index import Gallery
from polyview.app.search.retriever import Retriever
from polyview.models import Method, Views

SAMPLE = 200  # images whose maps are compared
COLLAPSED = 0.95  # mean cosine from which views are called the same
_TIE = 1e-6
_IMAGES_AT_ONCE = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collapse:
    """What the meter reads; see the module's head for what each number is.

    Attributes:
        views: V.
        images: how many were compared for `similarity`.
        captions: how many decided the wins.
        wins: (V) shares that sum to 1; None without captions.
        similarity: None with one view.
        overlap: None with one view, or without attention.
        maps: of how many images the maps were compared.
    """

    views: int
    images: int
    captions: int
    wins: tuple[float, ...] | None
    similarity: float | None
    overlap: float | None
    maps: int

    @property
    def in_use(self) -> float | None:
        """How many views the wins would need if they shared them evenly: 2 to their entropy."""
        if self.wins is None:
            return None
        return 2.0 ** -sum(share * math.log2(share) for share in self.wins if share > 0)

    @property
    def collapsed(self) -> bool:
        """Whether the views say nearly the same, so that it means nothing which of them wins."""
        return self.similarity is not None and self.similarity >= COLLAPSED


@torch.inference_mode()
def count_wins(method: Method, images: Views, texts: Views, rows: Tensor) -> Tensor:
    """For how many texts each view of their own image scores highest.

    Args:
        method: gives `view_scores`.
        images: (N, V, D).
        texts: (T, W, D), at least one.
        rows: (T,) each text's own row of `images`.

    Returns:
        (V,) float64 that sums to T; views that tie share a text.
    """
    scores = method.view_scores(images, texts)  # (V, N, T)
    own = scores[:, rows, torch.arange(len(rows), device=rows.device)].double().cpu()  # (V, T)
    highest = (own >= own.amax(dim=0) - _TIE).double()
    return (highest / highest.sum(dim=0)).sum(dim=1)


def mean_similarity(parts: Iterable[Tensor]) -> float:
    """Mean cosine between different views of the same image.

    Args:
        parts: all images' views, (n, V, D) each, with V > 1.
    """
    total, images, views = 0.0, 0, 0
    for part in parts:
        unit = torch.nn.functional.normalize(part.float(), dim=2)
        # the sum over all pairs is the squared length of the sum of the views
        pairs = unit.sum(dim=1).square().sum(dim=1) - unit.square().sum(dim=(1, 2))
        total += float(pairs.double().sum())
        images, views = images + len(part), part.shape[1]
    return total / images / (views * (views - 1))


def map_overlap(maps: np.ndarray) -> float:
    """Mean over images and pairs of views of the sum of the smaller of both maps.

    Args:
        maps: (N, V, P) with V > 1; shares or cosines.

    Returns:
        0 to 1, see the module's head.

    >>> map_overlap(np.array([[[3.0, 1.0, 0.0], [0.0, 0.5, 0.5]]]))
    0.25
    """
    positive = np.clip(maps.astype(np.float64), 0.0, None)
    totals = positive.sum(axis=2, keepdims=True)
    even = np.full(positive.shape, 1.0 / maps.shape[2])
    shares = np.divide(positive, totals, out=even, where=totals > 0)
    views = maps.shape[1]
    pairs = np.minimum(shares[:, :, None], shares[:, None]).sum(axis=-1)  # (N, V, V), 1 for v = v
    return float((pairs.sum(axis=(1, 2)).mean() - views) / (views * (views - 1)))


def measure(retriever: Retriever, name: str) -> Collapse:
    """Reads the meter for one method, over what is searchable now.

    Raises:
        ValueError: nothing is searchable.
    """
    gallery = retriever.gallery(name)
    if gallery.shape is None:
        raise ValueError("nothing is searchable yet; try again in a moment")
    ids, (count, _) = gallery.ids(), gallery.shape
    if count == 1:
        return Collapse(1, len(ids), 0, (1.0,), None, None, 0)
    captions = retriever.index.captions[name]
    owners = [retriever.collection.captions[i][1] for i in captions.ids()]
    counted = count_all_wins(gallery, captions, np.array(owners, np.int64))
    known = round(float(counted.sum()))
    wins = tuple((counted / known).tolist()) if known else None
    similarity = mean_similarity(views.embeddings for _, views in gallery.chunks())
    maps = []
    for image_id in ids[:: math.ceil(len(ids) / SAMPLE)].tolist():
        try:
            attention = retriever.views(image_id, name, attention=True).attention
        except ValueError:  # its file is gone
            continue
        if attention is not None:
            maps.append(attention[0].float().cpu().numpy())  # (V, N)
    overlap = map_overlap(np.stack(maps)) if maps else None
    return Collapse(count, len(ids), known, wins, similarity, overlap, len(maps))


def count_all_wins(gallery: Gallery, captions: Gallery, owners: np.ndarray) -> Tensor:
    """For how many captions each view of their own image scores highest, see `count_wins`.

    Args:
        gallery: of images.
        captions: of C captions; one whose image is not in the gallery, for it may have been
            refused, is left out.
        owners: (C,) each caption's image.

    Returns:
        (V,) float64.
    """
    ids = captions.ids()
    by_owner = np.argsort(owners, kind="stable")
    wins = torch.zeros((gallery.shape or (1, 1))[0], dtype=torch.float64)
    for part, views in gallery.chunks():
        for start in range(0, len(part), _IMAGES_AT_ONCE):
            some = slice(start, start + _IMAGES_AT_ONCE)
            first, last = (
                np.searchsorted(owners, part[some], side, by_owner) for side in ("left", "right")
            )
            rows = np.repeat(np.arange(len(first)), last - first)  # (T,)
            if len(rows):
                own = np.concatenate([by_owner[a:b] for a, b in zip(first, last, strict=True)])
                where = torch.from_numpy(rows).to(views.embeddings.device)
                wins += count_wins(gallery.method, views[some], captions.views(ids[own]), where)
    return wins


@dataclass(frozen=True)
class Reading:
    """What the meter says at the moment: a result, why there is none yet, or what went wrong."""

    result: Collapse | None = None
    progress: str = ""
    problem: str = ""


class Meters:
    """Reads the meter in the background, once for each method and size of each gallery."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the readings
        self._turn = threading.Lock()  # one measurement at a time: others want the processor too
        self._readings: WeakKeyDictionary[Retriever, dict[tuple[str, int], Reading]]
        self._readings = WeakKeyDictionary()
        self._sampled: WeakKeyDictionary[Retriever, dict[tuple[str, int], float]]
        self._sampled = WeakKeyDictionary()

    def read(self, retriever: Retriever, name: str) -> Reading:
        """What is known of a method; the first call begins to measure, none waits."""
        index = retriever.index
        if not index.progress.finished:
            return Reading(progress=f"waits for the gallery, {index.progress}")
        key = (name, len(retriever.gallery(name)))
        with self._lock:
            readings = self._readings.setdefault(retriever, {})
            if key in readings:
                return readings[key]
            readings[key] = Reading(progress="measuring")
        arguments = (retriever, key, readings)
        threading.Thread(target=self._measure, args=arguments, name="collapse", daemon=True).start()
        return Reading(progress="measuring")

    def collapsed(self, retriever: Retriever, name: str) -> bool:
        """Whether a method's views say nearly the same, by a sample of images."""
        gallery = retriever.gallery(name)
        key = (name, len(gallery))
        if gallery.shape is None or gallery.shape[0] == 1:
            return False
        with self._lock:
            sampled = self._sampled.setdefault(retriever, {})
        if key not in sampled:
            some = gallery.ids()[:: math.ceil(len(gallery) / SAMPLE)]
            sampled[key] = mean_similarity([gallery.views(some).embeddings])
        return sampled[key] >= COLLAPSED

    def _measure(
        self, retriever: Retriever, key: tuple[str, int], readings: dict[tuple[str, int], Reading]
    ) -> None:
        try:
            with self._turn:
                readings[key] = Reading(measure(retriever, key[0]))
        except Exception as error:  # the page shows the sentence
            _log.exception("the view-collapse meter failed")
            readings[key] = Reading(problem=f"the views could not be compared: {error}")
