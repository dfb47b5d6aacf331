"""Regularising losses against the loops written from their equations."""

from __future__ import annotations

import pytest
import torch

from tests import reference
from training.objectives.avse import dimension_wise
from training.objectives.mvam import attention_overlap
from training.objectives.pvse import gram_diversity, maximum_mean_discrepancy


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("views", [1, 2, 4])
def test_diversity_equals_the_loop(views: int) -> None:
    residuals = torch.rand(5, views, 7)
    got = gram_diversity(residuals).item()
    assert got == pytest.approx(reference.gram_diversity(residuals), abs=1e-5)
    # the Frobenius norm is at least the 2-norm
    assert gram_diversity(residuals, released=True).item() >= got - 1e-6


def test_orthogonal_views_have_no_redundancy() -> None:
    assert gram_diversity(torch.eye(3)[None]).item() == pytest.approx(0.0, abs=1e-6)
    one = torch.rand(2, 1, 4, requires_grad=True)
    for released in (True, False):
        gram_diversity(one, released=released).backward()
    assert one.grad is not None
    assert torch.isfinite(one.grad).all()


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_discrepancy_equals_the_loop(gamma: float) -> None:
    images, texts = torch.randn(4, 2, 5), torch.randn(4, 2, 5)
    got = maximum_mean_discrepancy(images, texts, gamma).item()
    assert got == pytest.approx(reference.mean_discrepancy(images, texts, gamma), abs=1e-6)


@pytest.mark.parametrize("released", [True, False])
def test_equal_rows_have_no_discrepancy_and_a_finite_gradient(released: bool) -> None:
    images = torch.randn(4, 2, 5, requires_grad=True)
    texts = images.detach().clone()
    loss = maximum_mean_discrepancy(images, texts, released=released)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()


def test_nearly_equal_rows_keep_their_distance() -> None:
    images = torch.randn(1, 1, 512)
    texts = images + 1e-4
    distance = 1e-4 * 512**0.5
    expected = 2 - 2 * float(torch.exp(torch.tensor(-0.5 * distance)))
    got = maximum_mean_discrepancy(images, texts, released=True).item()
    assert got == pytest.approx(expected, rel=1e-2)


def test_dimension_wise_equals_the_loop() -> None:
    first, second = torch.randn(6, 4), torch.randn(6, 4)
    got = dimension_wise(first, second, 0.01).item()
    assert got == pytest.approx(reference.dimension_wise(first, second, 0.01), abs=1e-5)


def test_equal_views_with_uncorrelated_dimensions_cost_nothing() -> None:
    views = torch.linalg.qr(torch.randn(8, 4)).Q
    assert dimension_wise(views, views).item() == pytest.approx(0.0, abs=1e-6)
    assert dimension_wise(views, views, released=True).item() > 1


@pytest.mark.parametrize("square_root", [True, False])
def test_overlap_equals_the_loop(square_root: bool) -> None:
    attention = torch.rand(3, 4, 6).softmax(dim=2)
    got = attention_overlap(attention, square_root=square_root).item()
    assert got == pytest.approx(reference.attention_overlap(attention, square_root), abs=1e-5)


def test_padding_has_a_finite_gradient_under_the_root() -> None:
    scores = torch.randn(2, 3, 5, requires_grad=True)
    padding = torch.tensor([False, False, False, True, True])
    attention = scores.masked_fill(padding, -torch.inf).softmax(dim=2)
    attention_overlap(attention, square_root=True).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad.abs().sum() > 0
