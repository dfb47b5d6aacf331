"""Views go through selections, devices and other changes whole."""

import pytest
import torch

from polyview.models import Views


@pytest.fixture
def views() -> Views:
    return Views(torch.randn(5, 2, 3), torch.rand(5, 2, 4), {"residuals": torch.randn(5, 2, 6)})


def test_selection_takes_everything_along(views: Views) -> None:
    some = views[torch.tensor([3, 1])]
    assert len(some) == 2
    assert some.attention is not None
    assert views.attention is not None
    assert torch.equal(some.embeddings, views.embeddings[[3, 1]])
    assert torch.equal(some.attention, views.attention[[3, 1]])
    assert torch.equal(some.extras["residuals"], views.extras["residuals"][[3, 1]])
    assert views[1:3].extras["residuals"].shape == (2, 2, 6)


def test_a_change_reaches_every_tensor(views: Views) -> None:
    halves = views.apply(lambda tensor: tensor.half())
    assert halves.attention is not None
    tensors = (halves.embeddings, halves.attention, *halves.extras.values())
    assert all(tensor.dtype == torch.float16 for tensor in tensors)
    plain = Views(views.embeddings).to("cpu")
    assert plain.attention is None
    assert not plain.extras


def test_the_view_axis_is_required() -> None:
    with pytest.raises(ValueError, match="must be \\(B, V, D\\), not \\(2, 3\\)"):
        Views(torch.zeros(2, 3))
