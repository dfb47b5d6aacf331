"""Work beside the app, each in a process of its own that tells how far it is.

Such a process writes JSON objects on its stderr, one a line: for a step
{"done": 1, "total": 9, "doing": "..."}, and any other for what it results in. Other lines are
complaints.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # holds `export/`, and `training/` where it is there
_GIVE_WAY = 5  # niceness: visitors' questions come first
_PAUSE = 0.5  # seconds between two signs of life
_LONGEST = 500  # characters of a complaint


class JobError(ValueError):
    """It was not begun, or failed; the message is a sentence."""


class FailedError(JobError):
    """Its process ended with `status`, not 0; the message is its last complaint."""

    def __init__(self, complaint: str, status: int) -> None:
        super().__init__(complaint)
        self.status = status


class CancelledError(JobError):
    """Somebody ended it."""


@dataclass(frozen=True)
class Step:
    """A sign of life: `done` of `total` (0 of 0: not counted), doing what, seconds so far."""

    done: int
    total: int
    doing: str
    seconds: float

    @property
    def percent(self) -> int:
        """How much is done."""
        return 100 * self.done // max(1, self.total)


class Job:
    """Runs one process at a time; whoever it works for may end it. Safe to use from threads.

    Args:
        patience: seconds that a process has to tidy up before it is killed.

    Attributes:
        last: the latest sign of life.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self.last = Step(0, 0, "", 0.0)
        self._patience = patience
        self._lock = threading.Lock()
        self._owner: str | None = None
        self._cancelled = False
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        owner: str,
        busy: str,
        *,
        held: bool = False,
        tidy: Callable[[], object] = lambda: None,
    ) -> Generator[Step, None, dict[str, Any]]:
        """Runs a process; closing the iterator before its end ends the process and all it started.

        Args:
            command: the program and its arguments.
            folder: where it runs.
            owner: who may cancel it.
            busy: the sentence for whoever comes while another one runs.
            held: its standard input stays open as long as the app lives, so that it can end with
                it.
            tidy: called once the process has ended, however it did.

        Yields:
            Steps, at least one in a second.

        Returns:
            What it results in.

        Raises:
            JobError: another one is running.
            FailedError: it failed.
            CancelledError: it was cancelled.
        """
        with self._lock:
            if self._owner is not None:
                raise JobError(busy)
            self._owner, self._cancelled = owner, False
            self.last = Step(0, 0, "Starting", 0.0)
        try:
            return (yield from self._follow(command, folder, held, tidy))
        finally:
            with self._lock:
                self._owner = self._process = None

    def cancel(self, owner: str) -> bool:
        """Ends what works for `owner`; False where there is nothing."""
        with self._lock:
            if self._owner != owner:
                return False
            self._cancelled = True
            process = self._process
        if process is not None:
            _end(process, self._patience)
        return True

    def _follow(
        self, command: Sequence[str], folder: Path, held: bool, tidy: Callable[[], object]
    ) -> Generator[Step, None, dict[str, Any]]:
        began = time.monotonic()
        process = _start(command, folder, held)
        with self._lock:
            self._process = process
            cancelled = self._cancelled
        if cancelled:  # before it was there
            _end(process)
        lines, ended = _lines(process), False
        result: dict[str, Any] = {}
        complaint = "it said nothing"
        try:
            while not ended:
                step = self.last
                for line in _within(lines, _PAUSE):
                    message = None if line is None else _parse(line)
                    if line is None:
                        ended = True
                    elif message is None:
                        complaint = line.strip()[:_LONGEST] or complaint
                    elif isinstance(message, Step):
                        step = message
                    else:
                        result |= message
                self.last = replace(step, seconds=time.monotonic() - began)
                yield self.last
            status = process.wait()
        finally:
            _end(process, self._patience)
            tidy()
        if self._cancelled:
            raise CancelledError(f"Cancelled after {time.monotonic() - began:.0f} s")
        if status:
            raise FailedError(complaint, status)
        return result


def _parse(line: str) -> Step | dict[str, Any] | None:
    """What a line tells; None for a complaint."""
    try:
        message = json.loads(line)
        if "doing" in message:
            return Step(int(message["done"]), int(message["total"]), str(message["doing"]), 0.0)
    except (ValueError, KeyError, TypeError):
        return None
    return message if isinstance(message, dict) else None


def _start(command: Sequence[str], folder: Path, held: bool) -> subprocess.Popen[str]:
    """Starts a process whose stderr is read, with what it prints otherwise thrown away."""
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


def _lines(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """What a process says on stderr, line by line; None at the end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed while reading
            for line in process.stderr or ():
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _within(lines: queue.Queue[str | None], seconds: float) -> Iterator[str | None]:
    """What is said within a while, see `_lines`; it ends early at the end of all."""
    patience = time.monotonic() + seconds
    while (rest := patience - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=rest)
        except queue.Empty:
            return
        yield line
        if line is None:
            return


def _end(process: subprocess.Popen[str], patience: float = 0.0) -> None:
    """Ends a process and all it started, after `patience` seconds; nothing where it has ended."""
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
