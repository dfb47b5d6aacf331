"""The generalized pooling operator against the official one."""

from __future__ import annotations

import pytest
import torch

from models.gpo import GPO
from models.views import lengths_to_mask
from tests.golden.loading import GPO_NAMES, check, check_gradients, load, released_gpo, renamed

FILES = ("gpo_regions", "gpo_varlen", "gpo_short", "gpo_negative_scale")


@pytest.mark.parametrize("name", FILES)
def test_golden_gpo(name: str) -> None:
    data = load(name)
    gpo = released_gpo(data, "gpo.")
    features = data["features"].requires_grad_()
    mask = lengths_to_mask(data["lengths"], features.shape[1])
    theta = gpo.coefficients(data["lengths"])
    check(theta, data["pool_weights"][:, : theta.shape[1]])
    assert data["pool_weights"][:, theta.shape[1] :].abs().sum() == 0
    pooled, _ = gpo(features, mask)
    check(pooled, data["pooled"])
    (pooled * data["upstream"]).sum().backward()
    assert features.grad is not None
    check(features.grad, data["grad_features"])
    check_gradients(gpo, renamed(data, "grad.gpo.", GPO_NAMES))


@pytest.mark.parametrize("name", FILES)
def test_golden_positions(name: str) -> None:
    data = load(name)
    encoding = released_gpo(data, "gpo.")._encode_positions(
        len(data["positional_encoding"]), torch.device("cpu")
    )
    check(encoding, data["positional_encoding"])


@pytest.mark.parametrize("name", FILES)
def test_golden_constants_are_those_of_the_release(name: str) -> None:
    data, released = load(name), GPO.released()
    assert released.temperature == pytest.approx(float(data["temperature"]))
    assert released.first_position == int(data["first_position"])
