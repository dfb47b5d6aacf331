"""The app as its users meet it: `python -m benchmarks.serving`.

Starts the app with an empty cache and prints the seconds until the first page, its first answer and
the end of indexing, and the memory (RSS) then. Then one user, and after that many at once, ask
without a pause, each over an own connection, by plain HTTP (`GET /api/v1/search`). Every answer is
compared with the one that the single user got, and the memory is printed again. Linux only. Ends
with 1 where an answer was wrong or missing.
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from app.settings import BUNDLED
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.sessions import processor

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 300.0  # seconds for a start, and for an answer
Question = tuple[str, str]  # text and method
Hits = list[tuple[int, float]]  # image and score, best first


@dataclass
class Load:
    """The outcome of many questions: milliseconds of each answer, and messages of failures."""

    spent: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        p50, p95 = np.percentile(self.spent or [np.nan], [50, 95])
        rate = len(self.spent) / max(self.seconds, 1e-9)
        return (
            f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, {rate:.1f} answers/s, {len(self.spent):,} "
            f"answers, {len(self.failures)} wrong or missing"
        )


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--queries", type=int, default=20, help="questions of each user")
    options = parser.parse_args(argv)
    if min(options.users, options.queries) < 1:
        parser.error("--users and --queries must be at least 1")
    print(
        f"{options.pack.name}, {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    captions = [caption.text for caption in load_gallery(options.pack).captions]
    methods, count = list(load_info(options.pack).methods), options.users * options.queries
    questions = [(captions[i % len(captions)], methods[i % len(methods)]) for i in range(count)]
    shares = [questions[user :: options.users] for user in range(options.users)]
    with running(options.pack) as (url, process):
        first = starting(url, process, questions[0])
        one, answers = ask_all(url, [questions], {})
        many, _ = ask_all(url, shares, answers)
        print(f"one user: {one}\n{options.users} users: {many}")
        print(f"RSS {memory(process):.0f} MB after {2 * count + 1:,} questions")
    failures = sorted({message for load in (first, one, many) for message in load.failures})
    print("\n".join(failures[:10]), end="\n" if failures else "")
    return 1 if failures else 0


@contextlib.contextmanager
def running(pack: Path) -> Iterator[tuple[str, int]]:
    """Starts the app on a free port with an empty cache; gives its URL and its process's id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, str(ROOT / "app" / "main.py"), "--port", str(port)]
    command += ["--device", "cpu", "--pack", str(pack.resolve())]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "POLYVIEW_CACHE": folder, "GRADIO_TEMP_DIR": f"{folder}/up"}
        log = Path(folder) / "log.txt"
        with log.open("wb") as out:
            app = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            yield f"http://127.0.0.1:{port}", app.pid
        except (httpx.HTTPError, TimeoutError) as error:
            raise SystemExit(f"{error}; the app said:\n{log.read_text()[-2000:]}") from error
        finally:
            app.terminate()
            app.wait(20)


def starting(url: str, process: int, question: Question) -> Load:
    """Waits for the app: first page, first answer, everything indexed; prints all three."""
    began = time.perf_counter()
    wait(lambda: httpx.get(url).is_success)
    page = time.perf_counter()
    first, _ = ask_all(url, [[question]], {})
    answer = time.perf_counter()
    wait(lambda: httpx.get(f"{url}/api/v1/info").json()["gallery"]["state"] == "ready")
    print(
        f"first page {page - began:.1f} s, first answer {answer - page:.2f} s later, everything "
        f"indexed after {time.perf_counter() - began:.1f} s, RSS {memory(process):.0f} MB"
    )
    return first


def wait(ready: Callable[[], bool]) -> None:
    """Asks ten times a second until the app is ready, for five minutes."""
    for _ in range(int(10 * TIMEOUT)):
        with contextlib.suppress(httpx.TransportError):
            if ready():
                return
        time.sleep(0.1)
    raise TimeoutError(f"the app was not ready within {TIMEOUT:.0f} s")


def ask_all(
    url: str, shares: Sequence[Sequence[Question]], reference: dict[Question, Hits]
) -> tuple[Load, dict[Question, Hits]]:
    """Lets every user ask their share of the questions, all users at once.

    Returns the outcome and the answers. A question that the reference lacks is not checked.
    """
    load, answers = Load(), dict[Question, Hits]()

    def use(questions: Sequence[Question]) -> None:
        with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
            for text, method in questions:
                start = time.perf_counter()
                try:
                    values: dict[str, str | int] = {"q": text, "method": method, "k": 10}
                    answer = client.get("/api/v1/search", params=values).raise_for_status().json()
                    hits = [(hit["image_id"], hit["score"]) for hit in answer["hits"]]
                    if not np.allclose(
                        hits, reference.get((text, method), hits), rtol=0, atol=1e-5
                    ):
                        raise ValueError("another answer than the single user's")
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    load.failures.append(f"{method}, {text}: {type(error).__name__}: {error}")
                    continue
                load.spent.append(1000 * (time.perf_counter() - start))
                answers[text, method] = hits

    began = time.perf_counter()
    with ThreadPoolExecutor(len(shares)) as users:
        list(users.map(use, shares))
    load.seconds = time.perf_counter() - began
    return load, answers


def memory(process: int) -> float:
    """RSS of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
