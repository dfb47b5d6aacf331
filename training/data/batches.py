"""Batches of image-text pairs, drawn from a split in an order that the seed determines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyview.training.data.split import Clips, Copies, Split
from polyview.training.data.texts import UNKNOWN_ID, TokenTable


@dataclass(frozen=True)
class Batch:
    """B image-text pairs of I images, I <= B.

    Attributes:
        features: (I, N, d) float32 image features, or pixels (I, 3, S, S) of S x S squares.
        mask: (I, N) bool, False at padding; N is 0 for pixels.
        rows: (B,) int64, the row of each pair's image among the I images.
        ids: (B, L) int64 token ids of texts of up to L tokens, 0 at padding.
        lengths: (B,) int64, the number of tokens of each text.
        image_ids: (B,) int64, equal for pairs of the same image.
    """

    features: Tensor
    mask: Tensor
    rows: Tensor
    ids: Tensor
    lengths: Tensor
    image_ids: Tensor

    def to(self, device: torch.device) -> Batch:
        """Moves the batch to a device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def batches(
    data: Split,
    table: TokenTable,
    batch_size: int,
    seed: tuple[int, ...],
    unknown_rate: float = 0.0,
    captions_per_image: int = 1,
    candidates: np.ndarray | None = None,
) -> Iterator[Batch]:
    """Yields shuffled batches of captions with their images, without an incomplete last batch.

    The order depends only on `seed` (run seed, epoch, ...): a resumed run draws the same batches.
    `unknown_rate` is the share of words replaced by [UNK]. `candidates` (n,) are rows of captions
    to draw; None for all. `captions_per_image` captions of an image, or of alike images, share a
    batch. With 1, a batch repeats an image for each caption; with more, it holds each image once.
    """
    random = np.random.default_rng(seed)
    group_of = data.image_of if data.alike is None else data.alike[data.image_of]  # (N_txt,)
    if candidates is None:
        candidates = np.arange(len(group_of))
    order = candidates[caption_order(group_of[candidates], captions_per_image, random)]
    for start in range(0, len(order) - batch_size + 1, batch_size):
        index = order[start : start + batch_size]
        ids, lengths = table.rows(index)
        if unknown_rate:
            is_replaced = (random.random(ids.shape) < unknown_rate) & ~np.isin(ids, table.fixed_ids)
            ids = np.where(is_replaced, UNKNOWN_ID, ids)
        image_ids = data.image_of[index]  # (B,)
        images, rows = np.unique(image_ids, return_inverse=True)  # (I,), (B,)
        if captions_per_image == 1:
            images, rows = image_ids, np.arange(len(image_ids))
        if isinstance(data.features, Copies | Clips):
            features = data.features.sample(images, random)
        else:
            features = data.features[images]
        mask = data.mask(images, features.shape[1] if features.ndim == 3 else 0)
        arrays = mask, rows, ids, lengths.astype(np.int64), image_ids
        yield Batch(torch.from_numpy(features).float(), *map(torch.from_numpy, arrays))


def caption_order(group_of: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Returns a random order (n,) of n captions; up to `size` captions of a group are adjacent.

    `group_of` (n,) has equal values for captions of the same image, or of alike images.

    >>> order = caption_order(np.array([0, 0, 1, 1]), 2, np.random.default_rng(0))
    >>> sorted(order[:2].tolist()) in ([0, 1], [2, 3])
    True
    """
    order = random.permutation(len(group_of))
    if size == 1:
        return order
    order = order[np.argsort(group_of[order], kind="stable")]  # by group, shuffled within each
    groups = group_of[order]
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])  # first caption of each group
    counts = np.diff(np.r_[starts, len(order)])
    positions = np.arange(len(order)) - np.repeat(starts, counts)  # within each group
    chunks = np.split(order, np.flatnonzero(positions % size == 0)[1:])
    return np.concatenate([chunks[i] for i in random.permutation(len(chunks))])
