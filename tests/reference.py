"""Naive loops written from the papers' equations: slow, plain, and the judge of the real code."""

import math

import torch
from torch import Tensor, nn

from polyview.models.encoders.bigru import BiGRUTextEncoder
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


def bigru(encoder: BiGRUTextEncoder, ids: Tensor) -> Tensor:
    """One text through the two GRUs, (L,) -> (L, d), without any padding."""
    assert encoder.forward_gru is not None
    assert encoder.backward_gru is not None
    words = encoder.embed(ids)[None]
    ahead, _ = encoder.forward_gru(words)
    back, _ = encoder.backward_gru(words.flip(1))
    return ((ahead + back.flip(1)) / 2)[0]


def rank_of_best(row: list[float], positives: set[int]) -> int:
    """Zero-based rank of the best positive; wrong items win ties."""
    best = max(row[p] for p in positives)
    return sum(value >= best for i, value in enumerate(row) if i not in positives)


def view_losses(view_scores: Tensor, image_ids: list[int], margin: float) -> dict[str, list[float]]:
    """MV-VSE Eqs. (8)-(13) for each pair, from (K, B, B) scores, both directions added."""
    views, batch = len(view_scores), len(image_ids)
    losses = {name: [0.0] * batch for name in ("max", "avg", "up", "rough")}
    for scores in (view_scores, view_scores.mT):  # an image's rivals, then a text's
        s = scores.tolist()
        best = [[max(s[k][b][n] for k in range(views)) for n in range(batch)] for b in range(batch)]
        for b, own in enumerate(image_ids):
            rivals = [n for n, other in enumerate(image_ids) if other != own]
            if not rivals:
                continue
            hardest = max(best[b][n] for n in rivals)
            losses["max"][b] += max(0.0, margin - best[b][b] + hardest)  # Eq. (9)
            costs = [margin - s[k][b][b] + hardest for k in range(views)]
            rough = sum(max(0.0, c) for c in costs) / views
            losses["rough"][b] += rough  # Eq. (13)
            losses["up"][b] += rough if all(c > 0 for c in costs) else 0.0  # Eqs. (10)-(12)
            for k in range(views):  # Eq. (8)
                hardest_here = max(s[k][b][n] for n in rivals)
                losses["avg"][b] += max(0.0, margin - s[k][b][b] + hardest_here) / views
    return losses


def sinkhorn(affinity: Tensor, z: float, iterations: int) -> list[list[float]]:
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
    return plan


def attend(codes: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """MVAM Eqs. (7)-(8) for one set, (m, D) and (N, D) -> (m, D) and (m, N)."""
    views, maps = [], []
    for code in codes:
        weights = [math.exp(float(code @ h)) for h in features]
        maps.append([w / sum(weights) for w in weights])
        views.append(
            torch.stack([a * h for a, h in zip(maps[-1], features, strict=True)]).sum(dim=0)
        )
    return torch.stack(views), torch.tensor(maps)


def last_states(gru: nn.GRU, elements: Tensor) -> Tensor:
    """The final states of a bi-GRU that reads a whole sequence, (N, D) -> (H,), gate by gate."""
    states = []
    for end, steps in (("", elements), ("_reverse", elements.flip(0))):
        inner, outer = (getattr(gru, f"weight_{kind}_l0{end}") for kind in ("ih", "hh"))
        inner_bias, outer_bias = (getattr(gru, f"bias_{kind}_l0{end}") for kind in ("ih", "hh"))
        h = torch.zeros(gru.hidden_size)
        for x in steps:
            a, b = (inner @ x + inner_bias).chunk(3), (outer @ h + outer_bias).chunk(3)
            reset, update = (1 / (1 + torch.exp(-(a[i] + b[i]))) for i in (0, 1))
            h = (1 - update) * torch.tanh(a[2] + reset * b[2]) + update * h
        states.append(h)
    return torch.cat(states)


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
