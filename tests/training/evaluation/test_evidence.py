"""View statistics, faithfulness and evidence against plain loops and cases worked out by hand."""

import json
import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from polyview import models
from polyview.export.pack.reading import load_info
from polyview.models import Views
from polyview.training.data.split import SeenObjects, Split
from polyview.training.evaluate import main
from polyview.training.evaluation.evidence import _score_sets, deletion_areas, find_mentions
from polyview.training.evaluation.views import (
    caption_cosines,
    faithfulness,
    mentioned_cells,
    print_views,
    value_shares,
    view_metrics,
    view_statistics,
)
from tests.training.sample import write_sample

DOG, BREAD = ("dog", "dogs", "puppy"), ("loaf", "loaf of bread", "loaves of bread")
# a 2 x 2 grid of 2 x 2 pixels: dogs in the first and the last cell, bread in the second
MASK = np.array([[1, 1, 0, 2], [1, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]], np.uint8)
METHOD = models.build("vsepp", 4, 4, {})


def runtime_of(box: tuple[float, ...] = (0, 0, 1, 1), **parts: Any) -> Any:
    """What is read of a runtime, whose preprocessing shows a part of each image."""
    preprocess = SimpleNamespace(visible_box=lambda *_: box)
    return SimpleNamespace(grid=(2, 2), preprocess=preprocess, **parts)


def test_view_statistics_by_hand() -> None:
    corners = torch.eye(4)
    images = Views(torch.stack([corners[[0, 1]], corners[[2, 2]]]))  # (2, 2, 4)
    texts = Views(corners[[0, 0, 1, 2]][:, None])  # the last ties: its first view wins
    results = view_statistics(METHOD, images, texts, np.array([0, 0, 0, 1]))
    entropy = 0.75 * math.log2(4 / 3) + 0.25 * 2
    expected = {"wins_1": 75, "wins_2": 25, "wins_entropy": entropy, "view_cosine": 0.5}
    assert results == pytest.approx(expected)
    single = Views(torch.eye(3)[:, None])  # one view has no other to resemble
    results = view_statistics(METHOD, single, single, np.arange(3))
    assert results == {"wins_1": 100, "wins_entropy": 0}


def test_cosines_of_captions_agree_with_the_loop() -> None:
    texts, image_of = Views(torch.randn(9, 2, 3)), np.array([0, 0, 0, 1, 2, 2, 3, 0, 2])
    means = []
    for image in set(image_of.tolist()):
        own = [texts.embeddings[row].flatten() for row in np.flatnonzero(image == image_of)]
        pairs = [(a, b) for i, a in enumerate(own) for b in own[:i]]
        if pairs:
            means.append(np.mean([float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairs]))
    results = caption_cosines(texts, image_of)
    assert results["caption_cosine"] == pytest.approx(np.mean(means), abs=1e-6)
    assert caption_cosines(texts[[0, 3]], image_of[[0, 3]]) == {}  # an image with one caption each


def test_cells_are_covered_by_what_the_caption_mentions() -> None:
    objects = SeenObjects([MASK], [(0,), (1,), (0, 1, 2), ()])
    data = Split(["x"] * 4, np.zeros(4, int), features=np.zeros((1, 4, 2)), objects=objects)
    for box, expected in (
        ((0, 0, 1, 1), [[1, 0, 0, 0], [0, 0.25, 0, 0], [1, 0.25, 0, 0.25], [0, 0, 0, 0]]),
        ((0.25, 0.25, 0.75, 0.75), [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),
    ):
        covered = mentioned_cells(runtime_of(box), data)
        assert covered is not None
        assert covered.tolist() == expected
    mask = np.random.default_rng(0).integers(0, 4, (11, 9)).astype(np.uint8)
    shares = value_shares(mask, (3, 2))  # cells of uneven size
    places = [(y, x) for y in range(11) for x in range(9)]
    for cell in range(6):
        inside = [mask[y, x] for y, x in places if (y * 3 // 11) * 2 + x * 2 // 9 == cell]
        for value in range(5):
            assert shares[cell, value] == pytest.approx(np.mean(np.array(inside) == value))


def test_pointing_and_mass_by_hand() -> None:
    attention = np.array([[[0.5, 0.1, 0.1, 0.3], [-0.2, 0.6, -0.4, 0.2]]])  # (1, 2, 4)
    # the last caption mentions nothing that is seen, and is left out
    covered = np.array([[1, 0, 0, 0], [0, 0, 0, 0.5], [0, 0, 0, 0]])
    results = faithfulness(attention, covered, np.zeros(3, int), np.array([0, 1, 0]))
    expected = {
        "pointing_1": 50,  # right for the first caption
        "pointing_2": 0,
        "pointing": 50,
        "pointing_chance": 25,
        "mass_1": 100 * (0.5 + 0.15) / 2,
        "mass_2": 100 * (0 + 0.25 * 0.5) / 2,  # what is negative counts as 0
        "mass": 100 * (0.5 + 0.125) / 2,
        "mass_chance": 100 * (0.25 + 0.125) / 2,
    }
    assert results == pytest.approx(expected)
    with pytest.raises(ValueError, match="no caption mentions a visible"):
        faithfulness(attention, covered[2:], np.zeros(1, int), np.zeros(1, int))


def test_faithfulness_needs_masks(capsys: pytest.CaptureFixture[str]) -> None:
    sides = Views(torch.eye(4)[:, None], torch.eye(4)[:, None]), Views(torch.eye(4)[:, None])
    data = Split(["x"] * 4, np.arange(4), features=np.zeros((4, 4, 2)))
    runtime = runtime_of(methods={"vsepp": METHOD})
    row = view_metrics(runtime, "vsepp", data, sides, mentioned_cells(runtime, data))
    assert row == {"wins_1": 100.0, "wins_entropy": 0.0}
    print_views({"vsepp": row})
    assert "vsepp: faithfulness was not measured; it needs a mask" in capsys.readouterr().out
    print_views({"two": {"wins_1": 75, "wins_2": 25, "wins_entropy": 0.81, "view_cosine": 0.5}})
    assert "two: entropy of the wins 0.81 of 1.00 bits, mean cosine" in capsys.readouterr().out


def test_words_are_found_on_every_visible_object_of_their_kind_and_no_other() -> None:
    captions = ["a puppy and a loaf of bread", "some dogs", "on the lawn", "a dog", "an animal"]
    objects = SeenObjects(
        [MASK, np.zeros((4, 4), np.uint8)],  # nothing is visible on the second image
        [(0, 1), (0, 2), (), (0,), (0,)],
        [[DOG, BREAD, DOG], [DOG]],
    )
    images = [Image.new("RGB", (4, 4))] * 2
    data = Split(captions, np.array([0, 0, 0, 1, 1]), images, objects=objects)
    runtime = runtime_of(
        info=SimpleNamespace(image_encoder=SimpleNamespace(file="image_encoder.onnx")),
        tokenize=lambda text: SimpleNamespace(
            spans=[piece.span() for piece in re.finditer(r"\S{1,4}", text)]
        ),
    )
    places = find_mentions(runtime, data)
    assert [(place.text, place.tokens, place.cells.tolist()) for place in places] == [
        (0, [1, 2], [True, False, False, True]),
        (0, [5, 6, 7, 8], [False, True, False, False]),
        (1, [1], [True, False, False, True]),
    ]


def test_areas_of_deletion_and_insertion_agree_with_the_loop() -> None:
    worth = torch.tensor([5.0, 0.0, 2.0, 1.0, 4.0])  # the first is a summary, which stays

    def image_views(features: torch.Tensor, _: str, mask: torch.Tensor) -> Views:
        return Views((features[..., 0] * mask).sum(dim=1)[:, None, None])

    head = SimpleNamespace(score=lambda images, _: images.embeddings[:, 0])
    runtime = cast(Any, SimpleNamespace(image_views=image_views, methods={"sum": head}))
    orders = np.array([[0.1, 0.5, 0.2, 0.9], [0.9, 0.2, 0.5, 0.1]])
    score = partial(_score_sets, runtime, "sum", worth[:, None], Views(torch.ones(1, 1, 1)))
    areas = deletion_areas(score, orders)
    for o, order in enumerate(np.argsort(-orders, axis=1)):
        lost, gained = [], []
        for step in range(11):
            count = round(4 * step / 10)
            cells = worth[1:].numpy()
            lost.append(5 + cells.sum() - cells[order[:count]].sum())
            gained.append(5 + cells[order[:count]].sum())
        assert areas[0, o] == pytest.approx(np.mean(lost[:-1]))
        assert areas[1, o] == pytest.approx(np.mean(gained[1:]))
    assert areas[0, 0] < areas[0, 1]  # the best first


def test_evidence_points_at_what_words_name_and_matters_to_the_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method, out = "vse_infty", tmp_path / "rows.json"
    pack = write_sample(tmp_path / "scenes", 12, [method])
    options = ["--method", method, "--evidence", "--write", "--json", str(out)]
    main(["--pack", str(pack), "--device", "cpu", *options])
    row = json.loads(out.read_text())["methods"][method]
    assert row["evidence_error"] < 1e-4
    assert row["evidence_pointing"] > 90 > 50 > row["evidence_random_head"]
    assert row["evidence_word_pointing"] > 90 > 30 > row["evidence_word_chance"]
    for curve in ("deletion", "insertion"):
        for other in ("random", "map"):
            assert 0 < row[f"{curve}_gain_{other}_low"] < row[f"{curve}_gain_{other}_high"]
    assert row["deletion"] < row["deletion_map"] < row["insertion_map"] < row["insertion"]
    assert row["deletion_renewed"] < row["deletion"]  # the order is that of what is left
    assert row["deletion_renewed_gain_map_low"] > 0
    assert f"| {method} | {row['evidence_pointing']:.1f} |" in capsys.readouterr().out
    metrics = load_info(pack).methods[method].metrics
    assert metrics is not None
    assert metrics.values == row
    assert metrics.command.endswith("--split test --evidence")
