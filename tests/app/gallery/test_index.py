"""Searches in galleries, compared with exhaustive scoring, ties included."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyview.app.gallery import index
from polyview.app.gallery.index import Gallery
from polyview.models import Method, Views, build

DIM = 12


def method_of(name: str, **arguments: Any) -> Method:
    torch.manual_seed(0)
    return build(name, 4, 4, {"embed_dim": DIM, **arguments}).eval().requires_grad_(False)


# Each scoring rule: a method, and the views of an image and of a text.
RULES = {
    "one vector": (method_of("vse_infty"), 1, 1),
    "best view": (method_of("mv_vse", views=3), 3, 1),
    "best pair": (method_of("pvse", views=3), 3, 3),
    "views in turn": (method_of("pvse", views=3, match="concat"), 3, 3),
    "joined": (method_of("mvam", views=3), 3, 3),
    "blocks": (method_of("avse", views=3, block_dim=4), 3, 1),
    "blocks by MaxSim": (method_of("avse", views=3, block_dim=4, match="maxsim"), 3, 1),
}
PAIRS = RULES["best pair"][0]


def set_limits(patch: pytest.MonkeyPatch, half_from: int, clustered_from: int = 2**40) -> None:
    """Sets the sizes in bytes above which galleries use float16, and clusters."""
    patch.setattr(index, "HALF_MIN_BYTES", half_from)
    patch.setattr(index, "SCORED_HALF_MIN_BYTES", half_from)
    patch.setattr(index, "CLUSTERS_MIN_BYTES", clustered_from)


def units(rng: np.random.Generator, *shape: int, tied: bool = False) -> torch.Tensor:
    """Random unit vectors; if `tied`, few distinct ones, close to each other."""
    values = rng.standard_normal(shape, np.float32)
    if tied:
        values = np.sign(values)
        values[..., 0] += 0.001 * rng.integers(0, 3, shape[:-1])
    return torch.from_numpy(values / np.linalg.norm(values, axis=-1, keepdims=True))


@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(list(RULES)),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    k=st.integers(1, 12),
    tied=st.booleans(),
    half=st.booleans(),
)
def test_searches_by_every_rule(
    rule: str, seed: int, count: int, k: int, tied: bool, half: bool
) -> None:
    (method, views, words), rng = RULES[rule], np.random.default_rng(seed)
    items = units(rng, count, views, DIM, tied=tied)
    query = Views(units(rng, 1, words, DIM, tied=tied))
    gallery = Gallery("images", method)
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, 0 if half else 2**40)
        patch.setattr(index, "_CHUNK", 7)  # so that there are several shards
        for start in range(0, count, 10):
            part = items[start : start + 10]
            gallery.add(range(start, start + len(part)), part)
        results = gallery.search(query, k)
        ids, values = gallery.scores(query)  # of the stored views, float16 or not
    scores = torch.from_numpy(values)
    best = scores.sort(descending=True, stable=True).indices[:k]
    assert ids.tolist() == list(range(count))
    returned = torch.tensor([hit.score for hit in results])
    torch.testing.assert_close(returned, scores[best])  # ids may differ where these are equal
    torch.testing.assert_close(returned, scores[[hit.id for hit in results]])
    if not half:
        assert [hit.id for hit in results] == best.tolist()  # ties in the order of adding
        won = method.view_scores(Views(items), query)[..., 0].argmax(dim=0)
        assert tied or [hit.view for hit in results] == won[best].tolist()
    exact = method.score(Views(items), query)[:, 0]
    torch.testing.assert_close(scores, exact, atol=2e-3 if half else 1e-6, rtol=0)


@pytest.mark.parametrize(("expected", "stored"), [(30, ("float32", 4)), (1000, ("float16", 2))])
def test_storage(expected: int, stored: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, 20_000)
    items = units(np.random.default_rng(3), 30, 2, 4).half().float()
    ids = np.random.default_rng(3).permutation(100)[:30]
    gallery = Gallery("images", PAIRS, expected_count=expected)
    assert gallery.search(Views(items[:1]), 3) == []
    with pytest.raises(ValueError, match="nothing is searchable yet"):
        gallery.scores(Views(items[:1]))
    gallery.add(ids.tolist(), items)
    assert (gallery.storage, gallery.bytes // items.numel()) == stored
    assert torch.equal(gallery.views(ids[[8, 2, 29]]).embeddings, items[[8, 2, 29]])
    monkeypatch.setattr(index, "_CHUNK", 7)
    results = list(gallery.chunks())
    assert max(len(part) for part, _ in results) == 7
    assert np.concatenate([part for part, _ in results]).tolist() == ids.tolist()
    assert torch.equal(torch.cat([views.embeddings for _, views in results]), items)


@pytest.mark.parametrize("half_from", [0, 2**40])
def test_searches_and_additions_take_turns(half_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search finds items that were added before, in float32 and float16."""
    set_limits(monkeypatch, half_from)
    items = units(np.random.default_rng(0), 2000, 3, 8)
    gallery = Gallery("images", PAIRS)
    gallery.add([0], items[:1])
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(gallery.search, Views(items[i : i + 1]), 5) for i in range(100)]
        for start in range(1, 2000, 50):
            gallery.add(range(start, min(start + 50, 2000)), items[start : start + 50])
        assert all(1 <= len(search.result()) <= 5 for search in searches)
    assert gallery.search(Views(items[1999:]), 1)[0].id == 1999


@pytest.mark.parametrize("rule", ["best view", "best pair", "joined", "blocks"])
def test_clusters_and_their_recall(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, 0, 0)
    (method, views, words), rng = RULES[rule], np.random.default_rng(1)
    near = units(rng, 40, 1, DIM)[torch.from_numpy(rng.integers(0, 40, 1500))]
    items = torch.nn.functional.normalize(near + 0.3 * units(rng, 1500, views, DIM), dim=-1)
    queries = [Views(items[i : i + 1, :words] + 0.1 * units(rng, 1, words, DIM)) for i in range(20)]
    gallery = Gallery("images", method)
    gallery.add(range(1490), items[:1490])
    exact = [{hit.id for hit in gallery.search(q, 10)} for q in queries]
    assert gallery.caveat() == ""
    gallery.build_search_index(queries[:10])
    assert 0.9 <= (gallery.recall or 0.0) <= 1.0
    assert gallery.caveat() == f"Approximate: finds {gallery.recall:.0%} of the ten best."
    assert gallery.caveat({3}) == ""
    results = [{hit.id for hit in gallery.search(q, 10)} for q in queries]
    assert sum(len(a & b) for a, b in zip(results, exact, strict=True)) >= 0.85 * 200
    assert len(gallery.search(queries[0], 1490)) == 1490  # more than clusters list
    gallery.add(range(1490, 1500), items[1490:])  # added later, and found
    late = {hit.id for q in queries for hit in gallery.search(q, 30) if hit.id >= 1490}
    expected = [np.argsort(-gallery.scores(q)[1])[:30].tolist() for q in queries]
    assert late == {item for best in expected for item in best if item >= 1490} != set()
    some = {3, 30, 1495}
    assert {hit.id for hit in gallery.search(queries[0], 10, some)} == some


def test_few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    set_limits(monkeypatch, 0)
    gallery = Gallery("images", PAIRS)
    gallery.add(range(500), units(rng, 500, 3, 16))
    candidates = gallery.candidates(Views(units(rng, 1, 4, 16)), 5, None)
    assert candidates is not None
    assert 5 <= len(candidates) <= 4 * (5 + 20)  # the best five for each of four rows, and a few


@pytest.mark.parametrize("rule", ["best view", "views in turn", "blocks"])
def test_captions_are_ranked_for_an_image(rule: str) -> None:
    (method, views, words), rng = RULES[rule], np.random.default_rng(2)
    image, texts = Views(units(rng, 1, views, DIM)), units(rng, 30, words, DIM)
    gallery = Gallery("texts", method)
    gallery.add(range(30), texts)
    hits, exact = gallery.search(image, 5), method.score(image, Views(texts))[0]
    best = exact.sort(descending=True).indices[:5]
    winners = method.view_scores(image, Views(texts))[:, 0].argmax(dim=0)
    expected = zip(best.tolist(), winners[best].tolist(), strict=True)
    assert [(hit.id, hit.view) for hit in hits] == list(expected)


def test_sampled_scores_follow_a_growing_gallery() -> None:
    items = units(np.random.default_rng(4), 30, 3, DIM)
    gallery, query = Gallery("images", PAIRS), Views(items[:1])
    for count in (10, 30):
        gallery.add(range(len(gallery), count), items[len(gallery) : count])
        some = gallery.sample_scores(query, np.array([3, 7]))
        np.testing.assert_allclose(some, gallery.scores(query)[1][[3, 7]])
        np.testing.assert_allclose(gallery.sample_scores(query), gallery.scores(query)[1])


def test_queries_share_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_TORCH_THREADS", 4)
    before = torch.get_num_threads()
    try:
        with index.shared_processors(index.LARGE_GALLERY):
            assert torch.get_num_threads() == 4
            with suppress(ValueError), index.shared_processors(1):
                assert torch.get_num_threads() == 1
                raise ValueError
            assert index._active_queries == 1
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
