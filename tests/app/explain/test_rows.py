"""Evidence of a CLIP: sums, patches and words, missing maps, drawing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.app.api import evidence
from polyview.app.explain.evidence import QueryEvidence, darken, explain
from polyview.app.explain.evidence import draw as draw_evidence
from polyview.app.gallery import encode
from polyview.app.gallery.scan import from_folder
from polyview.app.search.hits import QueryTerm
from polyview.app.search.retriever import Retriever, Term
from polyview.models.evidence import Evidence
from tests.app.conftest import bundled_runtime, draw, find, finish

TEXT = "a red dog"


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Retriever:
    """Five images; the features of two stay in memory."""
    monkeypatch.setattr(encode, "MAX_RECENT", 2)
    for i in range(5):
        draw(i)[0].save(tmp_path / f"{i}.png")
    retriever = Retriever(bundled_runtime("clip_tiny"), from_folder(tmp_path), tmp_path / "cache")
    finish(retriever.index)
    return retriever


def test_evidence_of_patches_and_words_adds_up(clip: Retriever) -> None:
    method, query = clip.methods["clip"], clip.parts(TEXT, "clip")
    for hit in find(clip, TEXT, "clip", 5):
        why = evidence.explain(clip, TEXT, hit.image_id, "clip")
        assert why.words == ["a", "red", "dog"]
        assert why.score == pytest.approx(hit.score, abs=1e-5)
        cells, whole = np.array(why.cells), np.array(why.whole_sentence)
        assert why.base + cells.sum() + whole.sum() == pytest.approx(why.score, abs=1e-4)
        table = method.evidence(clip.parts([hit.image_id], "clip"), query).cells[0]  # (65, M)
        special = sorted(clip.tokenize(TEXT).special)
        words = [column for column in range(table.shape[1]) if column not in special]
        expected = table[1:, words]  # the first row is that of the summary token
        np.testing.assert_allclose(cells.reshape(64, 3), expected, atol=1e-4)
        assert np.abs(cells).max() > 1e-3


def test_summaries_have_no_location(clip: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    for term, count in (
        (Term(TEXT), len(clip.tokenize(TEXT).words)),
        (Term(image=clip.image(1)), 65),
    ):
        cells = torch.rand(1, 65, count, generator=random)
        split = Evidence(cells, torch.rand(1, 65, generator=random), torch.ones(1))
        monkeypatch.setattr(clip.methods["clip"], "evidence", lambda *_, s=split, **__: s)
        results = explain(clip, [term], "clip", [0])
        expected = 1 + cells[:, 0].sum() + split.whole_sentence[:, 0]
        assert results.base == pytest.approx(expected.numpy(), abs=1e-4)
        total = results.base.sum() + results.cells.sum() + results.whole_sentence.sum()
        assert total == pytest.approx(float(split.score), rel=1e-5)


def test_the_store_has_sums_and_memory_has_recent_features(clip: Retriever, tmp_path: Path) -> None:
    with closing(sqlite3.connect(next(tmp_path.rglob("gallery.sqlite")))) as database:
        sizes = database.execute("SELECT rows, length(data) FROM vectors").fetchall()
    assert set(sizes) == {(1, 4 * 128)}
    encoder, images = clip.index.encoder, clip.collection.images
    features = encoder.features(images, "clip")
    assert {tuple(rows.shape) for rows in features.values()} == {(65, 128)}
    assert list(encoder.features(images, "clip", cached_only=True)) == [3, 4]
    torch.testing.assert_close(encoder.features(images[:1], "clip")[0], features[0])
    assert list(encoder.features(images, "clip", cached_only=True)) == [0, 4]


def test_a_summary_alone_has_no_map(clip: Retriever) -> None:
    one, zeros = np.ones(1), np.zeros((1, 8, 8))
    terms = (QueryTerm(words="dog", weight=1, count=1),)
    summary = QueryEvidence(one, terms, ("dog",), zeros[..., None], zeros, one)
    assert summary.has_no_map
    with pytest.raises(ValueError, match="No map can be drawn"):
        draw_evidence(clip, summary, 2, "dog")


def test_positive_evidence_keeps_its_colours_and_negative_evidence_is_orange() -> None:
    image = Image.new("RGB", (90, 60), (40, 200, 120))
    evidence = np.array([[0.4, 0.0, -0.4], [0.0, 0.0, 0.0]])
    shaded = np.asarray(darken(image, evidence, (0, 0, 1, 0.5)), int)
    assert shaded[2, 2].tolist() == pytest.approx([40, 200, 120], abs=3)  # positive
    assert max(shaded[2, 45].max(), shaded[27, 2].max()) < 100  # zero: dark
    red, green, blue = shaded[2, 87].tolist()
    assert red > green > blue  # negative: orange
    assert shaded[50].tolist() == [shaded[50, 0].tolist()] * 90  # outside the box
