"""An image is lit where its evidence lies."""

import numpy as np
import pytest
from PIL import Image

from polyview.app.explain.lighting import spotlight


def test_a_spotlight_keeps_colours_where_evidence_is_and_tells_for_from_against() -> None:
    image = Image.new("RGB", (90, 60), (40, 200, 120))
    evidence = np.array([[0.4, 0.0, -0.4]])
    lit = np.asarray(spotlight(image, evidence, (0, 0, 1, 0.5)), int)
    assert lit[15, 2].tolist() == pytest.approx([40, 200, 120], abs=3)  # for
    assert lit[15, 45].max() < 100  # neither
    red, green, blue = lit[15, 87].tolist()
    assert red > green > blue  # against: orange
    assert lit[50].tolist() == [lit[50, 0].tolist()] * 90  # not seen by the encoder


@pytest.mark.parametrize("cell", [(0, 0), (3, 5), (6, 6)])
@pytest.mark.parametrize("smooth", [True, False])
def test_the_strongest_cell_is_the_brightest(cell: tuple[int, int], smooth: bool) -> None:
    evidence = np.full((7, 7), 0.001)
    evidence[cell] = 0.5
    lit = np.asarray(spotlight(Image.new("RGB", (140, 70), "white"), evidence, smooth=smooth))
    y, x = np.unravel_index(lit.sum(axis=-1, dtype=int).argmax(), lit.shape[:2])
    assert (y * 7 // 70, x * 7 // 140) == cell
