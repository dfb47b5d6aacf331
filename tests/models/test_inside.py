"""What methods show of themselves agrees with what they compute."""

import pytest
import torch

from models import Method
from models.panel import Knob, Panel
from tests.papers.terms import encoded


@torch.no_grad()
def test_every_method_answers_with_finite_panels(method: Method) -> None:
    images, texts = encoded(method)
    for panels in (method.inside(images), method.inside(images, texts)):
        for panel in panels:
            assert bool(panel.values.isfinite().all())
            for row, column in panel.marks:
                assert row < len(panel.rows)
                assert column < len(panel.columns)
            if panel.limits is not None:
                low, high = panel.limits
                assert low - 1e-5 <= float(panel.values.min())
                assert float(panel.values.max()) <= high + 1e-5


@pytest.mark.parametrize("value", [0, 51, 2.5, True, "three", None])
def test_a_number_out_of_range_is_refused(value: object) -> None:
    knob = Knob("iterations", "Iterations", 20, low=1, high=50)
    assert knob.read({}) == 20
    with pytest.raises(ValueError, match="iterations must be a whole number from 1 to 50"):
        knob.read({"iterations": value})  # type: ignore[dict-item]


def test_panels_refuse_values_without_names() -> None:
    with pytest.raises(ValueError, match='"x" names'):
        Panel("matrix", "x", "", torch.zeros(2, 2), ("a", "b"), ("a",))
