"""Views go through selections and other changes whole."""

import pytest
import torch

from polyview.models import Views


def test_a_selection_takes_everything_along() -> None:
    views = Views(torch.randn(5, 2, 3), torch.rand(5, 2, 4), {"residuals": torch.randn(5, 2, 6)})
    some = views[torch.tensor([3, 1])]
    assert len(some) == 2
    for part, whole in (
        (some.embeddings, views.embeddings),
        (some.attention, views.attention),
        (some.extras["residuals"], views.extras["residuals"]),
    ):
        assert part is not None
        assert whole is not None
        assert torch.equal(part, whole[[3, 1]])
    with pytest.raises(ValueError, match=r"must be \(B, V, D\), not \(2, 3\)"):
        Views(torch.zeros(2, 3))
