"""Processes that work for the app beside it, and tell how far they are line by line."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

_GIVE_WAY = 5  # niceness: visitors' questions come first

Lines = queue.Queue[str | None]


def start(command: Sequence[str], folder: Path, *, held: bool = False) -> subprocess.Popen[str]:
    """Starts a process whose stderr is read, with what it prints otherwise thrown away.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        held: its standard input stays open as long as the app lives, so that it can end with it.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE if held else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a group of its own, so that all of it can be killed
    )
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _GIVE_WAY)
    return process


def follow(process: subprocess.Popen[str]) -> Lines:
    """What a process says on stderr, line by line; None at the end."""
    lines: Lines = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed while reading
            for line in process.stderr or ():
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def end(process: subprocess.Popen[str], patience: float = 0.0) -> None:
    """Ends a process and all it started; nothing where it has ended.

    Args:
        process: from `start`.
        patience: seconds that it has to tidy up before it is killed.
    """
    if process.poll() is None and patience and os.name == "posix":
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
