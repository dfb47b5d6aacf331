"""How the process holds its memory."""

import ctypes
import sys
from contextlib import suppress

_M_ARENA_MAX = -8  # of glibc's malloc.h
_ARENAS = 2


def few_arenas() -> None:
    """Has all threads share two arenas, on Linux with glibc; elsewhere it does nothing.

    By default each thread allocates in an arena of its own, up to eight for each processor, and
    what one has freed no other can use: half a gigabyte for the threads of this app. It must be
    called before threads allocate.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, _ARENAS)
