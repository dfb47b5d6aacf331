"""Batches do not change features and views; wrong inputs and devices are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export.pack.validation import PackError
from polyview.export.runtime import Runtime
from polyview.export.sessions import Sessions
from tests.export.conftest import IMAGE_DIM, NAME, SIZE, edited

TEXTS = ["a dog", "two apples left of a red car at night on the beach", "zebra", "the cat"]


@pytest.fixture(scope="module")
def runtime(pack: Path) -> Runtime:
    return Runtime.load(pack, "cpu")


def noise_images(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(count)
    return [Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)) for _ in range(count)]


def test_batches_do_not_change_features(runtime: Runtime) -> None:
    photos = noise_images(35)
    together = runtime.image_features(photos)
    assert together.shape == (35, 16, IMAGE_DIM)
    alone = torch.cat([runtime.image_features([photo]) for photo in photos[30:]])
    torch.testing.assert_close(together[30:], alone, atol=1e-5, rtol=1e-5)
    odd = [Image.new("L", (31, 200)), Image.new("RGBA", (500, 20)), Image.new("1", (1, 1))]
    assert torch.isfinite(runtime.image_features(odd)).all()


def test_a_text_encoder_of_another_width(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sessions, "run", lambda *_: torch.zeros(1, 3, 5))
    with pytest.raises(PackError, match=r"gives features \(1, 3, 5\), not \(1, 3, "):
        runtime.text_features(["a red dog"], NAME)


REFUSED: list[tuple[Callable[[Runtime], Any], str]] = [
    (lambda r: r.image_features([]), "there is no image"),
    (lambda r: r.text_views([], NAME), "there is no text"),
    (lambda r: r.text_views(["a dog", " \n"], NAME), "text is empty; type at least one word"),
    (lambda r: r.text_views(["..."], NAME), "the text is empty"),
    (lambda r: r.reader.read("a dog \ud800"), "not valid Unicode"),
    (lambda r: r.text_views(["a"], "nothing"), 'no method "nothing" in this pack; choose one of v'),
    (lambda r: r.pixel_features(np.zeros((1, 3, 8, 8), np.float32)), r"must be \(B, 3, 64"),
    (lambda r: r.pixel_features(np.zeros((1, 3, 64, 64))), "float32, not .* float64"),
    (lambda r: r.pixel_features(np.zeros((0, 3, 64, 64), np.float32)), "pixels must be"),
]


def test_bad_input_is_refused(runtime: Runtime, pack: Path) -> None:
    for call, sentence in REFUSED:
        with pytest.raises(ValueError, match=sentence):
            call(runtime)
    with pytest.raises(ValueError, match='must be "auto", "cpu" or "cuda", not "tpu"'):
        Runtime.load(pack, "tpu")  # type: ignore[arg-type]
    assert 1 <= runtime.threads <= 4


def test_cuda_is_refused_where_there_is_none(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='"cuda" cannot be used: torch finds no CUDA device'):
        Runtime.load(pack, "cuda")
    assert Runtime.load(pack, "auto").device.type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="onnxruntime can start CUDA here")
def test_onnxruntime_without_cuda_is_reported(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="onnxruntime could not start its CUDA provider"):
        Sessions(pack, "cuda").start("image_encoder.onnx", ["pixels"])
    session = Sessions(pack, "auto").start("image_encoder.onnx", ["pixels"])
    assert session.get_providers() == ["CPUExecutionProvider"]  # the one really in use


def test_contradicting_encoder(copied: Path) -> None:
    with edited(copied / "pack.json") as values:
        values["image_encoder"]["grid"] = [2, 8]
    assert Runtime.load(copied, "cpu").image_features(noise_images(1)).shape == (1, 16, IMAGE_DIM)
    with edited(copied / "pack.json") as values:
        values["image_encoder"]["grid"] = [4, 5]
    with pytest.raises(PackError, match=r"gives \(16, 12\) features .* says \(20, 12\)"):
        Runtime.load(copied, "cpu").image_features(noise_images(1))
