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
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from safetensors.torch import save

from tests.app.conftest import Serve, draw, saved
from tests.soak import checks
from tests.training.conftest import write_photographs

CASES = int(os.environ.get("SOAK_CASES", "0"))
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
Target = tuple[SearchStrategy[Any], Callable[[Any], None]]


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


def fuzz(values: SearchStrategy[Any], check: Callable[[Any], None], cases: int) -> None:
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
        "manifest": (damaged_json(manifest), lambda v: checks.manifest(pack, v)),
        "gallery": (damaged_json(gallery), lambda v: checks.gallery(pack / "gallery", v)),
        "karpathy": (damaged_json(split), lambda v: checks.karpathy(photographs, v)),
        "tokenizer": (damaged_json(tokenizer), lambda v: checks.tokenizer(pack, v)),
        "weights": (damaged_bytes(head, 250), lambda v: checks.weights(pack / "a.safetensors", v)),
        "network": (damaged_bytes(graph), lambda v: checks.weights(pack / "a.onnx", v)),
        "image": (images(), lambda v: checks.image(pack, *v)),
    }


def images() -> SearchStrategy[tuple[bytes, str]]:
    """Draws damaged image files, with the suffix of the format."""
    kinds = []
    for kind, suffix in _FORMATS.items():
        content = saved(draw(4)[0], kind)
        kinds.append(st.tuples(damaged_bytes(content, 64), st.just(suffix)))
    return st.one_of(*kinds)


def questions(caller: checks.Caller) -> SearchStrategy[checks.Question]:
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
    caller = checks.Caller(server.url)
    left = CASES - sum(CASES * share // 10_000 for share in SHARES.values())
    caller.ask_all(lambda ask: fuzz(questions(caller), ask, left))
    assert server.http.post("search", content=bytes(80_000_000)).status_code == 413
    assert server.get("info")["gallery"]["state"] == "ready"
    assert server.get("search", q="a red circle", method="vsepp", k=3)["hits"]
