"""Processes that work for the app beside it, and tell how far they are line by line."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
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


class Place:
    """Room for one process at a time; whoever it works for may end it. Safe to use from threads.

    Args:
        patience: see `end`.

    Attributes:
        cancelled: whether the present process, or the last, was ended by whom it works for.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self.cancelled = False
        self._patience = patience
        self._lock = threading.Lock()
        self._owner: str | None = None
        self._process: subprocess.Popen[str] | None = None

    def take(self, owner: str) -> bool:
        """Takes the place until `leave`; False where somebody has it."""
        with self._lock:
            if self._owner is not None:
                return False
            self._owner, self.cancelled = owner, False
            return True

    def leave(self) -> None:
        """Makes room for others; the process has ended."""
        with self._lock:
            self._owner = self._process = None

    def start(
        self, command: Sequence[str], folder: Path, *, held: bool = False
    ) -> subprocess.Popen[str]:
        """Starts the process of whoever has the place, see `start`."""
        process = start(command, folder, held=held)
        with self._lock:
            self._process = process
            cancelled = self.cancelled
        if cancelled:  # before it was there
            end(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        """Ends the process, with the patience that is usual here."""
        end(process, self._patience)

    def cancel(self, owner: str) -> bool:
        """Ends what works for `owner`; False where there is nothing."""
        with self._lock:
            if self._owner != owner:
                return False
            self.cancelled = True
            process = self._process
        if process is not None:
            self.end(process)
        return True


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


def said(lines: Lines, seconds: float) -> Iterator[str | None]:
    """What is said within a while, see `follow`; it ends early at the end of all."""
    patience = time.monotonic() + seconds
    while (rest := patience - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=rest)
        except queue.Empty:
            return
        yield line
        if line is None:
            return


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
