"""The view-collapse meter: measures how different a method's views are, and how many are used.

- *Wins*: for each caption and the image it was written for, the view with the highest view score
  wins; views with scores within 1e-6 of the highest share the win.
- *Similarity*: the cosine between two different views of the same image, averaged over all pairs
  of views and all images.
- *In use*: 2 ** (entropy of the wins in bits), the effective number of winning views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from polyview.app.gallery.index import Gallery, subsample
from polyview.app.search.computations import Computation
from polyview.app.search.retriever import Retriever

SAMPLE_SIZE = 200  # images whose views `is_collapsed` compares
COLLAPSE_THRESHOLD = 0.95  # mean cosine from which views count as nearly the same
_TIE = 1e-6  # largest difference between view scores that count as equal
_BATCH = 80  # captions in a batch


class Collapse(BaseModel):
    """The measurements of a method; the module's docstring defines the quantities."""

    method: str
    state: str = "ready"  # "running", "ready" or "failed"
    progress: str = ""  # progress of a running measurement, or the reason for a failure
    views: int = 0  # V; this and the later fields are set only if ready
    wins: list[float] | None = None  # V shares that sum to 1; None without captions
    similarity: float | None = None  # None with one view
    in_use: float | None = None  # the effective number of winning views; None without captions
    collapsed: bool = False  # whether the views are nearly the same; if so, wins have no meaning
    images: int = 0  # number of images compared for `similarity`
    captions: int = 0  # number of captions counted in `wins`


def mean_similarity(batches: Iterable[Tensor]) -> float:
    """Returns the mean cosine of two views of an image; each batch is (n, V, D) with V > 1."""
    total, image_count, view_count = 0.0, 0, 0
    for batch in batches:
        unit = torch.nn.functional.normalize(batch.float(), dim=2)
        # the sum of cosines over i != j is |sum of views|^2 - sum of |view|^2
        sums = unit.sum(dim=1).square().sum(dim=1) - unit.square().sum(dim=(1, 2))  # (n,)
        total += float(sums.double().sum())
        image_count, view_count = image_count + len(batch), batch.shape[1]
    return total / image_count / (view_count * (view_count - 1))


def measure(retriever: Retriever, name: str) -> Collapse:
    """Measures a method's views of all searchable images; raises ValueError without images."""
    gallery = retriever.index.images[name]
    if gallery.shape is None:
        raise ValueError("nothing is searchable yet; try again in a moment")
    ids, (view_count, _) = gallery.ids(), gallery.shape
    result = Collapse(method=name, views=view_count, images=len(ids))
    if view_count == 1:
        result.wins, result.in_use = [1.0], 1.0
        return result
    captions = retriever.index.captions[name]
    image_ids = [retriever.collection.captions[i][1] for i in captions.ids()]
    wins = count_wins(gallery, captions, np.array(image_ids, np.int64))
    result.captions = round(float(wins.sum()))
    if result.captions:
        result.wins = (wins / result.captions).tolist()
        entropy = -sum(share * math.log2(share) for share in result.wins if share > 0)
        result.in_use = 2.0**entropy
    result.similarity = mean_similarity(views.embeddings for _, views in gallery.chunks())
    result.collapsed = result.similarity >= COLLAPSE_THRESHOLD
    return result


@torch.inference_mode()
def count_wins(gallery: Gallery, captions: Gallery, owners: np.ndarray) -> Tensor:
    """Returns for each view the number of captions for which it wins, (V,) float64.

    `owners` (C,) has the image id of each caption. Captions of images outside the gallery are
    ignored. In the shapes, a batch has T captions of N images.
    """
    wins = torch.zeros((gallery.shape or (1, 1))[0], dtype=torch.float64)
    is_present = np.isin(owners, gallery.ids())
    ids, owners = captions.ids()[is_present], owners[is_present]
    for start in range(0, len(ids), _BATCH):
        batch = slice(start, start + _BATCH)
        image_ids, columns = np.unique(owners[batch], return_inverse=True)
        images, texts = gallery.views(image_ids), captions.views(ids[batch])
        scores = gallery.method.view_scores(images, texts).cpu()  # (V, N, T)
        own_scores = scores[:, columns, np.arange(len(columns))].double()  # (V, T)
        is_highest = (own_scores >= own_scores.amax(dim=0) - _TIE).double()
        wins += (is_highest / is_highest.sum(dim=0)).sum(dim=1)
    return wins


def measure_in_background(retriever: Retriever, name: str) -> Computation:
    """Starts measuring a method, once for each size of its gallery; returns the computation."""
    key, failure = (name, len(retriever.index.images[name])), "the views could not be compared"
    return retriever.computations.compute(key, lambda _: measure(retriever, name), failure)


def is_collapsed(retriever: Retriever, name: str) -> bool:
    """Returns whether a method's views are nearly the same on a sample of images."""
    gallery = retriever.index.images[name]
    if gallery.shape is None or gallery.shape[0] == 1:
        return False
    key = ("sample", name, len(gallery))
    if (computation := retriever.computations.get(key)) is None:
        sample = gallery.views(subsample(gallery.ids(), SAMPLE_SIZE))
        similarity = mean_similarity([sample.embeddings])
        computation = retriever.computations.store(key, Computation(similarity))
    return bool(computation.result >= COLLAPSE_THRESHOLD)
