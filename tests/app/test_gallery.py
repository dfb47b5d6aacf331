"""The exact top-k: shortlist, exhaustive scoring and brute force agree, ties included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.gallery import Gallery
from models import Method, Views


class MaxCosine(Method):
    """The base class's score, max over both sides' views, without heads."""

    title, paper, attention_is = "max", "none", "nothing"

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """Never called."""
        raise NotImplementedError

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """Never called."""
        raise NotImplementedError


class SumOfMax(MaxCosine):
    """A score that no single row decides, as a Sinkhorn-scored method has."""

    row_search = False

    def score(self, images: Views, texts: Views) -> Tensor:
        """For every image view its best text view, summed."""
        return self.view_scores(images, texts).sum(dim=0)


def brute_force(items: np.ndarray, query: np.ndarray, k: int) -> list[tuple[int, float, int]]:
    """Max over all pairs of rows, with loops; (id, score, winning item view), ties by id."""
    found = []
    for i, rows in enumerate(items):
        products = [max(float(row @ needle) for needle in query) for row in rows]
        found.append((i, max(products), int(np.argmax(products))))
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]


def filled(items: np.ndarray, exhaustive_up_to: int = 0) -> Gallery:
    gallery = Gallery("images", exhaustive_up_to=exhaustive_up_to)
    third = len(items) // 3
    for part in np.split(np.arange(len(items)), [third, 2 * third]):
        if len(part):
            gallery.add(part.tolist(), Views(torch.from_numpy(items[part])))
    return gallery


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 40),
    views=st.sampled_from([1, 3]),
    words=st.sampled_from([1, 4]),
    k=st.integers(1, 50),
    whole=st.booleans(),
)
def test_shortlist_is_brute_force(
    seed: int, count: int, views: int, words: int, k: int, whole: bool
) -> None:
    rng = np.random.default_rng(seed)
    if whole:  # small whole numbers: arithmetic is exact and ties are everywhere
        items = rng.integers(-1, 2, (count, views, 3)).astype(np.float32)
        query = rng.integers(-1, 2, (words, 3)).astype(np.float32)
    else:
        items = rng.standard_normal((count, views, 8)).astype(np.float32)
        query = rng.standard_normal((words, 8)).astype(np.float32)
        items /= np.linalg.norm(items, axis=-1, keepdims=True)
        query /= np.linalg.norm(query, axis=-1, keepdims=True)
    expected = brute_force(items, query, k)
    found = filled(items).search(Views(torch.from_numpy(query[None])), k, MaxCosine())
    assert [hit.id for hit in found] == [hit[0] for hit in expected]
    assert [hit.view for hit in found] == [hit[2] for hit in expected]
    np.testing.assert_allclose(
        [hit.score for hit in found], [hit[1] for hit in expected], atol=1e-6
    )


def test_shortlist_scores_few_items() -> None:
    scored = []

    class Counting(MaxCosine):
        def score(self, images: Views, texts: Views) -> Tensor:
            scored.append(len(images))
            return super().score(images, texts)

    rng = np.random.default_rng(0)
    items = rng.standard_normal((500, 3, 16)).astype(np.float32)
    query = Views(torch.from_numpy(rng.standard_normal((1, 4, 16)).astype(np.float32)))
    filled(items).search(query, 5, Counting())
    assert sum(scored) <= 4 * (5 * 3 + 1)


def test_all_items_tied_still_gives_the_first() -> None:
    gallery = filled(np.ones((300, 3, 4), np.float32))
    found = gallery.search(Views(torch.ones(1, 4, 4)), 7, MaxCosine())
    assert [hit.id for hit in found] == list(range(7))


def test_other_scores_are_exhaustive() -> None:
    items = np.zeros((50, 2, 2), np.float32)
    items[:, 0, 0] = 1.0  # the best single row: item 0 alone has more of it
    items[0] = [[1.5, 0.0], [0.0, 0.0]]
    items[30] = [[1.0, 0.0], [1.0, 0.0]]  # the best sum
    query = Views(torch.tensor([[[1.0, 0.0]]]))
    assert filled(items).search(query, 1, SumOfMax())[0].id == 30
    assert filled(items).search(query, 1, MaxCosine())[0].id == 0


def test_captions_are_scored_from_the_picture_side() -> None:
    captions = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.6, 0.8]]])  # (2, W, D)
    picture = Views(torch.tensor([[[0.0, -1.0], [0.6, 0.8], [0.0, 0.0]]]))  # (1, V, D)
    for limit in (0, 100):
        gallery = Gallery("texts", exhaustive_up_to=limit)
        gallery.add([7, 9], Views(captions))
        best, other = gallery.search(picture, 2, MaxCosine())
        assert (best.id, best.view) == (9, 1)
        assert best.score == pytest.approx(1.0)
        assert other.id == 7
        assert other.score == pytest.approx(0.8)


def test_an_empty_gallery_finds_nothing() -> None:
    assert Gallery("images").search(Views(torch.ones(1, 1, 4)), 3, MaxCosine()) == []


def test_shapes_that_do_not_fit_are_refused() -> None:
    gallery = Gallery("images")
    gallery.add([0], Views(torch.ones(1, 2, 4)))
    with pytest.raises(ValueError, match=r"\(2, 5\) do not fit a gallery of \(2, 4\)"):
        gallery.add([1], Views(torch.ones(1, 2, 5)))
    with pytest.raises(ValueError, match="2 ids were given for 1 items"):
        gallery.add([1, 2], Views(torch.ones(1, 2, 4)))
    assert len(gallery) == 1
