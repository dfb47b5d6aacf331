"""Every class of published encoder: trained for some steps, exported, loaded, searched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from app.gallery.collection import from_pack
from app.search.query import Term
from app.search.retriever import Retriever
from export.encoders.sources import describe_image_source, load_image_source
from export.pack.gallery import load_gallery
from export.runtime import Runtime
from export.to_onnx import export_runs
from tests.app.conftest import finish
from tests.app.looking import maps_of
from tests.export.conftest import LABELS, write_gallery
from tests.measuring import measure
from tests.published import PATCH, SIZE, save_bert, save_clip, save_image_model
from training.data.split import Split
from training.loop.config import TrainConfig
from training.loop.trainer import Trainer
from training.settings import from_values

GRID = SIZE // PATCH


def _image(kind: str) -> Callable[[Path], Path]:
    return lambda folder: save_image_model(folder, kind)


# image encoder, text recipe, method, grid
CASES: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str, tuple[int, int]]] = {
    "mobilenet_v2 with a BiGRU": (_image("mobilenet_v2"), {}, "vse_infty", (2, 2)),
    "resnet with frozen bert": (_image("resnet"), {"arch": "bert"}, "mv_vse", (2, 2)),
    "vit with trained bert": (
        _image("vit"),
        {"arch": "bert", "frozen": False, "lr_scale": 0.1},
        "base_cls",
        (GRID, GRID),
    ),
    "clip with clip": (save_clip, {"arch": "clip_text"}, "mvam", (GRID, GRID)),
}


def _read(gallery: Path, source: Path) -> Split:
    """A gallery's images as features, with their captions."""
    encoder, preprocess, _ = load_image_source(source)
    info = load_gallery(gallery)
    pictures: list[Image.Image] = [Image.open(info.folder / image.file) for image in info.images]
    with torch.inference_mode():
        features = encoder(torch.from_numpy(preprocess(pictures))).half().numpy()
    captions = [caption.text for caption in info.captions]
    counts = [len(image.captions) for image in info.images]
    rows = np.repeat(np.arange(len(counts)), counts)
    return Split(captions, rows, features=features, summary_token=encoder.summary_token)


@pytest.mark.parametrize("case", CASES)
def test_a_class_is_trained_exported_measured_and_searched(case: str, tmp_path: Path) -> None:
    save, text, method, grid = CASES[case]
    images = save(tmp_path / "images")
    if text.get("arch") == "bert":
        text = {**text, "source": str(save_bert(tmp_path / "texts"))}
    elif text:
        text = {**text, "source": str(images)}
    gallery = write_gallery(tmp_path / "gallery", 12)
    data = _read(gallery, images)
    values = {
        "method": method,
        "arguments": {"embed_dim": 8},
        "text": {"word_dim": 6, "hidden_dim": 8, **text},
        "epochs": 5,
        "batch_size": 3,
        "patience": 9,
    }
    config = from_values(TrainConfig, values)
    about = {
        "backbone_sha256": describe_image_source(images)["sha256"],
        "cache": tmp_path / "cache",
    }
    trainer = Trainer(config, data, data, tmp_path / "run", **about)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.fit()
    assert trainer.progress["step"] == 20
    changed = {n for n, p in trainer.model.named_parameters() if not torch.equal(before[n], p)}
    assert any(name.startswith("method.") for name in changed)
    trained_text = any(name.startswith("text_encoder.") for name in changed)
    assert trained_text == (not text.get("source") or text.get("frozen") is False)
    frozen = bool(text.get("source")) and text.get("frozen", True)
    assert len(list(tmp_path.glob("cache/texts-*.npy"))) == (1 if frozen else 0)

    info = export_runs(tmp_path / "pack", str(images), [tmp_path / "run"], LABELS, gallery)
    assert info.methods[method].parity["ranking"] is True
    assert info.image_encoder.grid == grid
    assert info.image_encoder.summary_token == data.summary_token
    shared = info.methods[method].text_encoder.startswith("text_encoder-")
    assert shared == frozen

    runtime = Runtime.load(tmp_path / "pack", "cpu", threads=1)
    assert len(runtime.boxes) == grid[0] * grid[1] + data.summary_token
    assert runtime.boxes[-1].tolist()[2:] == [1.0, 1.0]
    pictures = [Image.open(p) for p in sorted((gallery / "images").iterdir())]
    seen = Split(data.captions, data.image_of, pictures)
    measured = measure(runtime, method, seen)
    assert measured["rsum"] == pytest.approx(trainer.progress["best"], abs=35)

    retriever = Retriever(runtime, from_pack(tmp_path / "pack"), tmp_path / "index")
    finish(retriever.index)
    hits = retriever.search([Term("a red dog")], method, 3).hits
    assert hits[0].score >= hits[1].score >= hits[2].score
    maps = maps_of(retriever, hits[0].image_id, method)
    assert maps.shape[1:] == grid
