"""Random damage to everything that comes from outside.

`make soak` runs it in full, `tests/soak/test_quick.py` in short:

    python -m pytest tests/soak/fuzz.py --hypothesis-seed=7      with SOAK_CASES=10000

A failure prints the case that hypothesis found to be the smallest, and how to repeat it. Where code
that is not Python's hangs, nothing can stop it but the end of the process, which `make soak` brings
about after five minutes: the input then lies in the folder of the test that is named.
"""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.app.conftest import Serve, draw
from tests.soak import checks
from tests.soak.junk import JUNK, LEAVES, damaged_bytes, damaged_json
from tests.training.photographs import write_photographs

CASES = int(os.environ.get("SOAK_CASES", "10000"))
_FORMATS = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "GIF": ".gif", "TIFF": ".tif"}
# how many of ten thousand cases go where; what is left, 1,600, are questions to the app, of which
# one in eight is an uploaded picture
SHARES = {
    "manifest": 2000,
    "gallery": 1400,
    "karpathy": 1000,
    "tokenizer": 500,
    "weights": 1400,
    "network": 900,
    "picture": 1200,
}
Target = tuple[SearchStrategy[Any], Callable[[Any], None]]


def fuzz(
    values: SearchStrategy[Any], check: Callable[[Any], None], cases: int, *, repeated: bool = False
) -> None:
    """Checks so many cases; `repeated` draws the same ones each time."""

    @settings(
        max_examples=max(1, cases),
        deadline=None,
        derandomize=repeated,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def run(value: Any) -> None:
        check(value)

    run()


def targets(pack: Path, work: Path) -> dict[str, Target]:
    """Each kind of input, made in an empty folder: damaged forms, and what must hold of them."""
    copy = Path(shutil.copytree(pack, work / "pack")).resolve()
    photographs = write_photographs(work / "photographs", {"train": 3}, captions=1).resolve()
    split = json.loads((photographs / "dataset_flickr8k.json").read_text())
    content = {
        name: json.loads((pack / name).read_text()) for name in ("pack.json", "tokenizer.json")
    }
    displayed = json.loads((pack / "gallery/gallery.json").read_text())
    displayed["images"] = displayed["images"][:4]
    head, graph = checks.whole_weights(), (pack / "vsepp/text_encoder.onnx").read_bytes()
    return {
        "manifest": (damaged_json(content["pack.json"]), lambda v: checks.manifest(copy, v)),
        "gallery": (damaged_json(displayed), lambda v: checks.gallery(copy / "gallery", v)),
        "karpathy": (damaged_json(split), lambda v: checks.karpathy(photographs, v)),
        "tokenizer": (damaged_json(content["tokenizer.json"]), lambda v: checks.tokenizer(copy, v)),
        "weights": (damaged_bytes(head, 250), lambda v: checks.weights(copy / "a.safetensors", v)),
        "network": (damaged_bytes(graph), lambda v: checks.weights(copy / "a.onnx", v)),
        "picture": (pictures(), lambda v: checks.picture(copy, *v)),
    }


def pictures() -> SearchStrategy[tuple[bytes, str]]:
    """Damaged pictures, each with the suffix of its format."""
    files = [(damaged_bytes(whole_image(kind), 64), end) for kind, end in _FORMATS.items()]
    return st.one_of(*(st.tuples(damaged, st.just(end)) for damaged, end in files))


def questions(caller: checks.Caller) -> SearchStrategy[checks.Question]:
    """Questions to any endpoint of the app with values of any kind, and uploads."""
    known = sorted(caller.events)

    def ask(name: str) -> SearchStrategy[tuple[str, list[Any]]]:
        count = caller.events[name]
        values = st.lists(st.one_of(LEAVES, JUNK), min_size=count, max_size=count)
        odd = st.lists(JUNK, max_size=count + 2)
        return st.tuples(st.just(name), st.one_of(values, values, odd))

    # half of them to the endpoints that other programs use
    public = st.sampled_from(checks.ENDPOINTS)
    query = st.one_of(public, st.sampled_from(known)).flatmap(ask)
    names = st.sampled_from(("photo", "../../../photo", "/etc/photo", "<b>", "x" * 300))
    sent = st.tuples(names, pictures()).map(lambda drawn: (drawn[0] + drawn[1][1], drawn[1][0]))
    return st.integers(0, 7).flatmap(lambda n: query if n else sent)


def whole_image(kind: str) -> bytes:
    """A picture's file."""
    content = io.BytesIO()
    draw(4)[0].save(content, kind)
    return content.getvalue()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", SHARES)
def test_damaged_input_is_used_or_refused(kind: str, kinds: dict[str, Target]) -> None:
    fuzz(*kinds[kind], cases=CASES * SHARES[kind] // 10_000)


@pytest.mark.timeout(500)
def test_every_endpoint_of_the_app_answers(serve: Serve, tiny_pack: Path) -> None:
    server = serve("--pack", tiny_pack)
    caller = checks.Caller(server.url)
    left = CASES - sum(CASES * share // 10_000 for share in SHARES.values())
    caller.ask_all(lambda ask: fuzz(questions(caller), ask, left))
    assert server.http.post("search", content=bytes(80_000_000)).status_code == 413
    assert server.get("info")["gallery"]["state"] == "ready"
    assert server.get("search", q="a red circle", method="vsepp", k=3)["hits"]
