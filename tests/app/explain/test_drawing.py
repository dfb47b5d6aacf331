"""An image is shaded where its evidence lies."""

import numpy as np
import pytest
from PIL import Image

from polyview.app.explain.evidence import darken


def test_positive_evidence_keeps_its_colours_and_negative_evidence_is_orange() -> None:
    image = Image.new("RGB", (90, 60), (40, 200, 120))
    evidence = np.array([[0.4, 0.0, -0.4]])
    shaded = np.asarray(darken(image, evidence, (0, 0, 1, 0.5)), int)
    assert shaded[15, 2].tolist() == pytest.approx([40, 200, 120], abs=3)  # for
    assert shaded[15, 45].max() < 100  # neither
    red, green, blue = shaded[15, 87].tolist()
    assert red > green > blue  # against: orange
    assert shaded[50].tolist() == [shaded[50, 0].tolist()] * 90  # not seen by the encoder


@pytest.mark.parametrize("cell", [(0, 0), (3, 5), (6, 6)])
def test_the_strongest_cell_is_the_brightest(cell: tuple[int, int]) -> None:
    evidence = np.full((7, 7), 0.001)
    evidence[cell] = 0.5
    shaded = np.asarray(darken(Image.new("RGB", (140, 70), "white"), evidence))
    y, x = np.unravel_index(shaded.sum(axis=-1, dtype=int).argmax(), shaded.shape[:2])
    assert (y * 7 // 70, x * 7 // 140) == cell
