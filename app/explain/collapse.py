"""The view-collapse meter: whether a method's views differ, and whether all are used.

It measures:

- *Wins*: for each caption and the image it was written for, the view with the highest view score
  wins (if view scores add up, the largest term). Views within 1e-6 of the highest share the win. A
  view's share of wins is its fraction of all captions.
- *Similarity*: the cosine between two different views of the same image, averaged over all pairs
  of views and all images.
- *Overlap*: negative values of two maps of an image are set to 0 and each map is scaled to sum to
  1; their overlap is the sum over cells of the smaller value: 1 for equal maps, 0 if they share no
  cell. It is averaged over all pairs of views and a sample of images. A map without positive values
  counts as uniform.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from polyview.app.gallery.index import Gallery
from polyview.app.search.readings import Reading
from polyview.app.search.retriever import Retriever
from polyview.models import Method, Views

SAMPLE = 200  # images whose maps are compared
COLLAPSED = 0.95  # mean cosine from which views count as nearly the same
_TIE = 1e-6
_BATCH = 80  # captions in a batch


class Collapse(BaseModel):
    """The meter of a method; the numbers are defined at the top of the module.

    Attributes:
        method: the name of the method.
        state: "running", "ready" or "failed"; only "ready" sets the fields after `progress`.
        progress: the progress, or the reason of the failure.
        views: number of views V.
        wins: V shares that sum to 1; None without captions.
        similarity: None with one view.
        overlap: None with one view, or without attention.
        in_use: the effective number of winning views: 2 to the power of the entropy of the wins.
        collapsed: whether the views are nearly the same; the winning view then means nothing.
        images: number of images compared for `similarity`.
        captions: number of captions for the wins.
        maps: number of images whose maps were compared.
    """

    method: str
    state: str = "ready"
    progress: str = ""
    views: int = 0
    wins: list[float] | None = None
    similarity: float | None = None
    overlap: float | None = None
    in_use: float | None = None
    collapsed: bool = False
    images: int = 0
    captions: int = 0
    maps: int = 0


@torch.inference_mode()
def count_wins(method: Method, images: Views, texts: Views, rows: Tensor) -> Tensor:
    """Counts the texts for which each view of their image has the highest score.

    Args:
        method: supplies `view_scores`.
        images: (N, V, D).
        texts: (T, W, D), at least one.
        rows: (T,) the row of `images` that belongs to each text.

    Returns:
        (V,) float64, sum T; tied views share a text.
    """
    scores = method.view_scores(images, texts)  # (V, N, T)
    paired = scores[:, rows, torch.arange(len(rows), device=rows.device)].double().cpu()  # (V, T)
    highest = (paired >= paired.amax(dim=0) - _TIE).double()
    return (highest / highest.sum(dim=0)).sum(dim=1)


def mean_similarity(batches: Iterable[Tensor]) -> float:
    """Mean cosine between different views of an image; `batches` have views (n, V, D), V > 1."""
    total, images, views = 0.0, 0, 0
    for batch in batches:
        unit = torch.nn.functional.normalize(batch.float(), dim=2)
        # the sum over all pairs follows from the squared length of the sum of the views
        pairs = unit.sum(dim=1).square().sum(dim=1) - unit.square().sum(dim=(1, 2))
        total += float(pairs.double().sum())
        images, views = images + len(batch), batch.shape[1]
    return total / images / (views * (views - 1))


def map_overlap(maps: np.ndarray) -> float:
    """Mean overlap, 0 to 1, of two maps of an image, over images and pairs of views.

    `maps` (N, V, P) with V > 1 are shares or cosines. The top of the module defines the overlap.

    >>> map_overlap(np.array([[[3.0, 1.0, 0.0], [0.0, 0.5, 0.5]]]))
    0.25
    """
    positive = np.clip(maps.astype(np.float64), 0.0, None)
    totals = positive.sum(axis=2, keepdims=True)
    uniform = np.full(positive.shape, 1.0 / maps.shape[2])
    shares = np.divide(positive, totals, out=uniform, where=totals > 0)
    views = maps.shape[1]
    pairs = np.minimum(shares[:, :, None], shares[:, None]).sum(axis=-1)  # (N, V, V), 1 for v = v
    return float((pairs.sum(axis=(1, 2)).mean() - views) / (views * (views - 1)))


def measure(retriever: Retriever, name: str) -> Collapse:
    """Measures a method over the images searchable now; raises ValueError if there are none."""
    gallery = retriever.gallery(name)
    if gallery.shape is None:
        raise ValueError("nothing is searchable yet; try again in a moment")
    ids, (count, _) = gallery.ids(), gallery.shape
    result = Collapse(method=name, state="ready", progress="", views=count, images=len(ids))
    if count == 1:
        result.wins, result.in_use = [1.0], 1.0
        return result
    captions = retriever.index.captions[name]
    owners = [retriever.collection.captions[i][1] for i in captions.ids()]
    wins = count_all_wins(gallery, captions, np.array(owners, np.int64))
    result.captions = round(float(wins.sum()))
    if result.captions:
        result.wins = (wins / result.captions).tolist()
        result.in_use = views_in_use(result.wins)
    result.similarity = mean_similarity(views.embeddings for _, views in gallery.chunks())
    result.collapsed = result.similarity >= COLLAPSED
    maps = []
    for image_id in ids[:: math.ceil(len(ids) / SAMPLE)].tolist():
        try:
            attention = retriever.views([image_id], name, attention=True).attention
        except ValueError:  # its file was deleted
            continue
        if attention is not None:
            maps.append(attention[0].float().cpu().numpy())  # (V, N)
    result.maps, result.overlap = len(maps), map_overlap(np.stack(maps)) if maps else None
    return result


def views_in_use(wins: Iterable[float]) -> float:
    """The effective number of winning views: 2 to the power of the entropy of their shares.

    >>> views_in_use([0.25] * 4), views_in_use([1.0, 0.0, 0.0])
    (4.0, 1.0)
    """
    return 2.0 ** -sum(share * math.log2(share) for share in wins if share > 0)


def count_all_wins(gallery: Gallery, captions: Gallery, owners: np.ndarray) -> Tensor:
    """Sums `count_wins` (V,) over C captions; `owners` (C,) are the ids of their images.

    Captions are left out if their image is not in the gallery, because it cannot be read.
    """
    wins = torch.zeros((gallery.shape or (1, 1))[0], dtype=torch.float64)
    is_present = np.isin(owners, gallery.ids())
    ids, owners = captions.ids()[is_present], owners[is_present]
    for start in range(0, len(ids), _BATCH):
        batch = slice(start, start + _BATCH)
        image_ids, rows = np.unique(owners[batch], return_inverse=True)
        images = gallery.views(image_ids)
        image_rows = torch.from_numpy(rows).to(images.embeddings.device)
        wins += count_wins(gallery.method, images, captions.views(ids[batch]), image_rows)
    return wins


def measure_in_background(retriever: Retriever, name: str) -> Reading:
    """The state of measuring a method; measures again when the size of its gallery changes."""
    key = (name, len(retriever.gallery(name)))
    failure = "the views could not be compared"
    return retriever.readings.compute(key, lambda _: measure(retriever, name), failure)


def is_collapsed(retriever: Retriever, name: str) -> bool:
    """Whether a method's views are nearly the same on a sample of images."""
    gallery = retriever.gallery(name)
    if gallery.shape is None or gallery.shape[0] == 1:
        return False
    key = ("sample", name, len(gallery))
    if (reading := retriever.readings.get(key)) is None:
        sample = gallery.ids()[:: math.ceil(len(gallery) / SAMPLE)]
        similarity = mean_similarity([gallery.views(sample).embeddings])
        reading = retriever.readings.keep(key, Reading(similarity))
    return bool(reading.result >= COLLAPSED)
