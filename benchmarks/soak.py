"""What the app grows by while it is used: `python -m benchmarks.soak --minutes 30`.

Starts the app, and for the given time lets these go on beside one another, each as fast as it is
answered: programs that ask by gradio without a session, programs that ask over plain HTTP, uploads
that are searched with, and a browser that loads the page and asks there, each time as a new
visitor. Prints every minute the memory (RSS), threads, open files and files on disk of the app, and
how many calls there were. The growth is that of a straight line through the memory after the first
tenth of the time, and after the first third: by then, in half an hour, all that is bounded is full,
such as the files of 5,000 uploads. With `--calls`, one program then asks so often in a row. Linux
only. Ends with 1 where the memory grew by more than --most percent after the first third.
"""

import argparse
import contextlib
import http.client
import io
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image

from app.settings import BUNDLED
from benchmarks.many_users import (
    HOST,
    App,
    AskError,
    Question,
    connect,
    running,
    seconds_until_page,
    seconds_until_ready,
)
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.sessions import processor
from models.files import write_whole

_WAIT = 120.0  # seconds for an answer
_WARM = {"tenth": 0.1, "third": 1 / 3}  # of the time, which does not count; the last one decides


@dataclass(frozen=True)
class Sample:
    """The app at one moment.

    Attributes:
        seconds: since the beginning.
        calls: that were answered until then.
        memory: RSS, MB.
        threads: how many there are.
        files: that are open.
        disk: files below its folder.
    """

    seconds: float
    calls: int
    memory: float
    threads: int
    files: int
    disk: int


def growth(samples: Sequence[Sample], warm: float) -> tuple[float, float]:
    """How fast the memory grows, by least squares over the samples after the warm-up.

    Returns:
        Percent of the memory at the beginning, over the whole time; MB in a thousand calls.

    >>> later = [Sample(60 * i, 1000 * i, 500 + i, 40, 90, 10) for i in range(11)]
    >>> growth(later, warm=0)
    (2.0, 1.0)
    """
    last = samples[-1].seconds
    counted = [sample for sample in samples if sample.seconds >= warm * last]
    memory = np.array([sample.memory for sample in counted])
    calls = np.array([sample.calls for sample in counted], np.float64)
    slope, start = np.polyfit(calls, memory, 1)
    grown = 100 * slope * (calls[-1] - calls[0]) / (start + slope * calls[0])
    return round(float(grown), 6), round(float(1000 * slope), 6)


def look(app: App, seconds: float, calls: int) -> Sample:
    """Measures the app now."""
    about = Path(f"/proc/{app.process}")
    status = dict(row.split(":", 1) for row in (about / "status").read_text().splitlines())
    return Sample(
        seconds,
        calls,
        int(status["VmRSS"].split()[0]) / 1024,
        int(status["Threads"]),
        len(list((about / "fd").iterdir())),
        sum(len(files) for _, _, files in os.walk(app.folder)),  # some go meanwhile
    )


def soak(
    app: App, pack: Path, minutes: float, browser: bool, every: float = 60.0
) -> Iterator[Sample]:
    """Uses the app for so long; gives a sample each time `every` seconds are over.

    Raises:
        AskError: somebody was given no answer.
    """
    calls, errors, over = Counter[str](), list[str](), threading.Event()
    users: list[Callable[[], None]] = [
        _asking(app, pack, plain=False),
        _asking(app, pack, plain=True),
        _uploading(app),
    ]

    def use(user: Callable[[], None], name: str) -> None:
        while not over.is_set():
            try:
                user()
            except (AskError, OSError, http.client.HTTPException) as error:
                errors.append(f"{name}: {type(error).__name__}: {error}")
                return
            calls[name] += 1

    names = ("gradio", "HTTP", "uploads")
    crew = [threading.Thread(target=use, args=pair) for pair in zip(users, names, strict=True)]
    if browser:
        crew.append(threading.Thread(target=_visiting, args=(app, over, calls, errors)))
    start = time.monotonic()
    for one in crew:
        one.start()
    try:
        while not errors and (spent := time.monotonic() - start) < 60 * minutes:
            yield look(app, spent, calls.total())
            over.wait(min(every, 60 * minutes - spent))
        yield look(app, time.monotonic() - start, calls.total())
    finally:
        over.set()
        for one in crew:
            one.join()
    if errors:
        raise AskError(errors[0])
    print(", ".join(f"{name} {number:,}" for name, number in sorted(calls.items())))


def _asking(app: App, pack: Path, plain: bool) -> Callable[[], None]:
    """A program that asks one caption after the other, of each method in turn."""
    captions = [caption.text for caption in load_gallery(pack).captions]
    methods, ask, turn = list(load_info(pack).methods), connect(app.port, plain), count()

    def once() -> None:
        place = next(turn)
        ask(Question(captions[place % len(captions)], methods[place % len(methods)]))

    return once


def _uploading(app: App) -> Callable[[], None]:
    """A program that searches with one new image after the other."""
    random = np.random.default_rng(0)
    line = http.client.HTTPConnection(HOST, app.port, timeout=_WAIT)

    def once() -> None:
        image = Image.fromarray(random.integers(0, 256, (48, 64, 3), np.uint8))
        content = io.BytesIO()
        image.save(content, "PNG")
        line.request(
            "POST", "/api/v1/search?k=3", content.getvalue(), {"Content-Type": "image/png"}
        )
        with line.getresponse() as reply:
            body = reply.read()
        if reply.status != 200:
            raise AskError(f"{reply.status} {body[:200]!r}")

    return once


def _visiting(app: App, over: threading.Event, calls: Counter[str], errors: list[str]) -> None:
    """A browser that loads the page again and again, each time as another visitor."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright, contextlib.ExitStack() as open_things:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        open_things.callback(browser.close)
        while not over.is_set():
            try:
                page = browser.new_page()
                page.goto(f"http://{HOST}:{app.port}/?q=a+dog", timeout=1000 * _WAIT)
                page.locator("#pv-grid .pv-tile").first.wait_for(timeout=1000 * _WAIT)
                page.close()
            except Error as error:
                errors.append(f"page: {error}")
                return
            calls["pages"] += 1


def in_a_row(app: App, pack: Path, calls: int, every: int = 500) -> Iterator[Sample]:
    """One program asks so often by gradio, without a session; a sample each `every` calls.

    Raises:
        AskError: it was given no answer.
    """
    ask, start = _asking(app, pack, plain=False), time.monotonic()
    for number in range(calls):
        if number % every == 0:
            yield look(app, time.monotonic() - start, number)
        ask()
    yield look(app, time.monotonic() - start, calls)


def main(argv: Sequence[str]) -> int:
    """Measures, prints and writes; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--calls", type=int, default=0, help="in a row by gradio, after that")
    parser.add_argument("--most", type=float, default=5.0, help="percent of growth")
    parser.add_argument("--no-browser", action="store_true", help="programs alone")
    parser.add_argument("--out", type=Path, help="also write all that is printed there")
    given = parser.parse_args(argv)
    if not given.no_browser and find_spec("playwright") is None:
        parser.error("pages are loaded with playwright, which is not installed: say --no-browser")
    if given.minutes <= 0:
        parser.error(f"--minutes must be above 0, not {given.minutes:g}")
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    grown = []
    with running(given.pack, "cpu") as app:
        seconds_until_page(app.port)
        seconds_until_ready(app.port)
        tell("# What the app grows by while it is used\n")
        tell(f"`{' '.join(['python -m benchmarks.soak', *argv])}`\n")
        tell(f"{processor()}, {os.cpu_count()} cores, load at the start {os.getloadavg()[0]:.1f}.")
        samples = soak(app, given.pack, given.minutes, not given.no_browser)
        grown.append(_section(f"{given.minutes:g} minutes of all at once", samples, tell))
        if given.calls:
            samples = in_a_row(app, given.pack, given.calls)
            grown.append(_section(f"{given.calls:,} calls in a row after that", samples, tell))
        tell(f"\nLoad at the end {os.getloadavg()[0]:.1f}.")
    if given.out is not None:
        write_whole(given.out, "\n".join(lines) + "\n")
    return 1 if max(grown) > given.most else 0


def _section(title: str, samples: Iterator[Sample], tell: Callable[[str], None]) -> float:
    """Tells of samples as they come; their growth in percent."""
    tell(f"\n## {title.capitalize()}\n")
    tell("| minute | calls | RSS, MB | threads | open files | files on disk |")
    tell("|---:|---:|---:|---:|---:|---:|")
    seen = []
    for one in samples:
        seen.append(one)
        tell(
            f"| {one.seconds / 60:.1f} | {one.calls:,} | {one.memory:.0f} | {one.threads} | "
            f"{one.files} | {one.disk:,} |"
        )
    tell("")
    for share, warm in _WARM.items():
        percent, each = growth(seen, warm)
        tell(f"Growth after the first {share}: {percent:.1f} %, {each:.2f} MB in a thousand calls.")
    return percent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
