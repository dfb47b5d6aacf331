"""The app as its users meet it: `python -m benchmarks.serving`.

Starts the app with an empty cache and prints the seconds until the first page, its first answer and
the end of indexing, and the memory (RSS) then. Then one user, and after that 16 and 50 at once, ask
without a pause, each over an own connection, by plain HTTP (`GET /api/v1/search`). Every answer is
compared with the one that the single user got, and the memory is printed again. Linux only. Ends
with 1 where an answer was wrong or missing. `--page` measures the page in headless Chromium.
"""

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import httpx
import numpy as np

from polyview.app.settings import BUNDLED
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import load_info
from polyview.export.sessions import processor

ROOT = Path(__file__).resolve().parents[1]
QUERIES = 20  # typed into the page
IDLE = 10.0  # seconds in which a tab should do nothing
WATCH = """() => {
  window.shifts = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
  const whole = (image) => image.src && image.complete && image.naturalWidth > 0;
  const shown = () => [...document.querySelectorAll(".tile img")].slice(0, 8);
  const until = (ready) => new Promise((done) => {
    const look = () => (ready() ? done(performance.now()) : requestAnimationFrame(look));
    look();
  });
  window.example = until(() => document.querySelector(".tile canvas")?.clientWidth > 0);
  window.answered = (query) => until(() => {
    const text = document.querySelector("#live")?.innerText ?? "";
    return text.includes(query) && shown().length >= 4 && shown().every(whole);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Enter") window.pressed = performance.now();
  }, true);
}"""
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
    parser.add_argument("--users", type=int, nargs="+", default=[16, 50])
    parser.add_argument("--queries", type=int, default=1000, help="of all users together")
    parser.add_argument("--page", action="store_true", help="measure the page in a browser")
    options = parser.parse_args(argv)
    if min(*options.users, options.queries) < 1:
        parser.error("--users and --queries must be at least 1")
    print(
        f"{options.pack.name}, {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    captions = [caption.text for caption in load_gallery(options.pack).captions]
    if options.page:
        print(measure_page(options.pack, captions[:QUERIES]))
        return 0
    methods, count = list(load_info(options.pack).methods), options.queries
    questions = [(captions[i % len(captions)], methods[i % len(methods)]) for i in range(count)]
    with running(options.pack) as (url, process):
        loads, answers = [starting(url, process, questions[0])], dict[Question, Hits]()
        for users in (1, *options.users):
            shares = [questions[user::users] for user in range(users)]
            before = processor_seconds(process)
            load, found = ask_all(url, shares, answers)
            each = 1000 * (processor_seconds(process) - before) / count
            print(f"{users} users: {load}, {each:.1f} ms of CPU each", flush=True)
            answers = answers or found
            loads.append(load)
        print(f"RSS {memory(process):.0f} MB at the end")
    failures = sorted({message for load in loads for message in load.failures})
    print("\n".join(failures[:10]), end="\n" if failures else "")
    return 1 if failures else 0


def measure_page(pack: Path, queries: Sequence[str]) -> str:
    """Opens the page in headless Chromium and types queries; returns the figures."""
    from playwright.sync_api import Request, sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with running(pack) as (url, _), sync_playwright() as playwright:
        wait(lambda: httpx.get(url).is_success)
        wait(lambda: httpx.get(f"{url}/api/v1/info").json()["gallery"]["state"] == "ready")
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(1000 * TIMEOUT)
        requests: list[Request] = []
        page.on("requestfinished", lambda request: requests.append(request))
        page.add_init_script(f"({WATCH})()")
        page.goto(url)
        start = "performance.getEntriesByType('navigation')[0].responseEnd"
        seconds = page.evaluate(f"example.then((time) => time - {start})")
        page.wait_for_timeout(1000 * IDLE)
        texts = [request.sizes() for request in requests if request.resource_type != "image"]
        size = sum(each["responseHeadersSize"] + each["responseBodySize"] for each in texts)
        spent, shifts = [], page.evaluate("shifts")
        for query in queries:
            page.locator("#query").fill(query)
            page.keyboard.press("Enter")
            spent.append(page.evaluate("query => answered(query).then((t) => t - pressed)", query))
        page.wait_for_timeout(1000 * IDLE)
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable")
        busy = []
        for _ in range(2):
            metrics = tools.send("Performance.getMetrics")["metrics"]
            busy.append(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))
            page.wait_for_timeout(1000 * IDLE)
        local = ("data:", "blob:", url)
        foreign = [request.url for request in requests if not request.url.startswith(local)]
        browser.close()
    idle = 100 * (busy[1] - busy[0]) / IDLE
    return (
        f"{size / 1000:.0f} kB without images, example {seconds / 1000:.2f} s after the page, "
        f"Enter to images {np.median(spent):.0f} ms (median of {len(spent)}), layout shift "
        f"{shifts:.3f}, {len(foreign)} requests to other machines, idle {idle:.1f} %"
    )


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
    page, cpu = time.perf_counter(), processor_seconds(process)
    first, _ = ask_all(url, [[question]], {})
    answer = time.perf_counter()
    wait(lambda: httpx.get(f"{url}/api/v1/info").json()["gallery"]["state"] == "ready")
    print(
        f"first page {page - began:.1f} s ({cpu:.1f} s of CPU), first answer "
        f"{answer - page:.2f} s later, everything "
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
        client = http.client.HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT)
        for text, method in questions:
            start = time.perf_counter()
            try:
                values = urlencode({"q": text, "method": method, "k": 10})
                client.request("GET", f"/api/v1/search?{values}")
                answer = json.loads((response := client.getresponse()).read())
                if response.status != 200:
                    raise ValueError(f"status {response.status}")
                hits = [(hit["image_id"], hit["score"]) for hit in answer["hits"]]
                if not np.allclose(hits, reference.get((text, method), hits), rtol=0, atol=1e-5):
                    raise ValueError("another answer than the single user's")
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
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


def processor_seconds(process: int) -> float:
    """CPU time that a process has used, in user and system mode."""
    spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
