"""Sinkhorn with a dustbin: against the loop, marginals, and both ways of computing it."""

from __future__ import annotations

import pytest
import torch

from models.sinkhorn import log_plan, match_blocks
from tests import reference


@pytest.fixture
def affinity() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.rand(4, 3, 50) * 2 - 1


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_plans_equal_the_loop(affinity: torch.Tensor, iterations: int) -> None:
    z = torch.tensor(0.4)
    log, fast = log_plan(affinity, z, iterations), match_blocks(affinity, z, iterations)
    for pair in (0, 17):
        expected = torch.tensor(reference.sinkhorn(affinity[..., pair], 0.4, iterations))
        torch.testing.assert_close(log[..., pair].exp(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fast[..., pair], expected[:-1, :-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_marginals_after_convergence(affinity: torch.Tensor, temperature: float) -> None:
    plan = log_plan(affinity.double(), torch.tensor(0.3).double(), 500, temperature).exp()
    rows, columns = torch.tensor([1.0, 1, 1, 1, 3]), torch.tensor([1.0, 1, 1, 4])
    torch.testing.assert_close(plan.sum(dim=1), rows.double()[:, None].expand(-1, 50))
    torch.testing.assert_close(plan.sum(dim=0), columns.double()[:, None].expand(-1, 50))
    matched = match_blocks(affinity, torch.tensor(0.3), 500, temperature)
    assert (matched.sum(dim=1) <= 1 + 1e-5).all()
    assert (matched.sum(dim=0) <= 1 + 1e-5).all()


@pytest.mark.parametrize(("z", "temperature"), [(0.0, 1.0), (2.0, 0.3), (-1.0, 0.08), (0.5, 0.01)])
def test_both_computations_agree_in_value_and_gradient(
    affinity: torch.Tensor, z: float, temperature: float
) -> None:
    upstream = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(0))
    results = []
    for compute in (match_blocks, lambda *a: log_plan(*a)[:-1, :-1].exp()):
        given = affinity.clone().requires_grad_()
        bin_ = torch.tensor(z, requires_grad=True)
        plan = compute(given, bin_, 20, temperature)
        (plan * upstream).sum().backward()
        results.append((plan, given.grad, bin_.grad))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 / temperature)


def test_an_early_end_changes_nothing_that_float32_can_tell(affinity: torch.Tensor) -> None:
    exact = log_plan(affinity.double(), torch.tensor(0.0).double(), 20)[:-1, :-1].exp()
    got = match_blocks(affinity, torch.tensor(0.0), 20)
    assert float((got.double() - exact).abs().max()) < 1e-6


def test_a_greedy_dustbin_takes_the_mass(affinity: torch.Tensor) -> None:
    masses = [float(match_blocks(affinity, torch.tensor(z)).sum()) for z in (-3.0, 0.0, 3.0)]
    assert masses[0] > masses[1] > masses[2]
