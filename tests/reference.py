"""Naive loops written from the papers' equations: slow, plain, and the judge of the real code."""

import math

import torch
from torch import Tensor, nn

from polyview.models.gpo import GPO
from polyview.models.pvse import PIENet


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


def rank_of_best(row: list[float], positives: set[int]) -> int:
    """Zero-based rank of the best positive; wrong items win ties."""
    best = max(row[p] for p in positives)
    return sum(value >= best for i, value in enumerate(row) if i not in positives)


def sinkhorn(affinity: Tensor, z: float, iterations: int) -> Tensor:
    """AVSE section 3.2 for one pair: the (p + 1) x (q + 1) plan, rows scaled first."""
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


def last_states(gru: nn.GRU, elements: Tensor) -> Tensor:
    """The final states of torch's bi-GRU over a whole sequence without padding, (N, D) -> (H,)."""
    _, last = gru(elements[None])  # (2, 1, H / 2)
    return last[:, 0].flatten()


def pie_net(net: PIENet, local: Tensor, whole: Tensor) -> Tensor:
    """PVSE Eqs. (2)-(4) for one set, (N, D) and (H,) -> (K, H)."""
    w1, w2 = net.w1.weight, net.w2.weight
    embeddings = []
    for head in w2:
        scores = [math.exp(float(head @ torch.tanh(w1 @ x))) for x in local]  # Eq. (2)
        mixed = torch.stack([s / sum(scores) * x for s, x in zip(scores, local, strict=True)]).sum(
            dim=0
        )
        residual = 1 / (1 + torch.exp(-(net.w3.weight @ mixed + net.w3.bias)))  # Eq. (3)
        z = whole + residual
        spread = ((z - z.mean()).square().mean() + net.norm.eps).sqrt()
        embeddings.append((z - z.mean()) / spread * net.norm.weight + net.norm.bias)  # Eq. (4)
    return torch.stack(embeddings)
