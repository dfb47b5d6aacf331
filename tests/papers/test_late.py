"""Late interaction, against loops written from ColBERT's and FILIP's equations."""

import pytest
import torch

from polyview import models
from polyview.models import Views
from polyview.models.elements import MAX_PRODUCTS, LateConfig, LateInteraction
from polyview.models.layers import l2_normalize
from polyview.models.views import lengths_to_mask
from tests.models.conftest import HOLES

SPOKEN = lengths_to_mask(torch.tensor([4, 1, 2]), 4)


@torch.no_grad()
def test_scores_are_the_mean_over_words_of_the_best_cell() -> None:
    torch.manual_seed(4)
    method = LateInteraction(10, 8, LateConfig(embed_dim=8, cells=7, words=5)).eval()
    features, words = torch.randn(2, 6, 10), torch.randn(3, 4, 8)
    images, texts = method.encode_image(features, HOLES), method.encode_text(words, SPOKEN)
    scores, cell_scores = method.score(images, texts), method.view_scores(images, texts)
    cells = l2_normalize(method.project_image(features, HOLES))
    read = l2_normalize(method.project_text(words))
    for i in range(2):
        for t in range(3):
            best = [max(float(cell @ word) for cell in cells[i, HOLES[i]]) for word in read[t]]
            expected = sum(best[: int(SPOKEN[t].sum())]) / int(SPOKEN[t].sum())
            assert float(scores[i, t]) == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(cell_scores.sum(dim=0), scores)
    assert (cell_scores[:, 0, 1] != 0).sum() == 1  # one word has one best cell


def test_absent_cells_are_never_the_best() -> None:
    """An absent cell is 0, which would be above a negative cosine."""
    method = LateInteraction(2, 2, LateConfig(embed_dim=2, cells=3, words=1))
    images = Views(torch.tensor([[[-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]))
    texts = Views(torch.tensor([[[1.0, 0.0]]]))
    assert method.score(images, texts).item() == -1.0


def test_many_texts_are_scored_a_part_at_a_time() -> None:
    method = models.build("late", 8, 8, {"embed_dim": 4, "cells": 4, "words": 512})
    images = Views(l2_normalize(torch.randn(2048, 4, 4)))
    texts = Views(torch.nn.functional.pad(l2_normalize(torch.randn(7, 3, 4)), (0, 0, 0, 509)))
    assert len(texts) * 2048 * 4 * 512 > MAX_PRODUCTS
    alone = [method.score(images, texts[t : t + 1]) for t in range(7)]
    torch.testing.assert_close(method.score(images, texts), torch.cat(alone, dim=1))
