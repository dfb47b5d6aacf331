"""Randomly damaged packs, images and requests.

By default, each kind of input has the same 25 cases in every run. SOAK_CASES sets the number of
random cases of all kinds together; `make soak` runs

    SOAK_CASES=10000 python -m pytest -m "" tests/soak --hypothesis-seed=1

A failure prints the smallest case and how to repeat it. If native code hangs, `make soak` ends the
process after five minutes and names the test; the input is in the temporary folder of the test.
"""

import copy
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from safetensors.torch import save

from polyview.app.gallery.images import ImageError, open_image
from polyview.app.gallery.scan import CollectionImage
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import check_weights
from polyview.export.pack.schema import parse_info
from polyview.export.pack.validation import PackError, read_json
from polyview.export.texts import load_tokenizer
from polyview.models.checkpoint import load_tensors
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.photographs import open_photographs
from tests.app.conftest import Serve, draw, saved
from tests.training.conftest import write_photographs

CASES = int(os.environ.get("SOAK_CASES", "0"))
SLOW = 20.0  # seconds of computing, or of waiting for an answer
_QUERIES = ("search_text", "search_image", "compare", "views", "lens", "explain")
_FORMATS = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "GIF": ".gif", "TIFF": ".tif"}
# cases of each kind per 10,000; the other 1,600 are requests to the app, of which one in eight
# uploads an image
SHARES = {
    "manifest": 2000,
    "gallery": 1400,
    "karpathy": 1000,
    "tokenizer": 500,
    "weights": 1400,
    "network": 900,
    "image": 1200,
}
_TEXTS = (
    "", " ", "../../etc/passwd", "/etc/passwd", "C:\\x", "a\0b", "\ud800",
    "<script>alert(1)</script>", "{{7*7}}", "nan", "1e999", "vsepp", "pack", "owner/name", "/",
    "2: dog + - +", "100000: a", "x" * 70_000, "é" * 300, "-1",
)  # fmt: skip
_NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 10**30, 10**400, 1e308, -1e308, 5e-324, 0.5, -0.0)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(_NUMBERS),
    st.sampled_from(_TEXTS),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
_WORDS = (b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"9" * 9, b"-1", b"[" * 200)
Target = tuple[SearchStrategy[Any], Callable[[Any], object]]
# an endpoint and its values, or the name and content of an uploaded file
Question = tuple[str, list[Any] | bytes]
# paths of the server, and source locations in messages of Python or onnxruntime
LEAK = re.compile(
    r"Traceback|File \"|site-packages|onnxruntime_src|\.py\b|/(home|root|work|opt|usr|tmp|var)/"
)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')  # of JSON
_JSON = {"Content-Type": "application/json"}
_STATUSES = (200, 400, 403, 404, 405, 410, 413, 429, 503)


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values in a JSON document, also of the document itself."""
    yield path
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(min(len(document), 3))
        for key in keys:
            yield from paths(document[key], (*path, key))


@st.composite
def damaged_json(draw: st.DrawFn, document: Any, most: int = 3) -> Any:
    """Draws a document with 1 to `most` values replaced, removed or added."""
    values = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(list(paths(values))))
        if not path:
            values = draw(JUNK) if draw(st.integers(0, 9)) == 0 else values
            continue
        holder = values
        for key in path[:-1]:
            holder = holder[key]
        what = draw(st.integers(0, 5))
        if what == 0:
            del holder[path[-1]]
        elif what == 1 and isinstance(holder, dict):
            holder[draw(st.text(max_size=12))] = draw(JUNK)
        else:
            holder[path[-1]] = draw(JUNK)
    return values


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes, early: int = 0) -> bytes:
    """Draws content with 1 to 4 ranges of bytes overwritten, inserted or removed.

    Half of the changes are in the first `early` bytes, the header.
    """
    results = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        last = len(results)
        place = draw(st.integers(0, min(early, last) if early and draw(st.booleans()) else last))
        what = draw(st.integers(0, 3))
        if what == 3:
            del results[place : place + draw(st.sampled_from((1, 4, 64, len(content))))]
            continue
        put = draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(_WORDS)))
        results[place : place + len(put) * (what == 0 or what == 1)] = put
    return bytes(results)


def fuzz(values: SearchStrategy[Any], check: Callable[[Any], object], cases: int) -> None:
    """Checks `cases` random values; without SOAK_CASES, the same values in every run."""

    @settings(
        max_examples=max(1, cases),
        deadline=None,
        derandomize=not CASES,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def run(value: Any) -> None:
        check(value)

    run()


@contextmanager
def refused(*kinds: type[Exception]) -> Iterator[None]:
    """Accepts input that is used, or refused with one of these errors and a message."""
    start = time.process_time()
    try:
        yield
    except kinds as error:
        message = str(error)
        assert message.strip(), "refused without a message"
        assert len(message) < 2000, message[:3000]
        message.encode()
    assert time.process_time() - start < SLOW, "too slow"


def check_manifest(folder: Path, values: Any) -> None:
    """Checks `pack.json`: reads and writes the manifest."""
    (folder / "pack.json").write_text(json.dumps(values))
    with refused(PackError):
        info = parse_info(read_json(folder / "pack.json"), folder)
        json.dumps(info.to_json(), ensure_ascii=False).encode()
        assert len(info.checksum) == 64


def check_gallery(folder: Path, values: Any) -> None:
    """Checks `gallery.json` in a folder with images."""
    (folder / "gallery.json").write_text(json.dumps(values))
    with refused(PackError, FileNotFoundError):
        results = load_gallery(folder)
        assert all((folder / file).resolve().is_relative_to(folder) for file in results.files)
        assert all(len(caption.text) <= 10_000 for caption in results.captions)


def check_captions(folder: Path, values: Any) -> None:
    """Checks Karpathy's JSON in a folder with photographs."""
    (folder / "dataset_flickr8k.json").write_text(json.dumps(values))
    with refused(ValueError, FileNotFoundError):
        results = open_photographs(folder, "train")
        assert len(results.image_of) == len(results.captions) > 0
        assert isinstance(results.images, ImageFiles)
        assert all(path.resolve().is_relative_to(folder) for path in results.images.paths)


def check_tokenizer(folder: Path, values: Any) -> None:
    """Checks `tokenizer.json`: loads the tokenizer and encodes a sentence."""
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with refused(PackError):
        results = load_tokenizer(folder / "tokenizer.json")
        with suppress(Exception):  # the runtime refuses the text after any error of the tokenizer
            results.encode("a red circle beside a bar")


def check_tensors(path: Path, content: bytes) -> None:
    """Checks a file of weights: safetensors, or an ONNX graph that is not run."""
    path.write_bytes(content)
    with refused(PackError):
        check_weights(path)
        if path.suffix == ".safetensors":
            tensors, about = load_tensors(path)
            assert isinstance(about, dict)
            assert sum(t.nbytes for t in tensors.values()) <= len(content)


def check_image(folder: Path, content: bytes, suffix: str) -> None:
    """Checks an image file: decodes the image and makes a thumbnail."""
    path = folder / f"photo{suffix}"
    path.write_bytes(content)
    for thumbnail in folder.glob("thumbs/*"):
        thumbnail.unlink()
    with refused(ImageError):
        opened = open_image(path)
        assert opened.mode == "RGB"
        assert max(opened.size) <= 2048
        CollectionImage(0, path, "photo").thumbnail(folder / "thumbs")


@pytest.fixture(scope="module")
def kinds(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    """The damaged values of each kind of input, and their check."""
    work = tmp_path_factory.mktemp("fuzz")
    pack = Path(shutil.copytree(tiny_pack, work / "pack")).resolve()
    photographs = write_photographs(work / "photographs", {"train": 3}, captions=1).resolve()
    split = json.loads((photographs / "dataset_flickr8k.json").read_text())
    manifest, tokenizer = (
        json.loads((pack / name).read_text()) for name in ("pack.json", "tokenizer.json")
    )
    gallery = json.loads((pack / "gallery/gallery.json").read_text())
    gallery["images"] = gallery["images"][:4]
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(2).half()}
    head = save(tensors, {"about": '{"kind": "run"}'})
    graph = (pack / "vsepp/text_encoder.onnx").read_bytes()
    return {
        "manifest": (damaged_json(manifest), lambda v: check_manifest(pack, v)),
        "gallery": (damaged_json(gallery), lambda v: check_gallery(pack / "gallery", v)),
        "karpathy": (damaged_json(split), lambda v: check_captions(photographs, v)),
        "tokenizer": (damaged_json(tokenizer), lambda v: check_tokenizer(pack, v)),
        "weights": (damaged_bytes(head, 250), lambda v: check_tensors(pack / "a.safetensors", v)),
        "network": (damaged_bytes(graph), lambda v: check_tensors(pack / "a.onnx", v)),
        "image": (images(), lambda v: check_image(pack, *v)),
    }


def images() -> SearchStrategy[tuple[bytes, str]]:
    """Draws damaged image files, with the suffix of the format."""
    files = {suffix: saved(draw(4)[0], kind) for kind, suffix in _FORMATS.items()}
    return st.one_of(
        [st.tuples(damaged_bytes(file, 64), st.just(suffix)) for suffix, file in files.items()]
    )


def check_no_leak(text: str) -> None:
    """Fails if an answer contains paths or code of the server."""
    leak = LEAK.search(text)
    assert leak is None, text[max(0, leak.start() - 100) :][:300]


class Caller:
    """Sends requests to a running app, without a client that would validate them."""

    def __init__(self, url: str) -> None:
        self.failed: list[str] = []
        limits = httpx.Limits(keepalive_expiry=2)  # the server closes idle connections after 5 s
        self._http = httpx.Client(base_url=url, timeout=SLOW, limits=limits)
        self._collection = self._http.post("/api/v1/collections/new").json()["collection"]
        named = self._http.get("/gradio_api/info").json()["named_endpoints"]
        self.events = {name.lstrip("/"): len(about["parameters"]) for name, about in named.items()}
        self._routes: dict[str, tuple[str, str, list[str]]] = {}
        for path, methods in self._http.get("/api/v1/openapi.json").json()["paths"].items():
            for method, about in methods.items():
                names = [parameter["name"] for parameter in about["parameters"]]
                self._routes[about["operationId"].rpartition("_")[0]] = method, path, names

    def send(self, question: Question) -> None:
        """Sends a request, or uploads a file; adds a failure to `failed`."""
        name, values = question
        try:
            if isinstance(values, bytes):
                self.send_file(name, values)
            else:
                self.ask_gradio(name, values)
                self.ask_http(name, values)
        except Exception as error:
            self.failed.append(f"{question!r:.500}: {type(error).__name__}: {error}")

    def ask_gradio(self, endpoint: str, values: list[Any]) -> None:
        """Sends a request through Gradio's queue; fails if the answer is late or leaks paths."""
        try:
            reply = self.answer(endpoint, values)
        except (TimeoutError, httpx.TimeoutException):
            reply = self.answer(endpoint, values)  # again: this machine may have been suspended
        inputs = {text: json.loads(text) for text in STRING.findall(json.dumps(values))}
        for text in sorted(inputs, key=len, reverse=True):
            if len(inputs[text]) > 3:
                reply = reply.replace(text[1:-1], "").replace(inputs[text], "")
        check_no_leak(reply)

    def ask_http(self, endpoint: str, values: list[Any]) -> None:
        """Sends a request over plain HTTP, with the values as JSON or in the URL."""
        method, path, names = self._routes[endpoint]
        sent = dict(zip(names, values, strict=False))
        for name in [name for name in names if f"{{{name}}}" in path]:
            text = quote(str(sent.pop(name, 0))[:1000], safe="", errors="replace")
            path = path.replace(f"{{{name}}}", text)
        if method == "post":
            reply = self._request("POST", path, content=json.dumps(sent), headers=_JSON)
        else:
            texts = {name: str(item)[:1000].encode(errors="replace") for name, item in sent.items()}
            reply = self._request("GET", f"{path}?{urlencode(texts)}")
        if reply.status_code != 200:
            assert len(reply.json()["error"]) < 2100

    def send_file(self, name: str, content: bytes) -> None:
        """Searches with a file, and adds it to a collection."""
        sent = {"collection": self._collection, "name": name}
        for path, values in (("search", {"k": 3}), ("collections/file", sent)):
            reply = self._request("POST", f"/api/v1/{path}", content=content, params=values)
            check_no_leak(reply.text)
            assert path != "search" or reply.status_code in (200, 400, 413), reply.text[:500]

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request; fails if its status is not one of `_STATUSES`."""
        reply = self._http.request(method, path, **options)
        assert reply.status_code in _STATUSES, (reply.status_code, reply.text[:500])
        return reply

    def answer(self, endpoint: str, values: list[Any]) -> str:
        """Returns the answer of Gradio's queue; raises TimeoutError after SLOW seconds."""
        deadline = time.monotonic() + SLOW
        url = f"/gradio_api/call/{endpoint}"
        reply = self._request("POST", url, content=json.dumps({"data": values}), headers=_JSON)
        if reply.status_code != 200:
            return reply.text
        texts = []
        with self._http.stream("GET", f"{url}/{reply.json()['event_id']}") as events:
            for line in events.iter_lines():  # an unfinished event sends heartbeats
                texts.append(line)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer in {SLOW:g} s")
        assert texts[0].startswith("event: "), texts[0][:500]
        return "\n".join(texts)


def questions(caller: Caller) -> SearchStrategy[Question]:
    """Draws requests to all endpoints of the app, with values of any type, and uploads."""

    def ask(name: str) -> SearchStrategy[tuple[str, list[Any]]]:
        count = caller.events[name]
        values = st.lists(st.one_of(LEAVES, JUNK), min_size=count, max_size=count)
        odd = st.lists(JUNK, max_size=count + 2)
        return st.tuples(st.just(name), st.one_of(values, values, odd))

    # more than half of the requests are queries
    query = st.sampled_from(sorted([*caller.events, *5 * _QUERIES])).flatmap(ask)
    names = st.sampled_from(("photo", "../../../photo", "/etc/photo", "<b>", "x" * 300))
    sent = st.tuples(names, images()).map(lambda drawn: (drawn[0] + drawn[1][1], drawn[1][0]))
    return st.integers(0, 7).flatmap(lambda n: query if n else sent)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", SHARES)
def test_damaged_input_is_used_or_refused(kind: str, kinds: dict[str, Target]) -> None:
    fuzz(*kinds[kind], cases=CASES * SHARES[kind] // 10_000 or 25)


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_every_endpoint_of_the_app_answers(serve: Serve, tiny_pack: Path) -> None:
    server = serve("--pack", tiny_pack)
    caller = Caller(server.url)
    left = CASES - sum(CASES * share // 10_000 for share in SHARES.values())
    with ThreadPoolExecutor(8) as pool:
        fuzz(questions(caller), lambda question: pool.submit(caller.send, question), left)
    assert not caller.failed, f"{len(caller.failed)} failed, such as {caller.failed[:5]}"
    assert server.http.post("search", content=bytes(80_000_000)).status_code == 413
    assert server.get("info")["gallery"]["state"] == "ready"
    assert server.get("search", q="a red circle", method="vsepp", k=3)["hits"]
