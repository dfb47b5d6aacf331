"""GPO against the naive loops, and as the poolings it generalises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.gpo import GPO, build_pooling
from tests import reference


@pytest.fixture(params=["paper", "release"])
def gpo(request: pytest.FixtureRequest) -> GPO:
    torch.manual_seed(0)
    return GPO() if request.param == "paper" else GPO.released()


def test_equals_the_naive_loops(gpo: GPO) -> None:
    features = torch.randn(4, 7, 5)
    sizes = [7, 1, 3, 3]
    mask = torch.arange(7) < torch.tensor(sizes)[:, None]
    pooled, _ = gpo(features, mask)
    for b, size in enumerate(sizes):
        expected = reference.gpo_pool(gpo, features[b, :size])
        torch.testing.assert_close(pooled[b], expected, rtol=1e-5, atol=1e-6)


def test_real_elements_may_stand_anywhere(gpo: GPO) -> None:
    features = torch.randn(1, 5, 3)
    mask = torch.tensor([[False, True, False, True, True]])
    pooled, shares = gpo(features, mask, shares=True)
    expected, front = gpo(features[:, [1, 3, 4]], torch.ones(1, 3, dtype=torch.bool), shares=True)
    torch.testing.assert_close(pooled, expected)
    torch.testing.assert_close(shares[:, [1, 3, 4]], front)


def test_coefficients_sum_to_one_and_depend_on_the_size(gpo: GPO) -> None:
    theta = gpo.coefficients(torch.tensor([2, 5, 2]))
    torch.testing.assert_close(theta.sum(1), torch.ones(3))
    assert theta[0, 2:].abs().max() == 0
    assert torch.equal(theta[0], theta[2])
    assert not torch.allclose(theta[0, :2], theta[1, :2])


def test_generator_runs_once_for_each_distinct_size(gpo: GPO) -> None:
    rows: list[int] = []
    gpo.gru.register_forward_hook(lambda _m, _i, out: rows.append(int(out[0].batch_sizes[0])))
    gpo.coefficients(torch.tensor([4] * 50 + [7] * 50))
    assert rows == [2]


def test_coefficients_are_generated_again_when_the_weights_change(gpo: GPO) -> None:
    runs: list[int] = []
    gpo.gru.register_forward_hook(lambda *_: runs.append(1))
    sizes = torch.tensor([3, 6, 3]), torch.tensor([6, 4])
    with torch.inference_mode():
        kept = [gpo.coefficients(some) for some in (*sizes, *sizes)]
    assert len(runs) == 2  # 3 and 6, then 4
    for some, theta in zip((*sizes, *sizes), kept, strict=True):
        torch.testing.assert_close(theta, gpo.coefficients(some).detach())
    with torch.no_grad():
        next(gpo.gru.parameters()).mul_(3)
        changed = gpo.coefficients(sizes[0])
        assert not torch.allclose(changed, kept[0])
    optimizer = torch.optim.AdamW(gpo.parameters(), lr=0.1, fused=True)
    gpo.coefficients(sizes[0])[0, 0].backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.allclose(gpo.coefficients(sizes[0]), changed)


def _constant_scores(gpo: GPO, values: list[float]) -> None:
    """Replaces the generator's scores by fixed ones."""

    class Fixed(nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return torch.tensor(values)[None, :, None].expand(states.shape[0], -1, 1)

    gpo.score = Fixed()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], lambda x: x.mean(1)),  # AvgPool
        ([99.0, 0.0, 0.0, 0.0], lambda x: x.amax(1)),  # MaxPool
        ([99.0, 99.0, 0.0, 0.0], lambda x: x.topk(2, dim=1).values.mean(1)),  # K-MaxPool
    ],
)
def test_generalises_the_fixed_poolings(gpo: GPO, values: list[float], expected: object) -> None:
    _constant_scores(gpo, values)
    features = torch.randn(2, 4, 6)
    pooled, _ = gpo(features, torch.ones(2, 4, dtype=torch.bool))
    torch.testing.assert_close(pooled, expected(features))  # type: ignore[operator]


def test_shares_add_up_to_the_squared_length() -> None:
    gpo = GPO.released()
    features = torch.rand(1, 6, 4)  # positive, so that nothing pulls the other way
    with torch.no_grad():
        pooled, shares = gpo(features, torch.ones(1, 6, dtype=torch.bool), shares=True)
        theta = gpo.coefficients(torch.tensor([6]))[0]
    order = features[0].argsort(dim=0, descending=True)
    for n in range(6):
        part = sum(
            float(theta[k] * features[0, n, i] * pooled[0, i])
            for i in range(4)
            for k in range(6)
            if order[k, i] == n
        )
        assert float(shares[0, n]) == pytest.approx(part / float(pooled.square().sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mean", lambda x: x.mean(dim=0)),
        ("max", lambda x: x.amax(dim=0)),
        ("kmax", lambda x: x.topk(min(2, len(x)), dim=0).values.mean(dim=0)),
    ],
)
def test_fixed_poolings_by_rank(kind: str, expected: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    features = torch.randn(3, 5, 4)
    mask = torch.arange(5) < torch.tensor([5, 1, 3])[:, None]
    pooling = build_pooling(kind, 2, released=False)
    pooled, _ = pooling(features, mask)
    for b in range(3):
        torch.testing.assert_close(pooled[b], expected(features[b, mask[b]]))
    assert not list(pooling.parameters())
    assert not pooling.state_dict()


def test_poolings_by_name() -> None:
    assert isinstance(build_pooling("gpo", 20, released=True), GPO)
    with pytest.raises(ValueError, match="pooling must be one of gpo, mean, max, kmax, not"):
        build_pooling("median", 20, released=False)
    with pytest.raises(ValueError, match="pool_count must be 1 or more, not 0"):
        build_pooling("kmax", 0, released=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"position_dim": 3}, "must be even"), ({"temperature": 0.0}, "must be positive")],
)
def test_nonsense_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPO(**arguments)  # type: ignore[arg-type]
