"""SCAN: stacked attention in both directions, against loops written from the paper."""

import math

import pytest
import torch
from torch import Tensor

from polyview.models.elements import SCAN, SCANConfig
from polyview.models.layers import l2_normalize
from polyview.models.views import lengths_to_mask
from tests.models.conftest import HOLES


def similarity(image: Tensor, text: Tensor, direction: str, sharpness: float) -> float:
    """The score of cells (k, D) and words (n, D) of unit length, one number after the other."""
    source, query = (image, text) if direction == "t2i" else (text, image)
    total = 0.0
    for question in query:
        weights = []
        for element in source:
            # thresholded at 0 and normalised over what asks
            all_of = [max(float(element @ other), 0.0) for other in query]
            length = math.sqrt(sum(value**2 for value in all_of) + 1e-8)
            weights.append(math.exp(sharpness * max(float(element @ question), 0.0) / length))
        shares = [weight / sum(weights) for weight in weights]
        results = sum(share * element for share, element in zip(shares, source, strict=True))
        total += float(torch.cosine_similarity(results, question, dim=0))
    return total / len(query)


@pytest.mark.parametrize(("direction", "sharpness"), [("t2i", 9.0), ("i2t", 4.0)])
def test_scores_equal_the_loop(direction: str, sharpness: float) -> None:
    torch.manual_seed(4)
    config = SCANConfig(8, 7, 5, direction=direction, sharpness=sharpness)
    method = SCAN(10, 8, config).eval()
    features, words = torch.randn(2, 6, 10), torch.randn(3, 4, 8)
    spoken = lengths_to_mask(torch.tensor([4, 1, 2]), 4)
    with torch.no_grad():
        images, texts = method.encode_image(features, HOLES), method.encode_text(words, spoken)
        scores = method.score(images, texts)
        cells = l2_normalize(method.project_image(features, HOLES))
        read = l2_normalize(method.project_text(words))
    assert images.embeddings.shape == (2, 7, 8)
    for i in range(2):
        for t in range(3):
            expected = similarity(cells[i, HOLES[i]], read[t, spoken[t]], direction, sharpness)
            assert float(scores[i, t]) == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(method.view_scores(images, texts).sum(dim=0), scores)


def test_what_is_too_much_is_left_out() -> None:
    method = SCAN(8, 8, SCANConfig(8, 4, 2))
    features = torch.randn(2, 6, 8)
    images = method.encode_image(features, HOLES, attention=True)
    assert images.attention is not None
    assert images.attention[1].argmax(dim=1).tolist()[:3] == [0, 2, 3]  # the real ones, in order
    assert not images.embeddings[1, 3].any()
    assert method.encode_text(features, HOLES).embeddings.shape == (2, 2, 8)
