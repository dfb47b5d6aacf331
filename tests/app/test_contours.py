"""Contours pass where the values pass the level, and close around what is above it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from app.contours import contours, path


def area(line: list[tuple[float, float]]) -> float:
    """Of a closed line, positive where it runs against the clock on the page."""
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(line)) / 2


def test_a_cone_has_a_circle_at_its_height() -> None:
    y, x = np.mgrid[0:60, 0:60]
    distance = np.hypot((x + 0.5) / 60 - 0.5, (y + 0.5) / 60 - 0.5)
    (line,) = contours(-distance, -0.3)
    assert line[0] == line[-1]
    radii = [math.hypot(px - 0.5, py - 0.5) for px, py in line]
    assert radii == pytest.approx([0.3] * len(radii), abs=0.002)
    assert abs(area(line)) == pytest.approx(math.pi * 0.09, rel=0.01)


def test_a_hole_runs_the_other_way() -> None:
    ring = np.zeros((12, 12))
    ring[2:10, 2:10] = 1.0
    ring[5:7, 5:7] = 0.0
    areas = sorted(area(line) for line in contours(ring, 0.5))
    assert len(areas) == 2
    assert areas[0] < 0 < areas[1]


def test_a_line_that_leaves_the_map_stays_open() -> None:
    ramp = np.tile(np.arange(4.0), (3, 1))
    (line,) = contours(ramp, 1.5)
    assert [x for x, _ in line] == [0.5] * 3
    assert sorted(y for _, y in line) == pytest.approx([1 / 6, 0.5, 5 / 6])


def test_opposite_corners_stay_apart() -> None:
    for corners in ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]):
        values = np.pad(np.array(corners), 1)
        lines = contours(values, 0.5)
        assert len(lines) == 2
        assert all(line[0] == line[-1] for line in lines)


def test_every_line_of_a_noisy_map_is_walked_once() -> None:
    values = np.random.default_rng(3).random((30, 40))
    lines = contours(values, 0.5)
    above = values > 0.5
    crossings = (above[1:] != above[:-1]).sum() + (above[:, 1:] != above[:, :-1]).sum()
    points = sum(len(line) - (line[0] == line[-1]) for line in lines)
    assert points == crossings


def test_nothing_above_is_no_line() -> None:
    assert contours(np.zeros((4, 4)), 0.5) == []
    assert contours(np.ones((4, 4)), 0.5) == []
    assert path([]) == ""
