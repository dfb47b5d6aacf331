"""Views, their faithfulness, and areas of deletion, by loops and cases worked out by hand."""

import math
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview import models
from polyview.models import Views
from polyview.training.data.split import SeenObjects, Split
from polyview.training.evaluation import views
from polyview.training.evaluation.evidence import _score_sets, deletion_areas, find_mentions

DOG, BREAD = ("dog", "dogs", "puppy"), ("loaf", "loaf of bread", "loaves of bread")
# a 2 x 2 grid of 2 x 2 pixels: dogs in the first and the last cell, bread in the second
MASK = np.array([[1, 1, 0, 2], [1, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]], np.uint8)


def runtime_of(box: tuple[float, ...] = (0, 0, 1, 1), **parts: Any) -> Any:
    """What is read of a runtime, whose preprocessing shows a part of each image."""
    preprocess = SimpleNamespace(visible_box=lambda *_: box)
    return SimpleNamespace(grid=(2, 2), preprocess=preprocess, **parts)


def test_view_statistics_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    corners, method = torch.eye(4), models.build("vsepp", 4, 4, {})
    images = Views(torch.stack([corners[[0, 1]], corners[[2, 2]]]))  # (2, 2, 4)
    texts = Views(corners[[0, 0, 1, 2]][:, None])  # the last ties: its first view wins
    row = views.view_statistics(method, images, texts, np.array([0, 0, 0, 1]))
    entropy = 0.75 * math.log2(4 / 3) + 0.25 * 2
    expected = {"wins_1": 75, "wins_2": 25, "wins_entropy": entropy, "view_cosine": 0.5}
    assert row == pytest.approx(expected)
    views.print_views({"two": row})  # no map was measured
    printed = capsys.readouterr().out
    assert "two: entropy of the wins 0.81 of 1.00 bits, mean cosine" in printed
    assert "two: faithfulness was not measured; it needs a mask" in printed
    assert "the winning view" not in printed


def test_cells_are_covered_by_what_the_caption_mentions() -> None:
    objects = SeenObjects([MASK], [(0,), (1,), (0, 1, 2), ()])
    data = Split(["x"] * 4, np.zeros(4, int), features=np.zeros((1, 4, 2)), objects=objects)
    for box, expected in (
        ((0, 0, 1, 1), [[1, 0, 0, 0], [0, 0.25, 0, 0], [1, 0.25, 0, 0.25], [0, 0, 0, 0]]),
        ((0.25, 0.25, 0.75, 0.75), [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),
        ((0.5, 0, 1, 0.5), [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]),
    ):
        covered = views.mentioned_cells(runtime_of(box), data)
        assert covered is not None
        assert covered.tolist() == expected
    mask = np.random.default_rng(0).integers(0, 4, (11, 9)).astype(np.uint8)
    shares = views.value_shares(mask, (3, 2))  # cells of uneven size
    for cell in range(6):
        inside = [mask[y, x] for y, x in np.ndindex(11, 9) if y * 3 // 11 * 2 + x * 2 // 9 == cell]
        assert shares[cell, :4] == pytest.approx(np.bincount(inside, minlength=4) / len(inside))


def test_faithfulness_needs_a_visible_object() -> None:
    row = np.zeros(1, int)
    with pytest.raises(ValueError, match="no caption mentions a visible object"):
        views.faithfulness(np.ones((1, 2, 4)), np.zeros((1, 4)), row, row)


def test_mentions_are_all_visible_objects_of_their_kind_and_no_other() -> None:
    captions = ["a puppy and a loaf of bread", "some dogs", "on the lawn", "a dog", "an animal"]
    objects = SeenObjects(
        [MASK, np.zeros((4, 4), np.uint8)],  # nothing is visible on the second image
        [(0, 1), (0, 2), (), (0,), (0,)],
        [[DOG, BREAD, DOG], [DOG]],
    )
    images = [Image.new("RGB", (4, 4))] * 2
    data = Split(captions, np.array([0, 0, 0, 1, 1]), images, objects=objects)
    pieces = re.compile(r"\S{1,4}")

    def read(text: str) -> SimpleNamespace:
        return SimpleNamespace(spans=[each.span() for each in pieces.finditer(text)])

    info = SimpleNamespace(image_encoder=SimpleNamespace(file="image_encoder.onnx"))
    runtime = runtime_of(info=info, reader=SimpleNamespace(read=read))
    mentions = find_mentions(runtime, data)
    assert [(each.text, each.tokens, each.cells.tolist()) for each in mentions] == [
        (0, [1, 2], [True, False, False, True]),
        (0, [5, 6, 7, 8], [False, True, False, False]),
        (1, [1], [True, False, False, True]),
    ]


def test_areas_of_deletion_and_insertion_agree_with_the_loop() -> None:
    worth = torch.tensor([5.0, 0.0, 2.0, 1.0, 4.0])  # the first is a summary, which stays

    def image_views(features: torch.Tensor, _: str, mask: torch.Tensor) -> Views:
        return Views((features[..., 0] * mask).sum(dim=1)[:, None, None])

    head = SimpleNamespace(score=lambda images, _: images.embeddings[:, 0])
    runtime: Any = SimpleNamespace(image_views=image_views, methods={"sum": head})
    orders = np.array([[0.1, 0.5, 0.2, 0.9], [0.9, 0.2, 0.5, 0.1]])
    score = partial(_score_sets, runtime, "sum", worth[:, None], Views(torch.ones(1, 1, 1)))
    areas, cells = deletion_areas(score, orders), worth[1:].numpy()
    for o, order in enumerate(np.argsort(-orders, axis=1)):
        sums = [cells[order[: round(4 * step / 10)]].sum() for step in range(11)]
        assert areas[0, o] == pytest.approx(np.mean([5 + cells.sum() - x for x in sums[:-1]]))
        assert areas[1, o] == pytest.approx(np.mean([5 + x for x in sums[1:]]))
