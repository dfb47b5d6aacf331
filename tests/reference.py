"""Naive loops written from the papers' equations, as references for the library's code."""

import math

import torch
from torch import Tensor

from polyview.models.gpo import GPO


def gpo_pool(gpo: GPO, features: Tensor) -> Tensor:
    """Pools one set (N, D) to (D,), one number at a time: VSE-infinity, Eqs. (2)-(5)."""
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
        pooled[i] = sum(t * v for t, v in zip(theta.tolist(), ranked, strict=True))  # Eq. (2)
    return pooled


def rank_of_best(row: list[float], positives: set[int]) -> int:
    """Returns the zero-based rank of the best positive; negatives win ties."""
    best = max(row[p] for p in positives)
    return sum(value >= best for i, value in enumerate(row) if i not in positives)


def sinkhorn(affinity: Tensor, z: float, iterations: int) -> Tensor:
    """Returns the plan (p + 1, q + 1) of one pair, rows scaled first: AVSE, section 3.2."""
    p, q = affinity.shape
    plan = [[math.exp(v) for v in row] + [math.exp(z)] for row in affinity.tolist()]
    plan.append([math.exp(z)] * (q + 1))
    rows, columns = [1.0] * p + [float(q)], [1.0] * q + [float(p)]
    for _ in range(iterations):
        for i, expected in enumerate(rows):
            scale = expected / sum(plan[i])
            plan[i] = [v * scale for v in plan[i]]
        for j, expected in enumerate(columns):
            scale = expected / sum(row[j] for row in plan)
            for row in plan:
                row[j] *= scale
    return torch.tensor(plan)
