"""What `make gpu` runs: on CUDA where there is one, and as a rehearsal on the CPU."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks import gpu
from benchmarks.copies import copied, read_trace
from benchmarks.devices import (
    NUMBERS,
    Work,
    apart,
    compare,
    misplaced,
    open_on,
    sinkhorn_difference,
)
from benchmarks.kernels import training_step
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.runtime import Runtime
from training.objectives import OBJECTIVES

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The GPU, and the CPU in its place."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device(request.param)


def pairs(pack: Path, device: torch.device) -> Iterator[tuple[Work, Work]]:
    """Each method of a pack, as the app has it on the CPU, and on a device."""
    gallery = load_gallery(pack)
    images = [Image.open(gallery.folder / image.file) for image in gallery.images]
    captions = [caption.text for caption in gallery.captions[:4]]
    here, (there, _) = Runtime.load(pack, "cpu"), open_on(pack, device)
    for name in load_info(pack).methods:
        yield Work(here, name, images, captions), Work(there, name, images, captions)


def test_numbers_and_rankings_are_the_same(many_pack: Path, device: torch.device) -> None:
    for here, there in pairs(many_pack, device):
        found = compare(here, there)
        assert {one.what for one in found} >= set(NUMBERS) - {"heatmap"}
        assert all(one.close for one in found), (here.name, found)
        assert there.features.device.type == there.views.embeddings.device.type == device.type
    assert sinkhorn_difference(device, 100).close


def test_nothing_comes_to_the_host_on_the_way(many_pack: Path, device: torch.device) -> None:
    for _, there in pairs(many_pack, device):
        for what, act in gpu._acts(there).items():
            assert copied(act).small, (there.name, what)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_training_step(name: str, device: torch.device) -> None:
    with torch.device(device):
        training_step(name, {"embed_dim": 32}, gpu.SMALL, torch.bfloat16)()


def test_wrong_numbers_and_rankings_are_found(many_pack: Path) -> None:
    here, there = next(pairs(many_pack, CPU))
    there.features = there.features * 1.01
    scores = here.scores()
    ranked = scores.argsort(dim=0, descending=True).T[:, :3]
    report = gpu.Report()
    report.judge(*compare(here, there))
    assert any(line.startswith("features") for line in report.failed)
    assert misplaced(scores, ranked.tolist()) == 0
    assert misplaced(scores, ranked.flip(1).tolist()) > 0
    assert not apart(torch.ones(2), torch.tensor([1.0, torch.nan])) <= 1


def test_copies_of_a_trace(tmp_path: Path) -> None:
    def event(name: str, size: int, kind: str = "gpu_memcpy") -> dict[str, object]:
        return {"ph": "X", "cat": kind, "name": name, "args": {"bytes": size}}

    events = [
        event("Memcpy DtoH (Device -> Pageable)", 4),
        event("Memcpy DtoH (Device -> Pinned)", 8192),
        event("Memcpy HtoD (Pageable -> Device)", 10**6),
        event("Memcpy DtoD (Device -> Device)", 10**6),
        {"ph": "X", "cat": "cpu_op", "name": "aten::copy_"},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    found = read_trace(tmp_path / "trace.json")
    assert (found.times, found.size) == (2, 8196)
    assert not found.small


def test_the_page_of_a_rehearsal_claims_no_gpu(
    many_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    page = tmp_path / "gpu.md"
    given = ["--pack", str(many_pack), "--images", "8", "--runs", "1", "--out", str(page)]
    assert gpu.main(given) == 0
    written = page.read_text()
    assert "no GPU; " in written
    assert "rehearsal" in written
    for title in ("Differences", "Bytes copied", "Milliseconds", "Images a second", "training"):
        assert title in written
    assert " x |" not in written  # no times, which would be the CPU's twice
