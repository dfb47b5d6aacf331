"""Straightforward formulations, the yardsticks of `benchmarks/kernels.py`.

Each computes what its namesake in `models/` or `training/` does, in the way the authors' releases
formulate it; tests hold the two to the same numbers.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models import Method, Views
from models.avse import AVSE
from models.encoders.bigru import BiGRUTextEncoder
from models.gpo import GPO
from models.layers import FeatureProjection, l2_normalize
from models.mv_vse import MVVSE
from models.vse_infty import VSEInfinity
from training.objectives.pvse import multiple_instance


class PlainGPO(nn.Module):
    """GPO with a generator run for every set and a sort along the set's own, strided axis.

    Args:
        gpo: whose weights to use.
    """

    def __init__(self, gpo: GPO) -> None:
        super().__init__()
        self.gpo = gpo

    def coefficients(self, sizes: Tensor) -> Tensor:
        """See `GPO.coefficients`."""
        longest = int(sizes.max())
        positions = self.gpo._encode_positions(longest, sizes.device)
        inputs = positions.expand(len(sizes), -1, -1)  # (B, longest, p)
        packed = pack_padded_sequence(inputs, sizes.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gpo.gru(packed)[0], batch_first=True)
        forward, backward = states.chunk(2, dim=-1)
        scores = self.gpo.score((forward + backward) / 2).squeeze(-1)  # (B, longest)
        padding = torch.arange(longest) >= sizes[:, None]
        return (scores.masked_fill(padding, -10000.0) / self.gpo.temperature).softmax(dim=-1)

    def forward(
        self, features: Tensor, mask: Tensor, *, shares: bool = False
    ) -> tuple[Tensor, None]:
        """(B, N, D), (B, N) -> (B, D)."""
        del shares  # for looking inside, not for speed
        sizes = mask.sum(dim=1)
        theta = self.coefficients(sizes)
        ranked = features.masked_fill(~mask[..., None], -10000.0).sort(dim=1, descending=True)[0]
        beyond = torch.arange(mask.shape[1]) >= sizes[:, None]
        ranked = ranked.masked_fill(beyond[..., None], 0.0)[:, : theta.shape[1]]
        return (ranked * theta[..., None]).sum(dim=1), None


class PlainMVVSE(MVVSE):
    """MV-VSE whose every view sorts for itself."""

    def _pool_by_rank(self, projected: list[Tensor], mask: Tensor) -> Tensor:
        return torch.stack([pool(projected[0], mask)[0] for pool in self.pool_image], dim=1)


class PlainAVSE(AVSE):
    """AVSE scored in the log domain over (pairs, p + 1, q + 1), blocks normalised at each call."""

    def score(self, images: Views, texts: Views) -> Tensor:
        """See `AVSE.score`."""
        assert self.dustbin is not None
        visual, textual = (
            l2_normalize(v.embeddings.unflatten(2, (-1, self.block_dim)).flatten(1, 2))
            for v in (images, texts)
        )
        scores = []
        for rows in visual.split(64):
            affinity = torch.einsum("ipd,tqd->itpq", rows, textual).flatten(0, 1)  # (C, p, q)
            plan = _plain_log_plan(
                affinity, self.dustbin, self.config.iterations, self.config.temperature
            )
            best = plan[:, :-1, :-1].exp().amax(dim=1).sum(dim=1)
            scores.append(best.view(len(rows), -1))
        return torch.cat(scores)


def _plain_log_plan(affinity: Tensor, z: Tensor, iterations: int, temperature: float) -> Tensor:
    pairs, p, q = affinity.shape
    bottom = torch.cat([affinity, z.expand(pairs, 1, q)], dim=1)
    whole = torch.cat([bottom, z.expand(pairs, p + 1, 1)], dim=2) / temperature
    log_rows = torch.tensor([1.0] * p + [float(q)]).log()
    log_columns = torch.tensor([1.0] * q + [float(p)]).log()
    u, v = torch.zeros(pairs, p + 1), torch.zeros(pairs, q + 1)
    for _ in range(iterations):
        u = log_rows - torch.logsumexp(whole + v[:, None], dim=2)
        v = log_columns - torch.logsumexp(whole + u[:, :, None], dim=1)
    return whole + u[:, :, None] + v[:, None]


def plain_pvse_loss(
    method: Method, images: Views, texts: Views, positives: Tensor, weight: float
) -> Tensor:
    """PVSE's losses as released, the discrepancy from an array of all differences."""
    loss = multiple_instance(method.score(images, texts), positives, released=True)
    for residuals in (images.extras["residuals"], texts.extras["residuals"]):
        unit = l2_normalize(residuals)
        gram = torch.bmm(unit, unit.mT) - torch.eye(unit.shape[1])
        loss = loss + weight * gram.flatten(1).norm(dim=1).mean() / unit.shape[1] ** 2
    x, y = images.embeddings.flatten(0, 1), texts.embeddings.flatten(0, 1)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (a[:, None] - b[None]).norm(dim=2))

    discrepancy = kernel(x, x).mean() - 2 * kernel(x, y).mean() + kernel(y, y).mean()
    return loss + weight * discrepancy


class PackedBiGRU(nn.Module):
    """The text encoder as one bidirectional GRU over packed sequences.

    Args:
        encoder: whose sizes and weights to use.
    """

    def __init__(self, encoder: BiGRUTextEncoder) -> None:
        super().__init__()
        assert encoder.forward_gru is not None
        assert encoder.backward_gru is not None
        self.dim, self.embed = encoder.dim, encoder.embed
        width = encoder.forward_gru.input_size
        self.gru = nn.GRU(width, encoder.dim, batch_first=True, bidirectional=True)
        weights = dict(encoder.forward_gru.state_dict())
        backward = encoder.backward_gru.state_dict().items()
        self.gru.load_state_dict(weights | {f"{name}_reverse": value for name, value in backward})

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, L) ids and (B,) lengths to (B, L, d)."""
        words = self.embed(ids)
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            self.gru(packed)[0], batch_first=True, total_length=ids.shape[1]
        )
        return states.unflatten(2, (2, -1)).mean(dim=2)


def plain_method(method: Method) -> Method:
    """Puts a method's slow parts in place of its fast ones; its weights stay."""
    plain: dict[type[Method], type[Method]] = {MVVSE: PlainMVVSE, AVSE: PlainAVSE}
    method.__class__ = plain.get(type(method), type(method))
    if isinstance(method, VSEInfinity | AVSE):
        method.pool_image = PlainGPO(cast(GPO, method.pool_image))  # type: ignore[assignment]
        method.pool_text = PlainGPO(cast(GPO, method.pool_text))  # type: ignore[assignment]
    elif isinstance(method, MVVSE):
        pools = [PlainGPO(pool) for pool in method.pool_image if isinstance(pool, GPO)]
        method.pool_image = nn.ModuleList(pools)
        method.pool_text = PlainGPO(method.pool_text) if method.pool_text else None  # type: ignore[assignment,arg-type]
    for module in method.modules():
        if isinstance(module, FeatureProjection):
            module.pad_statistics = True  # no selection of real elements
    return method
