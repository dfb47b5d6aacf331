"""How fast the app starts, and what it holds then: `python -m benchmarks.start --against COMMIT`.

Starts the app over a bundled pack, each time with an empty cache, and waits for the first page, for
the first answer after it, and until everything is read; the memory (RSS) is that of five seconds
later. A commit to compare with takes turns with this version, out of a folder of its own and with
the same Python, so that a machine whose speed drifts treats both alike. Prints medians and ranges.
Linux only.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from io import BytesIO
from pathlib import Path

from app.settings import BUNDLED
from benchmarks.many_users import (
    ROOT,
    Question,
    connect,
    running,
    seconds_until_page,
    seconds_until_ready,
)
from benchmarks.soak import look
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.sessions import processor

_IDLE = 5.0  # seconds after all is read


@dataclass(frozen=True)
class Start:
    """One start.

    Attributes:
        page: seconds until the first page came.
        work: seconds that processors worked for it, which other programs do not lengthen much.
        answer: from there to the first answer.
        ready: from there until everything was read.
        memory: RSS of the idle app, MB.
    """

    page: float
    work: float
    answer: float
    ready: float
    memory: float


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start")
    parser.add_argument("--pack", default="scenes", help="a bundled one")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--against", metavar="COMMIT", help="that takes turns with this version")
    given = parser.parse_args(argv)
    if given.starts < 1:
        parser.error(f"--starts must be at least 1, not {given.starts}")
    print(
        f"{given.pack}, {processor()}, {os.cpu_count()} cores, "
        f"load at the start {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        roots = {"this version": ROOT}
        if given.against:
            roots[given.against] = _extracted(given.against, Path(folder))
        starts: dict[str, list[Start]] = {name: [] for name in roots}
        for number in range(given.starts + 1):
            for name, root in roots.items():
                one = start(root, given.pack)
                if number:  # the first start compiles what the others find compiled
                    starts[name].append(one)
                    print(f"{name}: " + ", ".join(f"{value:.1f}" for value in astuple(one)))
    print(
        f"| {given.starts} starts | page, s | its CPU, s | answer, s | all read, s | idle RSS, MB |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for name, measured in starts.items():
        cells = []
        for field in fields(Start):
            values = [getattr(one, field.name) for one in measured]
            low, high = min(values), max(values)
            cells.append(f"{statistics.median(values):.1f} ({low:.1f} to {high:.1f})")
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return 0


def start(root: Path, pack: str) -> Start:
    """Starts a version of the app once."""
    bundled = BUNDLED / pack
    question = Question(
        load_gallery(bundled).captions[0].text, next(iter(load_info(bundled).methods))
    )
    began = time.perf_counter()
    with running(root / "app" / "bundled" / pack, "cpu", root) as app:
        seconds_until_page(app.port)
        page, work = time.perf_counter(), _worked(app.process)
        connect(app.port)(question)
        answer = time.perf_counter()
        seconds_until_ready(app.port)
        ready = time.perf_counter()
        time.sleep(_IDLE)
        memory = look(app, 0, 0).memory
    return Start(page - began, work, answer - page, ready - page, memory)


def _worked(process: int) -> float:
    """Seconds that a process has computed so far."""
    fields_of_stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields_of_stat[11]) + int(fields_of_stat[12])) / os.sysconf("SC_CLK_TCK")


def _extracted(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "app", "models", "export", "training"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
