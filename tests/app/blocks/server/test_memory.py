"""Threads share few of glibc's arenas, and what is freed goes back."""

import platform
import subprocess
import sys

import pytest

# Each of 12 threads allocates and stays; an arena is mapped for each that may have its own.
PROGRAM = """
import ctypes, sys, threading
if sys.argv[1] == "few":
    from app.blocks.server.memory import few_arenas
    few_arenas()
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = ctypes.c_void_p
ready, over = threading.Barrier(13), threading.Event()
def hold():
    libc.malloc(1000)
    ready.wait()
    over.wait()
threads = [threading.Thread(target=hold, daemon=True) for _ in range(12)]
for thread in threads: thread.start()
ready.wait()
class File(ctypes.Structure): pass
stream = ctypes.POINTER(File)
libc.open_memstream.restype = stream
text, size = ctypes.c_char_p(), ctypes.c_size_t()
out = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
libc.malloc_info(0, ctypes.cast(out, ctypes.c_void_p))
libc.fclose(ctypes.cast(out, ctypes.c_void_p))
print(text.value.decode().count("<heap nr="))
over.set()
"""

# Small blocks are freed below one that stays, so that they cannot be given back from the top.
FREED = """
import ctypes
from pathlib import Path
from app.blocks.server.memory import trim
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256  # MB
blocks = [libc.malloc(50_000) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, 50_000)
libc.malloc(50_000)
for block in blocks:
    libc.free(block)
before = held()
trim()
print(before - held())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc")
def test_freed_memory_goes_back() -> None:
    found = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True)
    assert int(found.stdout) > 60  # of 95 MB


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc")
def test_threads_share_arenas() -> None:
    few, many = (
        int(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True
            ).stdout
        )
        for how in ("few", "usual")
    )
    assert few <= 2 < many
