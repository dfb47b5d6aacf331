"""How the process holds its memory: on Linux with glibc, elsewhere nothing here does anything."""

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's malloc.h
_ARENAS = 2
_LARGE = 4 * 2**20  # bytes
_EVERY = 60.0  # seconds between two times that memory is given back


def few_arenas() -> None:
    """Has all threads share two arenas, and large blocks lie outside of them.

    By default each thread allocates in an arena of its own, up to eight for each processor, and
    what one has freed no other can use: half a gigabyte for the threads of this app. And once a
    large block was freed, others of its size come to lie within arenas, where they leave gaps. It
    must be called before threads allocate.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def trim() -> None:
    """Gives freed pages back, which glibc keeps where something in use lies above them."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def keep_trimmed(filled: Callable[[float], bool]) -> None:
    """Calls `trim` every minute, in a thread of its own, for as long as the process lives.

    Args:
        filled: waits so many seconds for what fills the memory first; True once that is over, when
            `trim` is called at once.
    """

    def work() -> None:
        while not filled(_EVERY):
            trim()
        trim()
        pause = threading.Event()
        while not pause.wait(_EVERY):
            trim()

    if _glibc() is not None:
        threading.Thread(target=work, name="trim", daemon=True).start()


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library; None where it is another one."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            if libc.mallopt and libc.malloc_trim:
                return libc
    return None
