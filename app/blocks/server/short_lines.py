"""What the terminal shows of values that came from anybody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TextIO

LONGEST = 8000  # characters written at once
MINUTE = 1_000_000  # characters written in a minute


class ShortLines:
    """A stream that cuts the middle out of what is very long, such as a value in a traceback.

    What comes after too much in a minute, such as a crowd's tracebacks, is left out.

    >>> import sys
    >>> len("x" * 9) == ShortLines(sys.stdout).write("x" * 9)
    xxxxxxxxxTrue
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._since, self._left = clock(), MINUTE

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text."""
        if self._clock() - self._since >= 60:
            self._since, self._left = self._clock(), MINUTE
        if self._left <= 0:
            return len(text)
        half = LONGEST // 2
        shown = f"{text[:half]} … {text[-half:]}" if len(text) > LONGEST else text
        self._left -= len(shown)
        if self._left <= 0:
            shown += "\n… more than this is not shown within a minute\n"
        self._stream.write(shown)
        return len(text)
