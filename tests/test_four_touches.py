"""A method comes in with four touches: its class, its objective, its recipe and a test, this one.

Everything else (trainer, export, runtime, evaluation, card, search and maps) has to find it by the
registries alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import models
from app.explain.look import maps_of
from app.gallery.collection import from_pack
from app.search.query import Term
from app.search.retriever import Retriever
from export.build.to_onnx import export_runs
from export.hub.sources import load_image_source
from export.pack.gallery import load_gallery
from export.runtime import Runtime
from models import Method, Views
from models.files import sha256_of
from models.layers import l2_normalize, masked_mean, single_view
from tests.export.conftest import LABELS, write_backbone, write_gallery
from tests.measuring import measure
from training import evaluate
from training.data.split import Split
from training.loop.config import TrainConfig, load_recipe
from training.loop.trainer import Trainer
from training.objectives import OBJECTIVES
from training.objectives.vse_infty import Triplet

RECIPE = """
method = "two_maps"
epochs = 4
batch_size = 4
size_augmentation = 0.2

[arguments]
embed_dim = 8

[objective]
margin = 0.3

[text]
word_dim = 6
hidden_dim = 10

[optimizer]
learning_rate = 1e-2
"""


class TwoMaps(Method):
    """The mean of two learned linear maps, averaged over the set; V = 1."""

    title = "Two maps"
    paper = "Nobody, nowhere, this year"
    attention_is = "the same share for every element"

    def __init__(self, image_dim: int, text_dim: int, embed_dim: int = 16) -> None:
        super().__init__()
        self.image_maps = nn.ModuleList(nn.Linear(image_dim, embed_dim) for _ in range(2))
        self.text_maps = nn.ModuleList(nn.Linear(text_dim, embed_dim) for _ in range(2))

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_image`."""
        return _average(self.image_maps, features, mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_text`."""
        return _average(self.text_maps, features, mask, attention)


def _average(maps: nn.ModuleList, features: Tensor, mask: Tensor, attention: bool) -> Views:
    mapped = torch.stack([part(features) for part in maps]).mean(dim=0)  # (B, N, D)
    shares = mask / mask.sum(dim=1, keepdim=True)
    return single_view(l2_normalize(masked_mean(mapped, mask)), shares if attention else None)


def _read(gallery: Path, backbone: Path) -> Split:
    """A gallery's pictures as features, with their captions."""
    encoder, preprocess, _ = load_image_source(backbone)
    info = load_gallery(gallery)
    pictures: list[Image.Image] = [Image.open(info.folder / image.file) for image in info.images]
    pixels = torch.from_numpy(preprocess(pictures))
    with torch.inference_mode():
        features = encoder(pixels).half().numpy()
    captions = [caption.text for caption in info.captions]
    counts = [len(image.captions) for image in info.images]
    return Split(captions, np.repeat(np.arange(len(counts)), counts), features=features)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `backbone`, `gallery` and the toy's `run`, trained from its recipe."""
    torch.manual_seed(0)
    monkeypatch.setitem(models.METHODS, "two_maps", TwoMaps)  # its line in METHODS
    monkeypatch.setitem(OBJECTIVES, "two_maps", Triplet)  # its objective
    recipe = tmp_path / "two_maps.toml"
    recipe.write_text(RECIPE)
    backbone = write_backbone(tmp_path / "backbone")
    data = _read(write_gallery(tmp_path / "gallery", 12), backbone)
    config = load_recipe(TrainConfig, str(recipe))
    sha256 = sha256_of(backbone / "best.safetensors")
    Trainer(config, data, data, tmp_path / "run", backbone_sha256=sha256).fit()
    return tmp_path


def test_a_toy_method_is_trained_exported_measured_searched_and_looked_into(trained: Path) -> None:
    info = export_runs(
        trained / "pack", trained / "backbone", [trained / "run"], LABELS, trained / "gallery"
    )
    assert info.methods["two_maps"].parity["ranking"] is True
    assert TwoMaps.title in (trained / "pack" / "README.md").read_text()

    runtime = Runtime.load(trained / "pack", "cpu")
    data = evaluate.from_pack(trained / "pack", "test")
    metrics = measure(runtime, "two_maps", data)
    assert 0 < metrics["rsum"] <= 600

    retriever = Retriever(runtime, from_pack(trained / "pack"), trained / "cache")
    retriever.index.start()
    assert retriever.index.wait(60)
    hits = retriever.search([Term("a red dog")], "two_maps", 3).hits
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert hits[0].score >= hits[1].score >= hits[2].score
    picture = Term(image=retriever.open(hits[0].image_id))
    found = retriever.search([picture], "two_maps", 1, captions=1)
    assert found.captions[0].text in data.captions
    (heatmap,) = maps_of(retriever, hits[0].image_id, "two_maps")
    np.testing.assert_allclose(heatmap, 1 / heatmap.size, rtol=1e-5)
