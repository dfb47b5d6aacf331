"""Licence, credits and title of a pack, derived from the training data."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from polyview.export import to_onnx
from polyview.export.encoders.sources import load_image_source
from polyview.export.pack.reading import load_info
from polyview.models.checkpoint import load_tensors, save_tensors
from tests.training.conftest import RECIPE, run_training, write_encoder, write_photographs

BUNDLED = Path(__file__).parents[3] / "app" / "bundled"
SCENES = {"kind": "scenes", "name": "rendered scenes", "images": 12, "captions": 60}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`my_photos/`, `backbone/`, and `run/`, trained on both."""
    root = tmp_path_factory.mktemp("trained")
    data = write_photographs(root / "my_photos", {"train": 16, "val": 4})
    (data / "dataset_flickr8k.json").rename(data / "captions.json")
    shape = "widths = [4, 4, 6]\nblocks = [1, 1]\n"
    (write_encoder(root / "backbone") / "config.toml").write_text(shape)
    (root / "recipe.toml").write_text(RECIPE.format(method="vsepp"))
    train_over(root, root / "backbone", root / "run")
    return root


def train_over(root: Path, backbone: Path, out: Path, *more: str) -> Path:
    settings = (f"data={root / 'my_photos'}", f"backbone={backbone}", "batch_size=8", *more)
    return run_training(root / "recipe.toml", out, *settings)


def export(backbone: Path, run: Path, out: Path, *more: str) -> int:
    return to_onnx.main(["--backbone", f"{backbone}", "--run", f"{run}", "--out", f"{out}", *more])


def relabel(folder: Path, **changes: Any) -> None:
    """Changes the metadata of a run's weights; None removes a key."""
    tensors, about = load_tensors(folder / "best.safetensors")
    about = {key: value for key, value in (about | changes).items() if value is not None}
    save_tensors(folder / "best.safetensors", tensors, about)


def test_photographs_need_a_licence_which_binds_what_is_trained_over_them(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, more = tmp_path / "pack", tmp_path / "more"
    made = trained / "backbone", trained / "run", out
    assert export(*made) == 1
    assert "trained on my_photos over" in (printed := capsys.readouterr().err)
    assert "--licence CC-BY-NC-4.0" in printed
    assert not out.exists()
    assert export(*made, "--licence", "MIT", "--name", "holidays_2026") == 0
    assert load_info(out).title == "Holidays 2026"
    assert export(*made, "--force", "--licence", "CC-BY-NC-4.0") == 0
    first, card = load_info(out), (out / "README.md").read_text("utf-8")
    assert (first.title, first.licence) == ("my_photos", "CC-BY-NC-4.0")
    assert "trained on my_photos (16 images with 80 captions)" in first.description
    assert not any(word in card for word in ("Noto", "Apache", "Scenes", "rendered"))

    run = train_over(trained, out, tmp_path / "run", "method=base_attn")
    assert export(out, run, more, "--licence", "CC-BY-4.0") == 1
    assert "use --licence CC-BY-NC-4.0" in capsys.readouterr().err
    assert not more.exists()
    assert export(out, run, more, "--licence", "research only") == 0
    info = load_info(more)
    assert info.files["image_encoder.onnx"] == first.files["image_encoder.onnx"]
    assert first.credits in info.credits
    assert "training/backbone/config.toml" in info.files


def test_rendered_scenes_are_free(trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "scenes"))
    backbone, run = root / "backbone", root / "run"
    for data, status in ((SCENES, 0), (None, 1)):  # None: the training data are unknown
        relabel(backbone, data=data)
        relabel(run, data=SCENES, backbone_sha256=load_image_source(backbone)[2]["sha256"])
        assert export(backbone, run, tmp_path / "pack", "--force") == status
        info = load_info(tmp_path / "pack")
        assert (info.name, info.licence) == ("scenes", "Apache-2.0")
        assert info.credits == "Noto Color Emoji (OFL 1.1)"


def test_the_encoder_of_a_bundled_pack_can_be_trained_over(small_pack: Path) -> None:
    """The encoder of a pack without `training/backbone` is refused."""
    pack = BUNDLED / "photos"
    encoder, preprocess, about = load_image_source(pack)
    pixels = torch.rand(2, 3, preprocess.size, preprocess.size) * 2 - 1
    session = ort.InferenceSession(pack / "image_encoder.onnx")
    (output,) = session.run(None, {"pixels": pixels.numpy()})
    with torch.no_grad():
        assert np.abs(output - encoder(pixels).numpy()).max() < 1e-5 * np.abs(output).max()
    assert about["pack"]["title"] == load_info(pack).title
    with pytest.raises(ValueError, match="has no image encoder with a recipe in training"):
        load_image_source(small_pack)
