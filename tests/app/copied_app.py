"""Copies of a process that has imported what the app needs, which takes seconds, run the app."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path


class Copy(ForkServerProcess):
    """`python app/main.py` with arguments in a folder, with at most `files` open unless that is 0.

    What is read from the environment while modules are imported is not that of the copy.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        files: int,
    ) -> None:
        multiprocessing.set_forkserver_preload(["tests.app.preloaded"])
        given = arguments, folder, environment, log, files
        super().__init__(target=_run, args=given, daemon=True)
        self.start()

    def poll(self) -> int | None:
        """How it ended, or None while it runs."""
        return self.exitcode

    def wait(self, seconds: float) -> None:
        """Waits for its end."""
        self.join(seconds)


def _run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, files: int
) -> None:
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    from app.main import main

    sys.exit(main(arguments))
