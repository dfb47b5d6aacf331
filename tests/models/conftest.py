"""Every method, and what it can be besides its default."""

import pytest
import torch

from polyview import models
from polyview.models import METHODS, Method, Views

IMAGE_DIM, TEXT_DIM = 16, 16  # CLIP reads rows as wide as the joint space
TRANSFORMER = {
    "contextual_layers": 2,
    "contextual_heads": 2,
    "contextual_width": 8,
    "contextual_summary": False,
}
VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("vse_infty", {"released_gpo": True, "mlp_dim": 8, "pad_statistics": True}),
    ("vse_infty", {"pooling": "kmax", "pool_count": 3, "text_pooling": "max"}),
    ("vse_infty", {"pooling": "mean"}),
    ("mv_vse", {"aggregator": "mean", "views": 2}),
    ("mv_vse", {"aggregator": "released"}),
    ("mv_vse", {"own_projections": True, "pad_statistics": True, "mlp_dim": 8}),
    ("pvse", {"views": 3, "fusion": "concat"}),
    ("pvse", {"fusion": "local", "legacy_text": True}),
    ("pvse", {"match": "concat"}),
    ("pvse", {"image_global": "states"}),
    ("pvse", {"image_global": "changes"}),
    ("avse", {"match": "maxsim", "block_dim": 4}),
    ("avse", {"match": "mean"}),
    ("avse", {"views": 4, "released_text": True, "temperature": 0.1}),
    ("avse", {"views": 1, "temperature": 0.01}),
    ("scan", {"direction": "i2t", "words": 5}),
    ("mvam", {"views": 1, "code_space": "view"}),
    ("mvam", {"map_text": False}),
    ("vsepp", {"map_text": True}),
    ("vse_infty", {**TRANSFORMER, "contextual_image": "transformer"}),
    ("mvam", {**TRANSFORMER, "contextual_text": "transformer"}),
    ("late", {**TRANSFORMER, "contextual_image": "transformer"}),
]
CASES = [*((name, {}) for name in sorted(METHODS)), *VARIANTS]


@pytest.fixture(params=CASES, ids=lambda case: " ".join([case[0], *map(str, case[1].values())]))
def method(request: pytest.FixtureRequest) -> Method:
    torch.manual_seed(3)
    name, arguments = request.param
    return models.build(name, IMAGE_DIM, TEXT_DIM, {"embed_dim": 16, **arguments}).eval()


def encoded(method: Method, count: int, cells: int, words: int) -> tuple[Views, Views]:
    """Images and texts of random features, with attention, by a method in eval mode."""
    torch.manual_seed(5)
    method.eval()

    def of(size: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, size, dim), torch.ones(count, size, dtype=torch.bool)

    with torch.no_grad():
        images = method.encode_image(*of(cells, IMAGE_DIM), attention=True)
        return images, method.encode_text(*of(words, TEXT_DIM), attention=True)
