"""What the terminal shows of values that came from anybody."""

from __future__ import annotations

from typing import Any, TextIO

LONGEST = 8000  # characters written at once


class ShortLines:
    """A stream that cuts the middle out of what is very long, such as a value in a traceback.

    >>> import sys
    >>> len("x" * 9) == ShortLines(sys.stdout).write("x" * 9)
    xxxxxxxxxTrue
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text."""
        half = LONGEST // 2
        long = len(text) > LONGEST
        self._stream.write(f"{text[:half]} … {text[-half:]}" if long else text)
        return len(text)
