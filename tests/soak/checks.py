"""Checks that any input is used or refused with a message, within a time limit."""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

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

SLOW = 20.0  # seconds of computing, or of waiting for an answer
# paths of the server, and source locations in messages of Python or onnxruntime
LEAK = re.compile(
    r"Traceback|File \"|site-packages|onnxruntime_src|\.py\b|/(home|root|work|opt|usr|tmp|var)/"
)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')  # of JSON
# an endpoint and its values, or the name and content of an uploaded file
Question = tuple[str, list[Any] | bytes]
_JSON = {"Content-Type": "application/json"}
_STATUSES = (200, 400, 403, 404, 405, 410, 413, 429, 503)


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


def manifest(folder: Path, values: Any) -> None:
    """Checks `pack.json`: reads and writes the manifest."""
    (folder / "pack.json").write_text(json.dumps(values))
    with refused(PackError):
        info = parse_info(read_json(folder / "pack.json"), folder)
        json.dumps(info.to_json(), ensure_ascii=False).encode()
        assert len(info.checksum) == 64


def gallery(folder: Path, values: Any) -> None:
    """Checks `gallery.json` in a folder with images."""
    (folder / "gallery.json").write_text(json.dumps(values))
    with refused(PackError, FileNotFoundError):
        results = load_gallery(folder)
        assert all((folder / file).resolve().is_relative_to(folder) for file in results.files)
        assert all(len(caption.text) <= 10_000 for caption in results.captions)


def karpathy(folder: Path, values: Any) -> None:
    """Checks Karpathy's JSON in a folder with photographs."""
    (folder / "dataset_flickr8k.json").write_text(json.dumps(values))
    with refused(ValueError, FileNotFoundError):
        results = open_photographs(folder, "train")
        assert len(results.image_of) == len(results.captions) > 0
        assert isinstance(results.images, ImageFiles)
        assert all(path.resolve().is_relative_to(folder) for path in results.images.paths)


def tokenizer(folder: Path, values: Any) -> None:
    """Checks `tokenizer.json`: loads the tokenizer and encodes a sentence."""
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with refused(PackError):
        results = load_tokenizer(folder / "tokenizer.json")
        with suppress(Exception):  # the runtime refuses the text after any error of the tokenizer
            results.encode("a red circle beside a bar")


def weights(path: Path, content: bytes) -> None:
    """Checks a file of weights: safetensors, or an ONNX graph that is not run."""
    path.write_bytes(content)
    with refused(PackError):
        check_weights(path)
        if path.suffix == ".safetensors":
            tensors, about = load_tensors(path)
            assert isinstance(about, dict)
            assert sum(t.nbytes for t in tensors.values()) <= len(content)


def image(folder: Path, content: bytes, suffix: str) -> None:
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


class Caller:
    """Sends requests to a running app, without a client that would validate them."""

    def __init__(self, url: str) -> None:
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

    def ask(self, endpoint: str, values: list[Any]) -> None:
        """Sends a request through Gradio's queue; fails if the answer is late or leaks paths."""
        try:
            reply = self.answer(endpoint, values)
        except (TimeoutError, httpx.TimeoutException):
            reply = self.answer(endpoint, values)  # again: this machine may have been suspended
        inputs = {text: json.loads(text) for text in STRING.findall(json.dumps(values))}
        for text in sorted(inputs, key=len, reverse=True):
            if len(inputs[text]) > 3:
                reply = reply.replace(text[1:-1], "").replace(inputs[text], "")
        tells_nothing(reply)

    def ask_plainly(self, endpoint: str, values: list[Any]) -> None:
        """Sends the same values over plain HTTP, as JSON or in the URL."""
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

    def send(self, name: str, content: bytes) -> None:
        """Searches with a file, and adds it to a collection."""
        sent = {"collection": self._collection, "name": name}
        for path, values in (("search", {"k": 3}), ("collections/file", sent)):
            reply = self._request("POST", f"/api/v1/{path}", content=content, params=values)
            tells_nothing(reply.text)
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

    def ask_all(self, questions: Callable[[Callable[[Question], None]], None]) -> None:
        """Sends all requests that `questions` passes to its argument; fails at the end."""
        failed: list[str] = []

        def ask(question: Question) -> None:
            name, values = question
            try:
                if isinstance(values, bytes):
                    self.send(name, values)
                else:
                    self.ask(name, values)
                    self.ask_plainly(name, values)
            except Exception as error:
                failed.append(f"{question!r:.500}: {type(error).__name__}: {error}")

        with ThreadPoolExecutor(8) as pool:
            questions(lambda question: (pool.submit(ask, question), None)[1])
        assert not failed, f"{len(failed)} failed, such as\n" + "\n".join(failed[:5])


def tells_nothing(text: str) -> None:
    """Fails if an answer contains paths or code of the server."""
    leak = LEAK.search(text)
    assert leak is None, text[max(0, leak.start() - 100) :][:300]
