"""The exact top-k: shortlist and exhaustive scoring agree, ties included."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyview import models
from polyview.app.gallery import index
from polyview.app.gallery.index import Gallery
from polyview.models import Views

RULES = {
    "max": models.build("mv_vse", 4, 4, {"embed_dim": 8, "views": 3}),
    "pairs": models.build("pvse", 4, 4, {"embed_dim": 8, "views": 3}),
    "joined": models.build("mvam", 4, 4, {"embed_dim": 8, "views": 3}),
    "concat": models.build("pvse", 4, 4, {"embed_dim": 8, "views": 3, "match": "concat"}),
    "sinkhorn": models.build("avse", 4, 4, {"embed_dim": 8, "views": 3}),
}


def units(rng: np.random.Generator, *shape: int, tied: bool = False) -> torch.Tensor:
    """Unit vectors; `tied` gives few different ones, near each other."""
    values = rng.standard_normal(shape, np.float32)
    if tied:
        values = np.sign(values)
        values[..., 0] += 0.001 * rng.integers(0, 3, shape[:-1])
    return torch.from_numpy(values / np.linalg.norm(values, axis=-1, keepdims=True))


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(list(RULES)),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    k=st.integers(1, 12),
    tied=st.booleans(),
    half=st.booleans(),
)
def test_every_rule_finds_what_scoring_everything_finds(
    rule: str, seed: int, count: int, k: int, tied: bool, half: bool
) -> None:
    method, rng = RULES[rule], np.random.default_rng(seed)
    items = units(rng, count, 3, 8, tied=tied)
    words = 1 if rule in ("max", "sinkhorn") else 3
    query = Views(units(rng, 1, words, 8, tied=tied))
    gallery = Gallery("images", method, half_from=0 if half else 2**40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_CHUNK", 7)  # so that there are several shards
        for start in range(0, count, 10):
            part = items[start : start + 10]
            gallery.add(range(start, start + len(part)), part)
        results = gallery.search(query, k)
        ids, values = gallery.scores(query)  # of what is kept, float16 or not
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


def test_how_rows_are_kept_goes_by_how_large_all_is_expected_to_be() -> None:
    items = units(np.random.default_rng(0), 100, 3, 8)
    taken = {}
    for expected in (100, 1000):
        gallery = Gallery("images", RULES["pairs"], expected=expected, half_from=90_000)
        gallery.add(range(100), items)
        taken[expected] = gallery.kept_as, gallery.bytes // (100 * 24)  # bytes of a number
    assert taken == {100: ("float32", 4), 1000: ("float16", 2)}
    assert torch.equal(gallery.views(range(100)).embeddings, items.half().float())


@pytest.mark.parametrize("half", [False, True])
def test_views_come_back_by_id_and_all_of_them_in_chunks(half: bool) -> None:
    items = units(np.random.default_rng(3), 30, 2, 4).half().float()
    gallery = Gallery("images", RULES["pairs"], half_from=0 if half else None)
    ids = np.random.default_rng(3).permutation(100)[:30]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_CHUNK", 7)
        gallery.add(ids.tolist(), items)
        results = list(gallery.chunks())
    assert torch.equal(gallery.views(ids[[8, 2, 29]]).embeddings, items[[8, 2, 29]])
    assert max(len(part) for part, _ in results) == 7
    assert np.concatenate([part for part, _ in results]).tolist() == ids.tolist()
    assert torch.equal(torch.cat([views.embeddings for _, views in results]), items)


def test_searches_and_additions_take_turns() -> None:
    """A search sees what was added before it, whichever way views are kept."""
    items = units(np.random.default_rng(0), 4000, 3, 8)
    for half_from in (0, 2**40):
        gallery = Gallery("images", RULES["pairs"], half_from=half_from)
        gallery.add([0], items[:1])
        with ThreadPoolExecutor(4) as pool:
            searches = [pool.submit(gallery.search, Views(items[i : i + 1]), 5) for i in range(200)]
            for start in range(1, 4000, 50):
                gallery.add(range(start, min(start + 50, 4000)), items[start : start + 50])
            assert all(1 <= len(search.result()) <= 5 for search in searches)
        assert gallery.search(Views(items[3999:]), 1)[0].id == 3999


@pytest.mark.parametrize("rule", list(RULES))
def test_clusters_find_most_and_say_how_much(rule: str) -> None:
    method, rng = RULES[rule], np.random.default_rng(1)
    near = units(rng, 40, 1, 8)[torch.from_numpy(rng.integers(0, 40, 1500))]
    items = torch.nn.functional.normalize(near + 0.3 * units(rng, 1500, 3, 8), dim=-1)
    words = 1 if rule in ("max", "sinkhorn") else 3
    queries = [Views(items[i : i + 1, :words] + 0.1 * units(rng, 1, words, 8)) for i in range(20)]
    gallery = Gallery("images", method, half_from=0, clustered_from=0)
    gallery.add(range(1490), items[:1490])
    exact = [{hit.id for hit in gallery.search(q, 10)} for q in queries]
    assert gallery.caveat() == ""
    gallery.settle(queries[:10])
    assert 0.9 <= (gallery.recall or 0.0) <= 1.0
    assert gallery.caveat() == f"Approximate: finds {gallery.recall:.0%} of the ten best."
    assert gallery.caveat({3}) == ""
    results = [{hit.id for hit in gallery.search(q, 10)} for q in queries]
    assert sum(len(a & b) for a, b in zip(results, exact, strict=True)) >= 0.85 * 200
    assert len(gallery.search(queries[0], 1490)) == 1490  # more than clusters list
    gallery.add(range(1490, 1500), items[1490:])  # comes later, and is found
    late = {hit.id for q in queries for hit in gallery.search(q, 30) if hit.id >= 1490}
    expected = [np.argsort(-gallery.scores(q)[1])[:30].tolist() for q in queries]
    assert late == {item for best in expected for item in best if item >= 1490} != set()
    some = {3, 30, 1495}
    assert {hit.id for hit in gallery.search(queries[0], 10, some)} == some


def test_shortlist_scores_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    method, rng = RULES["pairs"], np.random.default_rng(0)
    gallery = Gallery("images", method, half_from=0)
    gallery.add(range(500), units(rng, 500, 3, 16))
    scoring = Mock(wraps=method.score)
    monkeypatch.setattr(method, "score", scoring)
    gallery.search(Views(units(rng, 1, 4, 16)), 5)
    assert sum(len(call.args[0]) for call in scoring.call_args_list) <= 4 * (64 + 5 * 3)


def test_an_empty_gallery_finds_nothing() -> None:
    assert Gallery("images", RULES["pairs"]).search(Views(torch.ones(1, 1, 4)), 3) == []
