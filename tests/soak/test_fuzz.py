"""Randomly damaged packs, images and requests.

By default, each kind of input has the same 25 cases in every run. SOAK_CASES sets the number of
random cases of all kinds together; `make soak` runs

    SOAK_CASES=10000 python -m pytest -m "" tests/soak --hypothesis-seed=1

A failure prints the smallest case and how to repeat it. If native code hangs, `make soak` ends the
process after five minutes and names the test; the input is in the temporary folder of the test.
"""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from safetensors.torch import save

from tests.app.conftest import Serve, draw
from tests.soak import checks
from tests.soak.junk import JUNK, LEAVES, damaged_bytes, damaged_json
from tests.training.photographs import write_photographs

CASES = int(os.environ.get("SOAK_CASES", "0"))
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
Target = tuple[SearchStrategy[Any], Callable[[Any], None]]


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


def targets(pack: Path, work: Path) -> dict[str, Target]:
    """Returns the damaged values of each kind of input, and their check; `work` is empty."""
    copy = Path(shutil.copytree(pack, work / "pack")).resolve()
    photographs = write_photographs(work / "photographs", {"train": 3}, captions=1).resolve()
    split = json.loads((photographs / "dataset_flickr8k.json").read_text())
    content = {
        name: json.loads((pack / name).read_text()) for name in ("pack.json", "tokenizer.json")
    }
    gallery = json.loads((pack / "gallery/gallery.json").read_text())
    gallery["images"] = gallery["images"][:4]
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(2).half()}
    head = save(tensors, {"about": '{"kind": "run"}'})
    graph = (pack / "vsepp/text_encoder.onnx").read_bytes()
    return {
        "manifest": (damaged_json(content["pack.json"]), lambda v: checks.manifest(copy, v)),
        "gallery": (damaged_json(gallery), lambda v: checks.gallery(copy / "gallery", v)),
        "karpathy": (damaged_json(split), lambda v: checks.karpathy(photographs, v)),
        "tokenizer": (damaged_json(content["tokenizer.json"]), lambda v: checks.tokenizer(copy, v)),
        "weights": (damaged_bytes(head, 250), lambda v: checks.weights(copy / "a.safetensors", v)),
        "network": (damaged_bytes(graph), lambda v: checks.weights(copy / "a.onnx", v)),
        "image": (images(), lambda v: checks.image(copy, *v)),
    }


def images() -> SearchStrategy[tuple[bytes, str]]:
    """Draws damaged image files, with the suffix of the format."""
    kinds = []
    for kind, suffix in _FORMATS.items():
        content = io.BytesIO()
        draw(4)[0].save(content, kind)
        kinds.append(st.tuples(damaged_bytes(content.getvalue(), 64), st.just(suffix)))
    return st.one_of(*kinds)


def questions(caller: checks.Caller) -> SearchStrategy[checks.Question]:
    """Draws requests to all endpoints of the app, with values of any type, and uploads."""
    known = sorted(caller.events)

    def ask(name: str) -> SearchStrategy[tuple[str, list[Any]]]:
        count = caller.events[name]
        values = st.lists(st.one_of(LEAVES, JUNK), min_size=count, max_size=count)
        odd = st.lists(JUNK, max_size=count + 2)
        return st.tuples(st.just(name), st.one_of(values, values, odd))

    # at least half of the requests to the public endpoints
    public = st.sampled_from(checks.ENDPOINTS)
    query = st.one_of(public, st.sampled_from(known)).flatmap(ask)
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
