"""What the terminal shows of long and of many lines."""

from __future__ import annotations

import io

from app.blocks.server.short_lines import LONGEST, MINUTE, ShortLines
from tests.app.blocks.server.test_limits import Clock


def test_long_lines_lose_their_middle() -> None:
    out = io.StringIO()
    ShortLines(out).write("a" + "x" * 10 * LONGEST + "z")
    assert len(out.getvalue()) == LONGEST + 3
    assert (out.getvalue()[0], out.getvalue()[-1]) == ("a", "z")


def test_a_minute_has_so_many() -> None:
    out, clock = io.StringIO(), Clock()
    lines = ShortLines(out, clock)
    for _ in range(3 * MINUTE // 1000):
        assert lines.write("x" * 1000) == 1000
    assert MINUTE <= len(out.getvalue()) < MINUTE + 100
    clock.now += 60
    lines.write("again")
    assert out.getvalue().endswith("again")
