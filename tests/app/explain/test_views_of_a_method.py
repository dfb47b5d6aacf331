"""The collapse meter and the view lens, compared with plain loops."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from polyview.app.explain import collapse, views
from polyview.app.explain.views import describe_views, search_weighted
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import from_folder
from polyview.app.search.computations import Computation
from polyview.app.search.retriever import Retriever
from polyview.models import Method, Views
from polyview.models.mv_vse import MVVSE, MVVSEConfig
from polyview.models.mvam import MVAM
from tests.app.conftest import ADDED, IMAGES, find, finish
from tests.app.serving import until


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
        assert collapse.mean_similarity(parts) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


METHODS = {"mv_vse": MVVSE(4, 4, MVVSEConfig(8)), "mvam": MVAM(4, 4, 8, views=3)}


def loop_wins(method: Method, images: Views, texts: Views, rows: Sequence[int]) -> list[float]:
    """Wins of each view: a text's best view of its own image; ties share the win."""
    wins = [0.0] * images.embeddings.shape[1]
    for text, row in enumerate(rows):
        scores = method.view_scores(images[[row]], texts[[text]]).flatten().tolist()
        tied = [view for view, score in enumerate(scores) if score >= max(scores) - 1e-6]
        for view in tied:
            wins[view] += 1 / len(tied)
    return wins


@pytest.mark.parametrize("name", METHODS)
@torch.inference_mode()
def test_wins_are_counted_on_each_texts_own_image(name: str) -> None:
    method, words = METHODS[name], 1 if name == "mv_vse" else 3
    images, texts = unit(4, 3, 8), unit(200, words, 8)
    images[2:, 1] = images[2:, 0]  # views that score the same
    texts[:, 1:] = texts[:, :1]
    rows = np.random.default_rng(0).integers(0, 4, 200)
    gallery, captions = Gallery("images", method), Gallery("texts", method)
    gallery.add([0, 2, 3], images[[0, 2, 3]])  # image 1 was refused
    captions.add(range(200), texts)
    some = np.flatnonzero(rows != 1)
    expected = loop_wins(method, Views(images), Views(texts[some]), rows[some].tolist())
    assert collapse.count_wins(gallery, captions, rows).tolist() == pytest.approx(expected)
    assert min(expected) > 10


@torch.inference_mode()
def test_the_meter_of_a_gallery(many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    result = collapse.measure(many_retriever, "mv_vse")
    images = many_retriever.index.images["mv_vse"].views(range(IMAGES))
    texts, owners = zip(*many_retriever.collection.captions, strict=True)
    views = many_retriever.runtime.text_views(texts, "mv_vse")
    wins = loop_wins(many_retriever.methods["mv_vse"], images, views, owners)
    assert result.wins == pytest.approx([own / len(texts) for own in wins], abs=1e-6)
    assert result.wins is not None
    assert result.in_use == pytest.approx(np.prod([own**-own for own in result.wins if own]))
    assert (result.views, result.captions) == (3, len(texts))
    assert result.similarity == pytest.approx(collapse.mean_similarity([images.embeddings]))
    assert result.similarity is not None
    for more, expected in ((-1e-4, True), (1e-4, False)):  # known before the meter was read
        monkeypatch.setattr(collapse, "COLLAPSE_THRESHOLD", result.similarity + more)
        assert collapse.is_collapsed(many_retriever, "mv_vse") is expected
    monkeypatch.setattr(collapse, "COLLAPSE_THRESHOLD", -1.0)
    assert not collapse.is_collapsed(many_retriever, "vse_infty")  # one view


def finished(retriever: Retriever, name: str) -> Computation:
    """Waits for the collapse meter of a method."""

    def ended() -> Computation | None:
        computation = collapse.measure_in_background(retriever, name)
        return computation if computation.result or computation.problem else None

    return until(ended)


def test_without_captions(many_retriever: Retriever, many_pack: Path, tmp_path: Path) -> None:
    runtime, folder = many_retriever.runtime, many_pack / "gallery/images"
    retriever = Retriever(runtime, from_folder(folder), tmp_path)
    assert "waits for the gallery" in collapse.measure_in_background(retriever, "avse").progress
    finish(retriever.index)
    result = finished(retriever, "avse").result
    assert (result.wins, result.in_use) == (None, None)
    assert result.similarity is not None


def test_failures_are_reported(many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "measure", Mock(side_effect=RuntimeError("out of memory")))
    computation = finished(many_retriever, "mvam")
    assert computation.problem == "the views could not be compared: out of memory"


TEXT = "a red circle beside a blue bar"
WEIGHTS = {
    "vse_infty": [0.5],
    "mv_vse": [0.5, 0.0, 1.0],
    "pvse": [0.3, 1.0],
    "avse": [1.0, 0.0],
    "mvam": [0.0, 0.5] * 8,
}


@pytest.mark.parametrize("name", WEIGHTS)
@torch.inference_mode()
def test_ranks_are_those_of_the_weighted_scores(many_retriever: Retriever, name: str) -> None:
    results = search_weighted(many_retriever, TEXT, name, WEIGHTS[name], 7)
    method, query = many_retriever.methods[name], many_retriever.views(TEXT, name)
    alone = {}  # the scores of the images, computed one at a time
    for image_id in many_retriever.index.images[name].ids().tolist():
        views = many_retriever.index.images[name].views([image_id]).embeddings[0]
        pairs = zip(WEIGHTS[name], views, strict=True)
        rows = [weight * row for weight, row in pairs if weight or method.views_add_up]
        alone[image_id] = float(method.score(Views(torch.stack(rows)[None]), query))
    order = sorted(alone, key=lambda i: -alone[i])
    assert [hit.image_id for hit in results.hits] == order[:7]
    plain = find(many_retriever, TEXT, name, 1000)
    before = [hit.image_id for hit in plain]
    for hit in results.hits:
        assert hit.score == pytest.approx(alone[hit.image_id], abs=1e-5)
        assert hit.before == before.index(hit.image_id) + 1
    assert results.stayed == len(set(order[:7]) & set(before[:7]))
    assert results.searched == len(before)
    if name == "mv_vse":  # of two views that are left the better one wins, under its own number
        images = many_retriever.index.images[name].views(order[:7])
        first, _, last = method.view_scores(images, query)[..., 0]
        assert [hit.view for hit in results.hits] == torch.where(first / 2 > last, 0, 2).tolist()
        assert {hit.view for hit in results.hits} == {0, 2}
    if name in ADDED:  # with every view on nothing moves
        results = search_weighted(many_retriever, TEXT, name, [1.0] * ADDED[name]["views"], 5)
        assert all(hit.rank == hit.before for hit in results.hits)
        assert [hit.model_copy(update={"before": None}) for hit in results.hits] == plain[:5]
        assert results.stayed == 5


@torch.inference_mode()
def test_views_of_late_interaction(scenes: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    text, image_id = "a dog and a red car on the beach", 303
    answer = describe_views(scenes, image_id, "late", text, {})
    words = scenes.views(text, "late").embeddings[0]
    words = words[words.abs().sum(dim=1) > 0]
    cosines = scenes.views([image_id], "late").embeddings[0] @ words.T  # (49, words)
    best = cosines.argmax(dim=0).tolist()
    sums = {cell: sum(float(cosines[cell, w]) for w, b in enumerate(best) if b == cell)
            for cell in best}  # fmt: skip
    expected = sorted(sums, key=lambda cell: -sums[cell])
    assert [view["view"] for view in answer.views] == expected
    assert answer.winner == expected[0]
    assert 1 < len(expected) < 12
    scores = [view["score"] * len(words) for view in answer.views]
    assert scores == pytest.approx([sums[cell] for cell in expected], abs=1e-3)
    assert len(answer.similarity) == len(describe_views(scenes, image_id, "late", "", {}).views)
    assert len(describe_views(scenes, image_id, "mvam", text, {}).views) == 16
    monkeypatch.setattr(views, "_MAX_ELEMENTS", 2)
    listed = describe_views(scenes, image_id, "late", text, {}).views
    assert [view["view"] for view in listed] == expected[:2]
