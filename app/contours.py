"""Lines along which a map passes a level: marching squares, joined to lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]
Edge = tuple[int, int, int]  # of the grid of samples: 0 to the right or 1 down, row, column

# A square of four samples has four sides: top, right, bottom, left. For each pattern of samples
# above the level (1 upper left, 2 upper right, 4 lower right, 8 lower left) the lines through the
# square, as side -> side with what is above on the left hand; two lines where opposite corners are
# above, which then stay apart.
_TOP, _RIGHT, _BOTTOM, _LEFT = range(4)
_LINES: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((_TOP, _LEFT),),
    2: ((_RIGHT, _TOP),),
    3: ((_RIGHT, _LEFT),),
    4: ((_BOTTOM, _RIGHT),),
    5: ((_TOP, _LEFT), (_BOTTOM, _RIGHT)),
    6: ((_BOTTOM, _TOP),),
    7: ((_BOTTOM, _LEFT),),
    8: ((_LEFT, _BOTTOM),),
    9: ((_TOP, _BOTTOM),),
    10: ((_RIGHT, _TOP), (_LEFT, _BOTTOM)),
    11: ((_RIGHT, _BOTTOM),),
    12: ((_LEFT, _RIGHT),),
    13: ((_TOP, _RIGHT),),
    14: ((_LEFT, _TOP),),
}


def contours(values: np.ndarray, level: float) -> list[list[Point]]:
    """The lines where values pass a level, linear between neighbouring samples.

    Args:
        values: (H, W) samples, each at the middle of its pixel.
        level: what is above it lies inside.

    Returns:
        Lines of points (x, y), relative to the width and the height. A line that closes ends where
        it began; the others end at the outermost samples.
    """
    above = values > level
    code = above[:-1, :-1] + 2 * above[:-1, 1:] + 4 * above[1:, 1:] + 8 * above[1:, :-1]
    follows: dict[Edge, Edge] = {}
    for row, column in np.argwhere((code > 0) & (code < 15)).tolist():
        sides = ((0, row, column), (1, row, column + 1), (0, row + 1, column), (1, row, column))
        for start, end in _LINES[int(code[row, column])]:
            follows[sides[start]] = sides[end]
    entered = set(follows.values())
    lines = [_walk(follows, edge) for edge in list(follows) if edge not in entered]
    while follows:  # what is left closes
        lines.append(_walk(follows, next(iter(follows))))
    return [[_crossing(values, level, edge) for edge in line] for line in lines]


def path(lines: Sequence[Sequence[Point]], size: float = 100.0) -> str:
    """Lines as the `d` of an SVG path in a box of `size` x `size`.

    >>> path([[(0.0, 0.5), (0.25, 1.0)]])
    'M0 50L25 100'
    """
    drawn = []
    for line in lines:
        points = [f"{round(x * size, 1):g} {round(y * size, 1):g}" for x, y in line]
        drawn.append("M" + "L".join(points))
    return "".join(drawn)


def _walk(follows: dict[Edge, Edge], start: Edge) -> list[Edge]:
    """Takes one line out of `follows`."""
    line = [start]
    while line[-1] in follows:
        line.append(follows.pop(line[-1]))
    return line


def _crossing(values: np.ndarray, level: float, edge: Edge) -> Point:
    """Where the level lies between the two samples of an edge."""
    down, row, column = edge
    first = float(values[row, column])
    second = float(values[row + down, column + 1 - down])
    share = (level - first) / (second - first)
    height, width = values.shape
    return (column + 0.5 + share * (1 - down)) / width, (row + 0.5 + share * down) / height
