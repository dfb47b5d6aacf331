"""Heatmaps: the brightest place is where the attention is, whatever the picture's shape."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from app.explain.heatmaps import (
    LEVELS,
    colour,
    data_uri,
    isolines,
    label,
    outline,
    overlay,
    relative,
    spotlight,
    tile,
)


def lines(path: str) -> list[np.ndarray]:
    """The lines (n, 2) of an SVG path."""
    return [
        np.array([float(n) for n in re.findall(r"[\d.]+", line)]).reshape(-1, 2)
        for line in path.split("M")[1:]
    ]


def test_a_cone_has_a_circle_at_its_height() -> None:
    y, x = np.mgrid[0:60, 0:60]
    distance = np.hypot((x + 0.5) / 60 - 0.5, (y + 0.5) / 60 - 0.5)
    (line,) = lines(outline(-distance, -0.3))
    assert line[0].tolist() == line[-1].tolist()
    radii = np.hypot(*(line - 50).T)
    assert radii == pytest.approx([30] * len(radii), abs=0.2)


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (np.zeros((4, 4)), 0),
        (np.ones((4, 4)), 0),
        (np.pad(np.ones((2, 2)), 1), 1),
        (np.pad(np.ones((8, 8)) - np.pad(np.ones((2, 2)), 3), 2), 2),  # with a hole
        (np.pad(np.eye(2), 1), 2),  # opposite corners stay apart
    ],
)
def test_lines_close_around_what_is_above(values: np.ndarray, count: int) -> None:
    found = lines(outline(values, 0.5))
    assert len(found) == count
    assert all(line[0].tolist() == line[-1].tolist() for line in found)


def test_a_line_that_leaves_the_map_stays_open() -> None:
    (line,) = lines(outline(np.tile(np.arange(4.0), (3, 1)), 1.5))
    assert line[:, 0].tolist() == [50] * 3
    assert sorted(line[:, 1]) == pytest.approx([100 / 6, 50, 500 / 6], abs=0.05)


def test_the_colours_are_those_of_cividis_and_grow_lighter_steadily() -> None:
    assert colour(np.linspace(0, 1, 5)).tolist() == [
        [0, 34, 77], [67, 78, 107], [124, 123, 120], [187, 173, 108], [253, 231, 55],
    ]  # fmt: skip
    luminance = colour(np.linspace(0, 1, 64)) @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(luminance) > -0.5).all()
    assert luminance[-1] - luminance[0] > 150


@pytest.mark.parametrize("size", [(70, 70), (140, 70), (50, 200)])
@pytest.mark.parametrize("cell", [(0, 0), (3, 5), (6, 6)])
def test_brightest_in_the_strongest_cell(size: tuple[int, int], cell: tuple[int, int]) -> None:
    attention = np.full((7, 7), 0.001, np.float32)
    attention[cell] = 0.5
    drawn = np.asarray(overlay(Image.new("RGB", size, "grey"), attention), np.float32)
    assert drawn.shape == (size[1], size[0], 3)
    y, x = np.unravel_index(drawn.sum(axis=-1).argmax(), drawn.shape[:2])
    assert (y * 7 // size[1], x * 7 // size[0]) == cell


def test_what_the_encoder_does_not_see_is_grey() -> None:
    image = Image.new("RGB", (200, 100), (200, 30, 30))
    drawn = np.asarray(overlay(image, np.ones((4, 4), np.float32), (0.25, 0.0, 0.75, 1.0)))
    outside, inside = drawn[50, 10].astype(int), drawn[50, 100].astype(int)
    assert outside.max() == outside.min()
    assert inside.max() - inside.min() > 40


def test_no_attention_is_drawn_as_none() -> None:
    image = Image.new("RGB", (8, 8), "white")
    nothing = np.asarray(overlay(image, np.zeros((2, 2), np.float32)))
    assert len(np.unique(nothing.reshape(-1, 3), axis=0)) == 1


def test_a_label_never_speaks_of_localisation() -> None:
    sentence = label("M", "what it is made of", np.zeros((2, 3), np.float32))
    assert sentence == "M: what it is made of. The brightest of 2 x 3 cells holds 0.0 %."


def test_cosines_are_not_called_shares() -> None:
    cosines = np.array([[-0.5, 0.25], [0.1, 0.0]], np.float32)
    sentence = label("M", "cosine of cell and view", cosines, shares=False)
    assert sentence == "M: cosine of cell and view. The brightest of 2 x 2 cells: 0.25."
    drawn = np.asarray(overlay(Image.new("RGB", (70, 70), "grey"), cosines), np.float32)
    y, x = np.unravel_index(drawn.sum(axis=-1).argmax(), drawn.shape[:2])
    assert (y // 35, x // 35) == (0, 1)


@pytest.mark.parametrize("cell", [(0, 0), (3, 5), (6, 6)])
@pytest.mark.parametrize("smooth", [True, False])
def test_a_tile_is_brightest_in_the_strongest_cell(cell: tuple[int, int], smooth: bool) -> None:
    attention = np.full((7, 7), 0.001, np.float32)
    attention[cell] = 0.5
    drawn = np.asarray(tile(attention, smooth=smooth), np.float32)
    assert (drawn.shape[0] > 7) == smooth
    y, x = np.unravel_index(drawn.sum(axis=-1).argmax(), drawn.shape[:2])
    assert (y * 7 // drawn.shape[0], x * 7 // drawn.shape[1]) == cell


def test_a_raw_tile_has_one_pixel_a_cell_in_the_scales_colours() -> None:
    attention = np.array([[0.2, -0.5, 0.1], [0.0, 0.05, 0.2]], np.float32)
    drawn = np.asarray(tile(attention, smooth=False))
    assert drawn.shape == (2, 3, 3)
    assert np.array_equal(drawn, colour(np.array([[1.0, 0.0, 0.5], [0.0, 0.25, 1.0]])))
    assert relative(np.full((2, 2), -1.0)).max() == 0


def test_contours_close_around_the_strongest_cell() -> None:
    attention = np.full((7, 7), 0.001, np.float32)
    attention[2, 4] = 0.5
    paths = isolines(attention)
    assert len(paths) == len(LEVELS)
    widths = []
    for drawn in paths:
        points = np.array([float(n) for n in re.findall(r"[\d.]+", drawn)]).reshape(-1, 2)
        middle = (points.max(axis=0) + points.min(axis=0)) / 2
        assert middle == pytest.approx([100 * 4.5 / 7, 100 * 2.5 / 7], abs=1.0)
        widths.append(np.ptp(points[:, 0]))
    assert widths[0] > widths[1] > widths[2] > 0


def test_a_data_uri_holds_the_picture() -> None:
    image = tile(np.random.default_rng(0).random((3, 4)), smooth=False)
    head, _, body = data_uri(image).partition(",")
    assert head == "data:image/png;base64"
    held = Image.open(io.BytesIO(base64.b64decode(body)))
    assert np.array_equal(np.asarray(held), np.asarray(image))
    assert data_uri(image, "WEBP").startswith("data:image/webp;base64,")


def test_a_spotlight_keeps_colours_where_evidence_is_and_tells_for_from_against() -> None:
    image = Image.new("RGB", (90, 60), (40, 200, 120))
    evidence = np.array([[0.4, 0.0, -0.4]])
    lit = np.asarray(spotlight(image, evidence, 0.4, (0, 0, 1, 0.5)), int)
    assert lit[15, 2].tolist() == pytest.approx([40, 200, 120], abs=3)  # for
    assert lit[15, 45].max() < 100  # neither
    red, green, blue = lit[15, 87].tolist()
    assert red > green > blue  # against: orange
    assert lit[50].tolist() == [lit[50, 0].tolist()] * 90  # not seen by the encoder
    assert np.asarray(spotlight(image, evidence, 0.8), int)[30, 2].max() < 200  # half as strong
