"""All methods, with options that reach their other branches."""

import pytest
import torch
from torch import Tensor

from polyview import models
from polyview.models import METHODS, Method, Views
from polyview.models.views import lengths_to_mask

Case = tuple[str, dict[str, object]]
IMAGE_DIM, TEXT_DIM = 16, 16  # the inputs of `clip` have the width of its embeddings
LAYERS = {"contextual_layers": 2, "contextual_heads": 2, "contextual_width": 8}
PLAIN = {**LAYERS, "contextual_summary": False}  # no summary token
SUMMARIES = {**LAYERS, "contextual_image": "transformer", "contextual_text": "transformer"}
RELEASED = {"released_gpo": True, "released_text": True, "sampled_features": True}
VARIANTS: list[Case] = [
    ("vse_infty", {"released_gpo": True, "mlp_dim": 8, "pad_statistics": True, "map_text": True}),
    ("vse_infty", {"pooling": "kmax", "pool_count": 3, "text_pooling": "max"}),
    ("mv_vse", {"aggregator": "mean", "views": 2}),
    ("mv_vse", {"aggregator": "released"}),
    ("mv_vse", {"own_projections": True, "released_gpo": True, "mlp_dim": 8}),
    ("pvse", {"views": 3, "fusion": "concat", "match": "concat", "image_global": "states"}),
    ("pvse", {"fusion": "local"}),
    ("pvse", {"image_global": "changes"}),
    ("avse", {"match": "maxsim", "block_dim": 4, **RELEASED}),
    ("avse", {"match": "mean", "views": 3}),
    ("avse", {"views": 4, "released_text": True, "temperature": 0.1}),
    ("scan", {"direction": "i2t", "words": 5}),
    ("mvam", {"views": 1, "code_space": "view"}),
    ("mvam", {"map_text": False}),
    ("vse_infty", {**PLAIN, "contextual_image": "transformer"}),
    ("late", {**PLAIN, "contextual_text": "transformer"}),
    *((name, SUMMARIES) for name in ("mvam", "base_cls", "avse", "pvse")),
]
# a mask of two sets; the elements of the second are not contiguous
HOLES = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
CASES = [*((name, {}) for name in sorted(METHODS)), *VARIANTS]


def label(case: Case) -> str:
    return " ".join([case[0], *(f"{name}={value}" for name, value in case[1].items())])


def build(case: Case) -> Method:
    torch.manual_seed(3)
    name, arguments = case
    return models.build(name, IMAGE_DIM, TEXT_DIM, {"embed_dim": 16, **arguments}).eval()


@pytest.fixture(params=CASES, ids=label)
def method(request: pytest.FixtureRequest) -> Method:
    return build(request.param)


def sets(sizes: list[int], dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns random features (B, N, dim) of sets of these sizes, and their mask (B, N)."""
    drawn = torch.randn(len(sizes), max(sizes), dim, generator=torch.Generator().manual_seed(seed))
    return drawn, lengths_to_mask(torch.tensor(sizes), max(sizes))


def encoded(method: Method, count: int = 1, cells: int = 20, words: int = 6) -> tuple[Views, Views]:
    """Encodes random images and texts in eval mode, with attention."""
    method.eval()
    with torch.no_grad():
        images = method.encode_image(*sets([cells] * count, IMAGE_DIM, 5), attention=True)
        return images, method.encode_text(*sets([words] * count, TEXT_DIM, 6), attention=True)
