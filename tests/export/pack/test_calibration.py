"""Calibrations are read as strictly as all else in a pack."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyview.export.pack.calibration import Calibration
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import parse_info
from polyview.export.pack.validation import PackError, check
from polyview.models import METHODS

NAME = next(iter(METHODS))
GOOD: dict[str, Any] = {
    "question": [20.0, 0.5, -0.5, -8.0, -0.8, -1.0, -3.0],
    "refusal": [1.0, 0.5, -0.2, -4.0],
    "hit": [-2.0, 1.0, -1.0, 0.5, -1.0],
    "split": "val",
    "command": "python -m polyview evaluate --calibrate",
    "hardware": "2 CPU cores",
    "seed": 0,
}


def with_calibration(pack: Path, values: Any) -> dict[str, Any]:
    manifest = json.loads((pack / "pack.json").read_text("utf-8"))
    manifest["methods"][NAME]["calibration"] = values
    return manifest


def test_a_pack_keeps_what_it_is_given_and_its_embeddings_stay_valid(pack: Path) -> None:
    info = parse_info(with_calibration(pack, GOOD), pack)
    assert json.loads(json.dumps(info.to_json())) == with_calibration(pack, GOOD)
    assert info.checksum == load_info(pack).checksum
    assert info.identity != load_info(pack).identity
    plain = json.loads((pack / "pack.json").read_text("utf-8"))
    assert "calibration" not in plain["methods"][NAME]


@pytest.mark.parametrize(
    "change",
    [
        {"question": GOOD["question"][:-1]},
        {"refusal": [1e7, 0.5, 0.1, -4.0]},
        {"hit": [float("nan")] * 5},
        {"seed": -1},
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused(pack: Path, change: dict[str, Any]) -> None:
    with pytest.raises(PackError):
        parse_info(with_calibration(pack, GOOD | change), pack)


def test_a_score_that_stands_out_is_surer() -> None:
    calibration, scores = check(Calibration, GOOD), np.array([0.6, 0.5, 0.3])
    words, sample = ["a", "red", "dog"], np.array([0.0, 0.2])
    sure = calibration.judge_answer(scores, sample, 100, words, {})
    unsure = calibration.judge_answer(scores - 0.3, sample, 100, words, {})
    assert sure is not None
    assert unsure is not None
    assert sure.matches
    assert not unsure.matches
    assert sure.probability > unsure.probability
    assert list(sure.hits) == sorted(sure.hits, reverse=True)
    equal = calibration.judge_answer(np.array([0.3]), np.full(2, 0.3), 100, words, {})
    assert equal is not None
    assert np.isfinite(equal.hits).all()
    assert calibration.judge_answer(scores, sample, 9, words, {}) is None
