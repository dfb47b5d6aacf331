"""Retrieval by kind of caption, and evidence over time."""

from pathlib import Path

import numpy as np
import pytest

from polyview.training.data.split import Split
from polyview.training.evaluation.kinds import kind_differences, kind_metrics, print_kinds
from polyview.training.evaluation.metrics import retrieval_metrics

IMAGES = 8


@pytest.fixture
def data() -> Split:
    """Eight clips in four pairs, each with a caption of one kind and two of another."""
    return Split(
        ["x"] * (3 * IMAGES),
        np.repeat(np.arange(IMAGES), 3),
        features=np.zeros((IMAGES, 4, 2)),
        folder=Path("clips/test"),
        alike=np.arange(IMAGES) // 2,
        kinds=["free", "order", "order"] * IMAGES,
    )


def test_a_kind_is_measured_as_if_it_stood_alone(data: Split) -> None:
    scores = np.random.default_rng(0).random((IMAGES, 3 * IMAGES))
    results = kind_metrics(scores, data)
    columns = np.arange(3 * IMAGES) % 3 > 0
    alone = retrieval_metrics(scores[:, columns], data.image_of[columns])
    assert {name: results[f"order_{name}"] for name in alone} == alone
    assert data.first(2).kinds == data.kinds[:6]
    assert results["order_rsum_low"] <= alone["rsum"] <= results["order_rsum_high"]


def test_a_method_that_cannot_tell_alike_clips_apart_gets_half(data: Split) -> None:
    assert data.alike is not None
    blind = (data.alike[:, None] == data.alike[data.image_of][None]).astype(float)
    knows = (np.arange(IMAGES)[:, None] == data.image_of[None]).astype(float)
    for scores, share in ((blind, 50.0), (knows, 100.0)):
        results = kind_metrics(scores, data)
        assert (results["free_above_alike"], results["order_above_alike"]) == (share, share)
    better = kind_differences(knows, blind, data)["order"]
    assert better["difference"] == pytest.approx(
        kind_metrics(knows, data)["order_rsum"] - kind_metrics(blind, data)["order_rsum"]
    )
    assert 0 < better["low"] <= better["difference"] <= better["high"]


def test_a_line_for_each_kind_and_method(data: Split, capsys: pytest.CaptureFixture[str]) -> None:
    scores = np.random.default_rng(0).random((IMAGES, 3 * IMAGES))
    print_kinds({"a": kind_metrics(scores, data)}, ["free", "order"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
