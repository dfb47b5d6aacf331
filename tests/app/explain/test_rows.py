"""Evidence of a converted CLIP: exact, on patches and words; a pack without rows says so."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview import models
from polyview.app.api import evidence
from polyview.app.api.library import Library
from polyview.app.gallery import encode
from polyview.app.packs.opened import Opened
from polyview.app.settings import Settings
from polyview.export.build.pack import MethodParts, PackParts, build_pack
from polyview.export.clip import build_clip
from polyview.export.encoders.sources import load_image_source, load_text_source
from tests.app.conftest import draw, finish
from tests.clip_twins import spread
from tests.export.conftest import LABELS
from tests.published import save_clip

TEXT = "a red dog"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random CLIP as transformers saves it, whose images and texts come out apart."""
    from transformers import CLIPModel

    folder = save_clip(tmp_path_factory.mktemp("source"))
    network = CLIPModel.from_pretrained(folder)
    torch.manual_seed(0)
    spread(network).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(5):
        draw(i)[0].save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def pack(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "clip"
    build_clip(folder, str(source), LABELS)
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "cache"))


def test_evidence_lies_on_patches_and_words_and_adds_up(pack: Path, photos: Path) -> None:
    with Library(pack, photos, device="cpu") as library:
        for hit in library.search(TEXT, k=5):
            why = library.explain(TEXT, hit)
            assert why.words == ("a", "red", "dog", "")  # the last: marks, and the rest of the text
            assert why.cells.shape == (4, 4, 4)
            assert np.abs(why.cells).max(axis=(0, 1)).min() > 1e-4
            assert why.score == pytest.approx(hit.score, abs=1e-5)
            assert why.base + why.cells.sum(dtype=np.float64) == pytest.approx(why.score, abs=1e-4)
            assert np.asarray(why.light("dog")).std() > 0


def test_a_gallery_keeps_sums_and_few_rows(
    pack: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "RECENT", 2)
    opened = Opened(Settings(str(pack), photos, "cpu"), tmp_path / "cache")
    encoder = finish(opened.first.index).encoder
    with closing(sqlite3.connect(next(tmp_path.rglob("gallery.sqlite")))) as database:
        sizes = database.execute("SELECT rows, length(data) FROM vectors").fetchall()
    assert set(sizes) == {(1, 4 * 10)}
    images = opened.first.collection.images
    features = encoder.features(images, "clip")
    assert {tuple(rows.shape) for rows in features.values()} == {(17, 10)}
    assert list(encoder.features(images, "clip", at_hand=True)) == [3, 4]
    torch.testing.assert_close(encoder.features(images[:1], "clip")[0], features[0])
    assert list(encoder.features(images, "clip", at_hand=True)) == [0, 4]


def test_a_pack_without_rows_says_that_there_is_no_map(
    source: Path, photos: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "summaries"
    build_summaries(pack, source)
    opened = Opened(Settings(str(pack), photos, "cpu"), tmp_path / "cache")
    finish(opened.first.index)
    retriever = opened.first
    item = evidence.explain(retriever, TEXT, 2)
    some = evidence.explain_hits(retriever, TEXT, [2, 3])
    assert item.words == some.words == ["a", "red", "dog"]
    assert item.base == pytest.approx(item.score, abs=1e-6)
    assert not np.any(item.cells)
    assert "a summary of the whole image" in item.remark
    assert item.remark.endswith(some.remark)
    with pytest.raises(ValueError, match="No map can be drawn"):
        evidence.explain_image(retriever, TEXT, 2, word="dog")


def build_summaries(out: Path, source: Path) -> None:
    """A pack that reads nothing but the encoders' first states."""
    images, preprocess, _ = load_image_source(str(source), rounded=False)
    texts, tokenizer, about = load_text_source(str(source), rounded=False)
    arguments = {"embed_dim": 8}
    method = models.build("base_cls", images.dim, texts.dim, arguments).eval()
    parts = PackParts(
        image_encoder=images,
        image_dim=images.dim,
        preprocess=preprocess,
        tokenizer=tokenizer.to_str(),
        max_length=about["max_length"],
        methods={"base_cls": MethodParts(images, texts, method, arguments, {})},
    )
    build_pack(out, LABELS, parts)
