"""Naive loops written from the papers' equations: slow, plain, and the judge of the real code."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from models.backbones import BiGRUTextEncoder
from models.gpo import GPO


def gpo_pool(gpo: GPO, features: Tensor) -> Tensor:
    """VSE-infinity Eqs. (2)-(5) for one set, (N, D) -> (D,), one number at a time."""
    count, dim = features.shape
    encoding = torch.zeros(count, gpo.position_dim)
    for k in range(count):
        position = k + gpo.first_position
        for j in range(gpo.position_dim // 2):
            w = 1.0 / 10000 ** (2 * j / gpo.position_dim)
            encoding[k, 2 * j] = math.sin(w * position)  # Eq. (4)
            encoding[k, 2 * j + 1] = math.cos(w * position)
    states, _ = gpo.gru(encoding[None])
    half = states.shape[-1] // 2
    scores = [gpo.score((s[:half] + s[half:]) / 2).squeeze() / gpo.temperature for s in states[0]]
    theta = torch.stack(scores).softmax(0)  # Eq. (5)
    pooled = torch.zeros(dim)
    for i in range(dim):
        ranked = sorted(features[:, i].tolist(), reverse=True)
        pooled[i] = sum(
            t * value for t, value in zip(theta.tolist(), ranked, strict=True)
        )  # Eq. (2)
    return pooled


def hinge_triplet(scores: Tensor, image_ids: list[int], margin: float, hardest: bool) -> float:
    """VSE-infinity Eq. (1), both directions, summed over the batch."""
    total = 0.0
    for b, own in enumerate(image_ids):
        negatives = [n for n, other in enumerate(image_ids) if other != own]
        texts = [max(0.0, margin - float(scores[b, b]) + float(scores[b, n])) for n in negatives]
        images = [max(0.0, margin - float(scores[b, b]) + float(scores[n, b])) for n in negatives]
        for costs in (texts, images):
            total += (max(costs) if hardest else sum(costs)) if costs else 0.0
    return total


def bigru(encoder: BiGRUTextEncoder, ids: Tensor) -> Tensor:
    """One text through the two GRUs, (L,) -> (L, d), without any padding."""
    words = encoder.embed(ids)[None]
    ahead, _ = encoder.forward_gru(words)
    back, _ = encoder.backward_gru(words.flip(1))
    return ((ahead + back.flip(1)) / 2)[0]


def rank_of_best(row: list[float], positives: set[int]) -> int:
    """Zero-based rank of the best positive; wrong items win ties."""
    best = max(row[p] for p in positives)
    return sum(value >= best for i, value in enumerate(row) if i not in positives)
