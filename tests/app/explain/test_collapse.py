"""The view-collapse meter on views made by hand, and over a gallery."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.app.explain import collapse as module
from polyview.app.explain.collapse import (
    Collapse,
    collapsed,
    count_all_wins,
    count_wins,
    map_overlap,
    mean_similarity,
    measure,
    meter,
)
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import from_folder
from polyview.app.search.retriever import Reading, Retriever
from polyview.models import Views
from polyview.models.mv_vse import MVVSE, MVVSEConfig
from polyview.models.mvam import MVAM
from tests.app.conftest import IMAGES, finish, maps_of

SECONDS = 60


def unit(*shape: int) -> torch.Tensor:
    torch.manual_seed(4)
    return torch.nn.functional.normalize(torch.randn(*shape), dim=-1)


def test_similarity_is_the_mean_over_pairs() -> None:
    views = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(1))  # of any length
    pairs = [
        float(torch.cosine_similarity(item[a], item[b], dim=0))
        for item in views
        for a in range(3)
        for b in range(3)
        if a != b
    ]
    for parts in ([views], [views[:1], views[1:]]):
        assert mean_similarity(parts) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


def test_overlap_is_the_mean_of_what_both_maps_hold() -> None:
    maps = np.random.default_rng(2).normal(size=(3, 4, 6))  # some of it negative
    results = []
    for item in maps:
        for a in range(4):
            for b in range(a + 1, 4):
                left, right = ([max(x, 0.0) for x in item[view]] for view in (a, b))
                shares = zip(left, right, strict=True)
                results.append(sum(min(x / sum(left), y / sum(right)) for x, y in shares))
    assert map_overlap(maps) == pytest.approx(sum(results) / len(results))


def test_wins_are_counted_on_each_texts_own_picture() -> None:
    method = MVVSE(4, 4, MVVSEConfig(8))
    images = Views(unit(3, 3, 8))
    # texts that equal one view of their own picture: views 0, 2, 2 and 1
    rows, views = torch.tensor([0, 1, 2, 2]), [0, 2, 2, 1]
    texts = Views(
        torch.stack([images.embeddings[r, v] for r, v in zip(rows, views, strict=True)])[:, None]
    )
    assert count_wins(method, images, texts, rows).tolist() == [1.0, 1.0, 2.0]


def test_views_that_score_the_same_share_the_win() -> None:
    method = MVVSE(4, 4, MVVSEConfig(8))
    images = Views(unit(40, 1, 8).expand(-1, 3, -1).contiguous())
    texts = Views(unit(40, 1, 8))
    wins = count_wins(method, images, texts, torch.arange(40))
    torch.testing.assert_close(wins, torch.full((3,), 40 / 3, dtype=torch.float64))


def test_wins_in_a_gallery_are_counted_on_each_captions_own_image() -> None:
    method = MVVSE(4, 4, MVVSEConfig(8))
    images, captions = Gallery("images", method), Gallery("texts", method)
    images.add([0, 2, 3], unit(3, 3, 8))
    captions.add(range(200), unit(200, 1, 8))
    owners = np.random.default_rng(0).integers(0, 4, 200)  # image 1 was refused
    expected = torch.zeros(3, dtype=torch.float64)
    for text, owner in enumerate(owners.tolist()):
        if owner != 1:
            own = images.views([owner]), captions.views([text])
            expected += count_wins(method, *own, torch.tensor([0]))
    torch.testing.assert_close(count_all_wins(images, captions, owners), expected)


def test_where_views_add_up_the_one_that_adds_most_wins() -> None:
    method = MVAM(4, 4, 2, views=2)
    images = Views(torch.tensor([[[0.6, 0.0], [0.0, 0.8]]]))
    texts = Views(torch.tensor([[[0.9, 0.0], [0.0, 0.1]], [[0.1, 0.0], [0.0, 0.9]]]))
    assert count_wins(method, images, texts, torch.tensor([0, 0])).tolist() == [1.0, 1.0]
    assert count_wins(method, images, texts[:1], torch.tensor([0])).tolist() == [1.0, 0.0]


@torch.inference_mode()
def test_the_meter_reads_the_gallery(many_retriever: Retriever) -> None:
    result = measure(many_retriever, "mv_vse")
    method = many_retriever.methods["mv_vse"]
    images = many_retriever.gallery("mv_vse").views(range(IMAGES))
    wins = [0.0, 0.0, 0.0]
    captions = many_retriever.collection.captions
    for text, image_id in captions:
        query = many_retriever.views(text, "mv_vse")
        scores = method.view_scores(images[[image_id]], query).flatten().tolist()
        tied = [v for v, score in enumerate(scores) if score >= max(scores) - 1e-6]
        for view in tied:
            wins[view] += 1 / len(tied) / len(captions)
    assert result.wins == pytest.approx(wins, abs=1e-6)
    assert (result.views, result.captions) == (3, len(captions))
    assert result.similarity == pytest.approx(mean_similarity([images.embeddings]))
    maps = [maps_of(many_retriever, i, "mv_vse").reshape(3, -1) for i in range(len(images))]
    assert result.overlap == pytest.approx(map_overlap(np.stack(maps)), abs=1e-6)
    assert result.maps == len(images)


@pytest.mark.parametrize("name", ["mv_vse", "mvam"])
def test_collapse_is_known_before_the_meter_was_read(
    many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    similarity = measure(many_retriever, name).similarity
    assert similarity is not None
    for more, expected in ((-1e-4, True), (1e-4, False)):
        monkeypatch.setattr(module, "COLLAPSED", similarity + more)
        assert collapsed(many_retriever, name) is expected
    monkeypatch.setattr(module, "COLLAPSED", -1.0)
    assert not collapsed(many_retriever, "vse_infty")  # one view


def finished(retriever: Retriever, name: str) -> Reading:
    deadline = time.monotonic() + SECONDS
    while not ((reading := meter(retriever, name)).result or reading.problem):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return reading


def test_a_reading_is_taken_in_the_background_and_once(
    many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def count(retriever: Retriever, name: str) -> Collapse:
        taken.append(name)
        return measure(retriever, name)

    monkeypatch.setattr(module, "measure", count)
    assert meter(many_retriever, "pvse").progress == "measuring"
    result = finished(many_retriever, "pvse").result
    assert result is not None
    assert meter(many_retriever, "pvse").result is result
    assert taken == ["pvse"]


def test_without_captions_similarity_and_overlap_are_left(
    many_retriever: Retriever, many_pack: Path, tmp_path: Path
) -> None:
    runtime, folder = many_retriever.runtime, many_pack / "gallery/images"
    retriever = Retriever(runtime, from_folder(folder), tmp_path)
    assert "waits for the gallery" in meter(retriever, "avse").progress
    finish(retriever.index)
    result = finished(retriever, "avse").result
    assert result is not None
    assert result.wins is None
    assert result.in_use is None
    assert result.similarity is not None
    assert result.overlap is not None


def test_failures_are_told(many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Collapse:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "measure", fail)
    reading = finished(many_retriever, "mvam")
    assert reading.problem == "the views could not be compared: out of memory"
