"""Many people searching at once: `python -m benchmarks.many_users`.

Starts the app, without a cache, as a visitor would find it, and measures three things:

1. how long until the first page comes, and how long its first question then takes;
2. questions of one user who is alone, whose answers become the reference;
3. the same questions asked by many users at once, each over a connection of its own. Every answer
   is compared with the reference: none may be lost, refused or given to somebody else.

Users ask by both ways that programs have, in the same run: the plain HTTP API (`GET
/api/v1/search`), and gradio's (`POST /gradio_api/call/v2/search_text`, then the event's stream).
Both must give the same answers. Times are what the user waits, the server's queue included. Ends
with 1 where an answer was wrong or missing.
"""

import argparse
import contextlib
import http.client
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio
import numpy as np

from app.settings import BUNDLED
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.sessions import processor

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
HITS = 10
_START = 300.0  # seconds the app may take to start, and to read its gallery


@dataclass(frozen=True)
class Question:
    """What one user asks once."""

    text: str
    method: str


Hits = list[tuple[int, float]]  # picture and score, best first
Ask = Callable[[Question], Hits]


class AskError(Exception):
    """The app gave no answer; the message is what it said instead."""


@dataclass
class Load:
    """What came of many questions.

    Attributes:
        spent: milliseconds of each answered question.
        wrong: questions whose answer was not the reference's.
        errors: what was said instead of an answer.
        seconds: from the first question to the last answer.
    """

    spent: list[float] = field(default_factory=list)
    wrong: list[Question] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.spent:
            return f"no answers, {len(self.errors)} errors"
        p50, p95 = np.percentile(self.spent, [50, 95])
        return (
            f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, max {max(self.spent):.0f} ms, "
            f"{len(self.spent) / self.seconds:.1f} answers/s, {len(self.spent)} answers, "
            f"{len(self.wrong)} wrong, {len(self.errors)} errors"
        )


def connect(port: int, plain: bool = False) -> Ask:
    """A user of the app on this machine: a function that asks and waits for the answer.

    Args:
        port: where the app listens.
        plain: by the plain HTTP API, not by gradio's.
    """
    line = http.client.HTTPConnection(HOST, port, timeout=_START)

    def ask(question: Question) -> Hits:
        values = {"method": question.method, "k": HITS}
        if plain:
            line.request("GET", f"/api/v1/search?{urlencode({'q': question.text, **values})}")
            answer = json.loads(_body(line))
        else:
            answer = _call(line, "search_text", query=question.text, **values)
        if "error" in answer:
            raise AskError(answer["error"])
        if (answer["query"], answer["method"]) != (question.text, question.method):
            asked = answer["query"], answer["method"]
            raise AskError(f"asked {question}, was answered {asked}")
        return [(hit["image_id"], hit["score"]) for hit in answer["hits"]]

    return ask


def plans(
    captions: Sequence[str], methods: Sequence[str], users: int, each: int
) -> list[list[Question]]:
    """What each user asks: other sentences than everybody else where there are enough of them.

    The methods take turns, and users begin with different ones.
    """
    places = np.linspace(0, len(captions) - 1, users * each).round().astype(int)
    texts, turns = iter(captions[place] for place in places), cycle(methods)
    asked = []
    for user in range(users):
        if user and each % len(methods) == 0:
            next(turns)
        asked.append([Question(next(texts), next(turns)) for _ in range(each)])
    return asked


def measure(
    connections: Sequence[Ask],
    asked: Sequence[Sequence[Question]],
    reference: dict[Question, Hits] | None,
    seconds: float,
) -> tuple[Load, dict[Question, Hits]]:
    """Lets every user ask one question after the other, all users at once.

    Args:
        connections: one of each user.
        asked: what each user asks.
        reference: the right answers; None takes whatever comes.
        seconds: after these nobody asks another question.

    Returns:
        What came of it, and the answers.
    """
    load, lock = Load(), threading.Lock()
    answers: dict[Question, Hits] = {}
    gate = threading.Barrier(len(connections) + 1)

    def use(ask: Ask, questions: Sequence[Question]) -> None:
        gate.wait()
        for question in questions:
            start = time.perf_counter()
            if start - began > seconds:
                return
            try:
                hits = ask(question)
            except (AskError, OSError, http.client.HTTPException, ValueError) as error:
                with lock:
                    load.errors.append(f"{type(error).__name__}: {error}")
                continue
            spent = (time.perf_counter() - start) * 1000
            with lock:
                load.spent.append(spent)
                answers[question] = hits
                if reference is not None and not _same(hits, reference[question]):
                    load.wrong.append(question)

    users = [
        threading.Thread(target=use, args=pair) for pair in zip(connections, asked, strict=True)
    ]
    for user in users:
        user.start()
    began = time.perf_counter()
    gate.wait()
    for user in users:
        user.join()
    load.seconds = time.perf_counter() - began
    return load, answers


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_users")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--queries", type=int, default=20, help="questions of each user")
    parser.add_argument("--seconds", type=float, default=60.0, help="then nobody asks any more")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu")
    given = parser.parse_args(argv)
    for name in ("users", "queries", "seconds"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(given, name)}")
    captions = [caption.text for caption in load_gallery(given.pack).captions]
    asked = plans(captions, list(load_info(given.pack).methods), given.users, given.queries)
    print(_conditions(given))
    with running(given.pack, given.device) as app:
        port = app.port
        page = seconds_until_page(port)
        first, _ = measure([connect(port)], [asked[0][:1]], None, _START)
        ready = seconds_until_ready(port)
        print(
            f"first page after {page:.1f} s, its first answer {first.seconds:.2f} s later, "
            f"everything read {ready:.1f} s after that"
        )
        flat = [question for questions in asked for question in questions]
        reference: dict[Question, Hits] | None = None
        loads = [first]
        for way, plain in (("gradio", False), ("HTTP API", True)):
            alone, answers = measure([connect(port, plain)], [flat], reference, _START)
            reference = reference or answers
            known = [[q for q in questions if q in reference] for questions in asked]
            connections = [connect(port, plain) for _ in known]
            load, _ = measure(connections, known, reference, given.seconds)
            print(f"{way}, one user:  {alone}\n{way}, {given.users} users: {load}")
            loads += [alone, load]
    errors = {error for load in loads for error in load.errors}
    for error in sorted(errors)[:10]:
        print(f"  {error[:300]}")
    return 1 if errors or any(load.wrong for load in loads) else 0


def _same(found: Hits, wanted: Hits) -> bool:
    """Whether the same pictures came in the same order, scores equal to float32's precision."""
    if [image for image, _ in found] != [image for image, _ in wanted]:
        return False
    return bool(np.allclose([s for _, s in found], [s for _, s in wanted], rtol=0, atol=1e-5))


def _call(line: http.client.HTTPConnection, endpoint: str, **values: Any) -> dict[str, Any]:
    """What a named endpoint answers: its event is made, then its stream is read to the end."""
    place, kind = f"/gradio_api/call/v2/{endpoint}", {"Content-Type": "application/json"}
    line.request("POST", place, json.dumps(values), kind)
    made = _body(line)
    line.request("GET", f"{place}/{json.loads(made)['event_id']}")
    event = ""
    for row in _body(line).splitlines():
        name, _, value = row.partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event == "complete":
            return json.loads(value)[0]
        elif name == "data" and event == "error":
            raise AskError(value)
    raise AskError("the stream ended without an answer")


def _body(line: http.client.HTTPConnection) -> str:
    with line.getresponse() as response:
        body = response.read().decode()
    if response.status != 200:
        raise AskError(f"{response.status} {body[:200]}")
    return body


@dataclass(frozen=True)
class App:
    """The app in a process of its own, with a cache that is empty at first.

    Attributes:
        port: where it listens.
        process: its number.
        folder: of its cache and uploads.
    """

    port: int
    process: int
    folder: Path


@contextlib.contextmanager
def running(pack: Path, device: str, root: Path = ROOT) -> Iterator[App]:
    """Starts the app of a checkout on a free port; ends it after."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, root / "app" / "main.py", "--port", port]
    command += ["--pack", pack.resolve(), "--device", device]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "POLYVIEW_CACHE": folder, "GRADIO_TEMP_DIR": f"{folder}/up"}
        log = Path(folder) / "log.txt"
        with log.open("wb") as out:
            app = subprocess.Popen(
                [str(part) for part in command], env=environment, stdout=out, stderr=out
            )
            try:
                yield App(port, app.pid, Path(folder))
            except OSError as error:
                raise SystemExit(f"{error}; the app said:\n{log.read_text()[-2000:]}") from error
            finally:
                app.terminate()
                app.wait(20)


def seconds_until_page(port: int) -> float:
    """Waits for the first page."""
    began = time.perf_counter()
    while time.perf_counter() - began < _START:
        line = http.client.HTTPConnection(HOST, port, timeout=_START)
        try:
            line.request("GET", "/")
            _body(line)
            return time.perf_counter() - began
        except (ConnectionError, AskError):
            time.sleep(0.1)
        finally:
            line.close()
    raise TimeoutError(f"the app did not start within {_START:.0f} s")


def seconds_until_ready(port: int) -> float:
    """Waits until the whole gallery was read."""
    began, line = time.perf_counter(), http.client.HTTPConnection(HOST, port, timeout=_START)
    while time.perf_counter() - began < _START:
        gallery = _call(line, "info")["gallery"]
        if gallery["state"] == "ready":
            return time.perf_counter() - began
        if gallery["state"] == "failed":
            break
        time.sleep(0.2)
    raise TimeoutError(f"the gallery did not become ready: {gallery['progress']}")


def _conditions(given: argparse.Namespace) -> str:
    return (
        f"{given.pack}, {given.users} users, {given.queries} questions each, at most "
        f"{given.seconds:.0f} s, top {HITS}\n"
        f"{processor()}, {os.cpu_count()} cores, device {given.device}, "
        f"Python {platform.python_version()}, gradio {gradio.__version__}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
