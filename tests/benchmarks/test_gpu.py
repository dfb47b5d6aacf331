"""The tests of `make gpu`; without CUDA they run on the CPU as a rehearsal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import gpu
from polyview.export.pack.gallery import load_gallery
from polyview.export.runtime import Runtime
from tests.app.serving import Serve, Server

pytestmark = pytest.mark.slow


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """CUDA, or the CPU in a rehearsal."""
    return torch.device(request.param if torch.cuda.is_available() else "cpu")


def test_the_app_computes_on_the_device_and_reports_it(
    many_pack: Path, device: torch.device, private: Server, serve: Serve
) -> None:
    app = private  # a rehearsal needs no second app on the CPU
    if device.type == "cuda":
        app = serve("--pack", many_pack, "--device", "cuda")
    info = app.get("info")
    assert info["device"].startswith(device.type)
    assert info["providers"][0] == f"{device.type.upper()}ExecutionProvider"
    for path, query in (
        ("explain", {"q": "a red circle", "image": 0}),
        ("explain/hits", {"q": "a red circle", "images": "0,1,2"}),
        ("views", {"image": 0}),
    ):
        expected, actual = (numbers(each.get(path, **query)) for each in (private, app))
        assert len(expected) > 10
        np.testing.assert_allclose(actual, expected, atol=gpu.TOLERANCE)


def numbers(answer: Any) -> list[float]:
    """Returns all floating-point numbers of an answer except times."""
    if isinstance(answer, dict):
        return [x for name, item in answer.items() if name != "ms" for x in numbers(item)]
    if isinstance(answer, list):
        return [x for item in answer for x in numbers(item)]
    return [float(answer)] if isinstance(answer, float) else []


def test_different_scores_and_rankings_are_detected(many_pack: Path) -> None:
    gallery, runtime = load_gallery(many_pack), Runtime.load(many_pack, "cpu")
    images = [Image.open(gallery.folder / image.file) for image in gallery.images]
    captions = [caption.text for caption in gallery.captions[:4]]
    reference = gpu.computations(runtime, "mv_vse", images, captions)
    scores = reference["scores"]()
    differences = gpu.differences(reference, reference | {"scores": lambda: -scores})
    assert differences["features"] == 0
    assert min(differences["scores"], differences["ranking"]) > gpu.TOLERANCE
    assert not gpu.difference(torch.ones(2), torch.tensor([1.0, torch.nan])) <= 1


def test_a_rehearsal_claims_no_gpu_and_fails_if_numbers_differ(
    many_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    page, options = tmp_path / "gpu.md", ["--pack", str(many_pack), "--images", "4", "--runs", "1"]
    assert gpu.main([*options, "--out", str(page)]) == 0
    written = page.read_text()
    assert all(text in written for text in ("no GPU; ", "rehearsal", "Computations: "))
    assert "times faster" not in written  # both times are the CPU's
    monkeypatch.setattr(gpu, "differences", lambda *_: {"scores": float("nan")})
    assert gpu.main(options) == 1
    assert "scores: nan; the maximum is 0.001" in capsys.readouterr().err
