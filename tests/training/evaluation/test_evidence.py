"""How evidence is measured: by hand on tiny cases, and on a few scenes of the bundled pack."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export.runtime import Runtime
from polyview.models import Views
from polyview.training.data.split import SeenObjects, Split
from polyview.training.evaluate import main
from polyview.training.evaluation.evidence import _score_sets, deletion_areas, named_places
from tests.training.sample import write_sample

DOG, BREAD = ("dog", "dogs", "puppy"), ("loaf", "loaf of bread", "loaves of bread")
# a 2 x 2 grid of 2 x 2 pixels: dogs in the first and the last cell, bread in the second
MASK = np.array([[1, 1, 0, 2], [1, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]], np.uint8)


def test_words_are_found_on_every_visible_object_of_their_kind_and_no_other() -> None:
    captions = ["a puppy and a loaf of bread", "some dogs", "on the lawn", "a dog", "an animal"]
    objects = SeenObjects(
        [MASK, np.zeros((4, 4), np.uint8)],  # nothing is visible on the second image
        [(0, 1), (0, 2), (), (0,), (0,)],
        [[DOG, BREAD, DOG], [DOG]],
    )
    images = [Image.new("RGB", (4, 4))] * 2
    data = Split(captions, np.array([0, 0, 0, 1, 1]), images, objects=objects)
    runtime = SimpleNamespace(
        info=SimpleNamespace(image_encoder=SimpleNamespace(file="image_encoder.onnx")),
        grid=(2, 2),
        preprocess=SimpleNamespace(visible_box=lambda *_: (0, 0, 1, 1)),
        tokenize=lambda text: SimpleNamespace(
            spans=[piece.span() for piece in re.finditer(r"\S{1,4}", text)]
        ),
    )
    places = named_places(cast(Any, runtime), data)
    assert [(place.text, place.tokens, place.cells.tolist()) for place in places] == [
        (0, (1, 2), [True, False, False, True]),
        (0, (5, 6, 7, 8), [False, True, False, False]),
        (1, (1,), [True, False, False, True]),
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
    pack, method = write_sample(tmp_path / "scenes", 12), "vse_infty"
    out = tmp_path / "rows.json"
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
    metrics = Runtime.load(pack, "cpu").info.methods[method].metrics
    assert metrics is not None
    assert metrics.values == row
    assert metrics.command.endswith("--split test --evidence")
