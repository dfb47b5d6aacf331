"""Late interaction and SCAN against loops of the equations of ColBERT, FILIP and SCAN."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from polyview import models
from polyview.models import Method, Views
from polyview.models.elements import MAX_PRODUCTS, SCAN, LateConfig, LateInteraction, SCANConfig
from polyview.models.layers import l2_normalize
from polyview.models.views import lengths_to_mask
from tests.models.conftest import HOLES

WORDS = lengths_to_mask(torch.tensor([4, 1, 2]), 4)
SCORERS = (("late", 0.0), ("t2i", 9.0), ("i2t", 4.0))  # late interaction; directions of SCAN


def build(scorer: str, sharpness: float) -> Method:
    if scorer == "late":
        return LateInteraction(10, 8, LateConfig(embed_dim=8, cells=7, words=5)).eval()
    return SCAN(10, 8, SCANConfig(8, 7, 5, direction=scorer, sharpness=sharpness)).eval()


def similarity(image: Tensor, text: Tensor, scorer: str, sharpness: float) -> float:
    """Returns the score of cells (k, D) and words (n, D) of unit length, one number at a time."""
    if scorer == "late":  # the mean over words of the best cell
        return sum(max(float(cell @ word) for cell in image) for word in text) / len(text)
    source, query = (image, text) if scorer == "t2i" else (text, image)
    total = 0.0
    for question in query:
        weights = []
        for element in source:
            # positive cosines, normalised over the queries
            cosines = [max(float(element @ other), 0.0) for other in query]
            length = math.sqrt(sum(value**2 for value in cosines) + 1e-8)
            weights.append(math.exp(sharpness * max(float(element @ question), 0.0) / length))
        shares = [weight / sum(weights) for weight in weights]
        results = sum(share * element for share, element in zip(shares, source, strict=True))
        total += float(torch.cosine_similarity(results, question, dim=0))
    return total / len(query)


@pytest.mark.parametrize(("scorer", "sharpness"), SCORERS)
@torch.no_grad()
def test_scores_equal_the_loop(scorer: str, sharpness: float) -> None:
    torch.manual_seed(4)
    method: Any = build(scorer, sharpness)
    features, words = torch.randn(2, 6, 10), torch.randn(3, 4, 8)
    images, texts = method.encode_image(features, HOLES), method.encode_text(words, WORDS)
    scores, view_scores = method.score(images, texts), method.view_scores(images, texts)
    cells = l2_normalize(method.project_image(features, HOLES))
    read = l2_normalize(method.project_text(words))
    assert images.embeddings.shape == (2, 7, 8)
    for i in range(2):
        for t in range(3):
            expected = similarity(cells[i, HOLES[i]], read[t, WORDS[t]], scorer, sharpness)
            assert float(scores[i, t]) == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(view_scores.sum(dim=0), scores)
    if scorer == "late":
        assert (view_scores[:, 0, 1] != 0).sum() == 1  # one word has one best cell


def test_absent_cells_are_never_the_best() -> None:
    """Absent cells are 0, which exceeds a negative cosine."""
    method = LateInteraction(2, 2, LateConfig(embed_dim=2, cells=3, words=1))
    images = Views(torch.tensor([[[-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]))
    texts = Views(torch.tensor([[[1.0, 0.0]]]))
    assert method.score(images, texts).item() == -1.0


def test_scores_in_chunks_equal_single_texts() -> None:
    method = models.build("late", 8, 8, {"embed_dim": 4, "cells": 4, "words": 512})
    images = Views(l2_normalize(torch.randn(2048, 4, 4)))
    texts = Views(torch.nn.functional.pad(l2_normalize(torch.randn(7, 3, 4)), (0, 0, 0, 509)))
    assert len(texts) * 2048 * 4 * 512 > MAX_PRODUCTS
    alone = [method.score(images, texts[t : t + 1]) for t in range(7)]
    torch.testing.assert_close(method.score(images, texts), torch.cat(alone, dim=1))


def test_surplus_cells_and_words_are_dropped() -> None:
    method = SCAN(8, 8, SCANConfig(8, 4, 2))
    features = torch.randn(2, 6, 8)
    images: Any = method.encode_image(features, HOLES, attention=True)
    assert images.attention[1].argmax(dim=1).tolist()[:3] == [0, 2, 3]  # of the mask, in order
    assert not images.embeddings[1, 3].any()
    assert method.encode_text(features, HOLES).embeddings.shape == (2, 2, 8)
