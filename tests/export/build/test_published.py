"""Every class of published encoder goes into a pack that computes and ranks as torch does."""

from pathlib import Path
from typing import Any

import pytest

from polyview.export.encoders.sources import load_image_source, load_text_source
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import export_runs
from polyview.models import build
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.training.data.texts import build_tokenizer
from tests.export.conftest import CAPTIONS, LABELS, head_arguments, save_run, settle, write_gallery
from tests.published import PATCH, SIZE, save_bert, save_clip, save_image_model

GRID = (SIZE // PATCH, SIZE // PATCH)
CASES = {  # image encoder -> text encoder, method, grid
    "mobilenet_v2": ("bigru", "vse_infty", (2, 2)),
    "resnet": ("frozen bert", "mv_vse", (2, 2)),
    "vit": ("trained bert", "base_cls", GRID),
    "clip": ("frozen clip", "mvam", GRID),
}


def write_run(folder: Path, images: Path, text: str, name: str) -> Path:
    """A run folder of a method with random weights over published encoders."""
    image_encoder, _, image_about = load_image_source(images, rounded=False)
    if text == "bigru":
        tokenizer = build_tokenizer(CAPTIONS)
        arguments = {"vocab_size": tokenizer.get_vocab_size(), "word_dim": 6, "hidden_dim": 8}
        encoder: Any = BiGRUTextEncoder(**arguments)
        about_text: dict[str, Any] = {"arch": "bigru", "arguments": arguments}
    else:
        source = images if "clip" in text else save_bert(folder.with_name("texts"))
        encoder, tokenizer, about_text = load_text_source(source, rounded=False)
    dims = image_encoder.dim, encoder.dim
    modules = {"method": settle(build(name, *dims, head_arguments(name)))}
    if not text.startswith("frozen"):
        modules["text_encoder"] = encoder
        about_text = {k: v for k, v in about_text.items() if k not in ("source", "sha256")}
    save_run(folder, name, modules, tokenizer, about_text, dims, image_about["sha256"])
    return folder


@pytest.mark.parametrize("kind", CASES)
def test_a_published_encoder_goes_into_a_pack(kind: str, tmp_path: Path) -> None:
    text, method, grid = CASES[kind]
    images = tmp_path / "images"
    save_clip(images) if kind == "clip" else save_image_model(images, kind)
    run, gallery = write_run(tmp_path / "run", images, text, method), tmp_path / "gallery"
    info = export_runs(tmp_path / "pack", images, [run], LABELS, write_gallery(gallery))
    assert getattr(info.methods[method].parity, "ranking", False)
    assert info.image_encoder.grid == grid
    shared = info.methods[method].text_encoder.startswith("text_encoder-")
    assert shared == text.startswith("frozen")
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    assert len(runtime.boxes) == grid[0] * grid[1] + info.image_encoder.summary_token
    if text == "frozen bert":
        config = tmp_path / "texts" / "config.json"
        config.write_text(config.read_text().replace("1e-12", "1e-5"))
        with pytest.raises(ValueError, match="trained with another text encoder than"):
            export_runs(tmp_path / "other", images, [run], LABELS)
        assert not (tmp_path / "other").exists()
