"""Measures the running app: `python -m benchmarks.serving`.

Starts the app with an empty cache and prints the seconds until the first page, the first answer and
the end of indexing. Then 16 and 50 clients each send requests without a pause over one connection.
Prints the answers per second, the app's CPU time for each answer, and the app's memory (RSS). Every
answer is compared with the answer to a single client. The exit status is 1 if an answer is wrong or
missing. `--compare DIR` also measures another checkout and its copy of a bundled pack. Linux only.
"""

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import httpx
import numpy as np

from polyview.app.settings import BUNDLED
from polyview.export.pack.gallery import load_gallery
from polyview.export.sessions import processor

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 300.0  # time limit of the start and of an answer, in seconds
CLIENTS = (16, 50)  # numbers of concurrent clients
Question = tuple[str, str]  # text and method
Hits = list[tuple[int, float]]  # image and score, best first


def main(argv: Sequence[str]) -> int:
    """Measures the app and prints the results; returns 1 after a wrong answer, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes", help="a pack's folder")
    parser.add_argument("--questions", type=int, default=1000, help="questions in each of 4 rounds")
    parser.add_argument("--compare", type=Path, metavar="DIR", help="also measure another checkout")
    options = parser.parse_args(argv)
    if options.questions < 1:
        parser.error("--questions must be at least 1")
    load = os.getloadavg()[0]
    print(f"{options.pack.name}, {processor()}, {os.cpu_count()} cores, load {load:.1f}")
    captions = [caption.text for caption in load_gallery(options.pack).captions]
    packs = {ROOT: options.pack}
    if options.compare:
        root, pack = options.compare.resolve(), options.pack.resolve()
        # use the other checkout's copy of a bundled pack
        packs[root] = root / pack.relative_to(ROOT) if pack.is_relative_to(ROOT) else pack
    methods = [json.loads((pack / "pack.json").read_text())["methods"] for pack in packs.values()]
    common_methods = [name for name in methods[0] if all(name in names for names in methods)]
    pairs = zip(cycle(captions), cycle(common_methods), strict=False)
    questions = list(islice(pairs, options.questions))
    failures: list[str] = []
    for root, pack in packs.items():
        summary, messages = measure_server(pack, questions, root)
        print(f"{root.name}: {summary}", flush=True)
        failures += messages
    print("\n".join(sorted(set(failures))[:10]), end="\n" if failures else "")
    return 1 if failures else 0


def measure_server(pack: Path, questions: Sequence[Question], root: Path) -> tuple[str, list[str]]:
    """Measures a checkout's app; returns a summary, and messages for wrong or missing answers."""
    with run_app(pack, root) as (url, process):
        start, reference = time.perf_counter(), dict[Question, Hits]()
        wait_until(lambda: httpx.get(url).is_success)
        page_time, cpu_seconds = time.perf_counter(), processor_seconds(process)
        failures = ask(url, questions[:1], {})  # not compared: some images may still be missing
        answer_time = time.perf_counter()
        wait_until(lambda: httpx.get(f"{url}/api/v1/info").json()["gallery"]["state"] == "ready")
        figures = [
            f"first page {page_time - start:.1f} s ({cpu_seconds:.1f} s of CPU), first answer "
            f"{answer_time - page_time:.2f} s later, everything indexed after "
            f"{time.perf_counter() - start:.1f} s, RSS {resident_mb(process):.0f} MB"
        ]
        # after the images, the app encodes captions and writes thumbnails
        wait_until(lambda: is_idle(process))
        failures += ask(url, list(dict.fromkeys(questions)), reference)
        for client_count in CLIENTS:
            rounds = []
            for _ in range(4):
                start, cpu_start = time.perf_counter(), processor_seconds(process)
                with ThreadPoolExecutor(client_count) as pool:
                    shares = [questions[i::client_count] for i in range(client_count)]
                    for messages in pool.map(lambda share: ask(url, share, reference), shares):
                        failures += messages
                cpu_seconds = processor_seconds(process) - cpu_start
                rounds.append((len(questions) / (time.perf_counter() - start), cpu_seconds))
            rate, cpu_seconds = max(rounds)  # the fastest round
            cost = f"{1000 * cpu_seconds / len(questions):.1f} ms of CPU each"
            figures.append(f"{client_count} clients {rate:.0f} answers/s ({cost})")
        figures.append(f"RSS {resident_mb(process):.0f} MB, {len(failures)} wrong or missing")
        return ", ".join(figures), failures


def ask(url: str, questions: Sequence[Question], reference: dict[Question, Hits]) -> list[str]:
    """Sends questions one by one; returns a message for each wrong or missing answer.

    The first answer to a question is added to `reference`; later answers must agree with it.
    """
    client, failures = http.client.HTTPConnection(httpx.URL(url).netloc.decode()), list[str]()
    client.timeout = TIMEOUT
    for text, method in questions:
        values = httpx.QueryParams({"q": text, "method": method, "k": 10})
        client.request("GET", f"/api/v1/search?{values}")
        answer = client.getresponse()
        content = answer.read()
        if answer.status != 200:
            failures.append(f"{method}, {text}: {answer.status} {content[:200]!r}")
            continue
        hits = [(hit["image_id"], hit["score"]) for hit in json.loads(content)["hits"]]
        expected = reference.setdefault((text, method), hits)
        if not np.allclose(hits, expected, rtol=0, atol=1e-5):
            failures.append(f"{method}, {text}: not the answer of a single client")
    client.close()
    return failures


@contextlib.contextmanager
def run_app(pack: Path, root: Path) -> Iterator[tuple[str, int]]:
    """Starts the app of the checkout `root` with an empty cache; yields its URL and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, str(root / "app" / "main.py"), "--port", str(port)]
    command += ["--device", "cpu", "--pack", str(pack.resolve())]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "POLYVIEW_CACHE": folder, "GRADIO_TEMP_DIR": f"{folder}/up"}
        log = Path(folder) / "log.txt"
        with log.open("wb") as out:
            app = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            yield f"http://127.0.0.1:{port}", app.pid
        except (httpx.HTTPError, TimeoutError) as error:
            raise SystemExit(f"{error}; the log ends with:\n{log.read_text()[-2000:]}") from error
        finally:
            app.terminate()
            app.wait(20)


def wait_until(ready: Callable[[], bool]) -> None:
    """Waits until `ready` returns True, for at most `TIMEOUT` seconds."""
    for _ in range(int(10 * TIMEOUT)):
        with contextlib.suppress(httpx.TransportError):
            if ready():
                return
        time.sleep(0.1)
    raise TimeoutError(f"the app was not ready within {TIMEOUT:.0f} s")


def resident_mb(process: int) -> float:
    """Returns the RSS of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def is_idle(process: int) -> bool:
    """Returns whether a process uses less than a fifth of a core for half a second."""
    before = processor_seconds(process)
    time.sleep(0.5)
    return processor_seconds(process) - before < 0.1


def processor_seconds(process: int) -> float:
    """Returns the CPU seconds that a process has used in user and system mode."""
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
