"""Calibrated probabilities, and the distance of images from a pack's own images."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.calibration import Calibration, Domain
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import parse_info
from polyview.export.pack.validation import PackError, check
from polyview.export.runtime import Runtime
from tests.export.conftest import NAME

SCENES = Path(__file__).parents[3] / "app/bundled/scenes"
GOOD: dict[str, Any] = {
    "question": [20.0, 0.5, -0.5, -8.0, -0.8, -1.0, -3.0],
    "refusal": [1.0, 0.5, -0.2, -4.0],
    "hit": [-2.0, 1.0, -1.0, 0.5, -1.0],
    "split": "val",
    "command": "python -m polyview evaluate --calibrate",
    "hardware": "2 CPU cores",
    "seed": 0,
}
OWN: dict[str, Any] = {"mean": [0.0] * 24, "deviation": [1.0] * 24, "limit": 1.5}
WRONG: list[dict[str, Any]] = [
    {"question": GOOD["question"][:-1]},
    {"refusal": [1e7, 0.5, 0.1, -4.0]},
    {"seed": -1},
    {"mean": [0.0] * 23},
    {"mean": [0.0] * 22, "deviation": [1.0] * 22},
    {"deviation": [0.0] * 24},
    {"limit": 0},
]


def judged(pack: Path, calibration: dict[str, Any], domain: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of pack.json with a calibration and a domain, which are optional."""
    manifest = json.loads((pack / "pack.json").read_text("utf-8"))
    assert "domain" not in manifest
    assert "calibration" not in manifest["methods"][NAME]
    manifest["methods"][NAME]["calibration"] = calibration
    return {**manifest, "domain": domain}


def test_a_pack_keeps_what_it_is_given_and_its_embeddings_stay_valid(pack: Path) -> None:
    info = parse_info(judged(pack, GOOD, OWN), pack)
    assert json.loads(json.dumps(info.to_json())) == judged(pack, GOOD, OWN)
    assert info.domain == Domain((0.0,) * 24, (1.0,) * 24, 1.5)
    assert info.checksum == load_info(pack).checksum
    assert info.identity != load_info(pack).identity
    for change in WRONG:
        changed = ({key: change.get(key, v) for key, v in values.items()} for values in (GOOD, OWN))
        with pytest.raises(PackError):
            parse_info(judged(pack, *changed), pack)


def test_a_score_that_stands_out_is_surer() -> None:
    calibration, scores = check(Calibration, GOOD), np.array([0.6, 0.5, 0.3])
    words, sample = ["a", "red", "dog"], np.array([0.0, 0.2])
    sure: Any = calibration.judge_answer(scores, sample, 100, words, {})
    unsure: Any = calibration.judge_answer(scores - 0.3, sample, 100, words, {})
    assert (sure.matches, unsure.matches) == (True, False)
    assert sure.probability > unsure.probability
    assert list(sure.hits) == sorted(sure.hits, reverse=True)
    equal: Any = calibration.judge_answer(np.array([0.3]), np.full(2, 0.3), 100, words, {})
    assert np.isfinite(equal.hits).all()
    assert calibration.judge_answer(scores, sample, 9, words, {}) is None


def test_images_unlike_the_packs_own() -> None:
    domain = Domain((1.0, math.log(0.001)), (2.0, 1.0), limit=1.0)
    cells = np.array([[[1.0], [1.0]], [[5.0], [5.0]]])  # of two images
    np.testing.assert_allclose(domain.distances(cells), [0, 2**0.5], atol=1e-9)
    features = np.random.default_rng(0).normal(size=(400, 9, 3))
    fitted = Domain.fit(features)
    assert (fitted.distances(features[1::2]) > fitted.limit).mean() == pytest.approx(0.05, abs=0.01)
    runtime = Runtime.load(SCENES, "cpu")
    own = [Image.open(SCENES / f"gallery/images/test-{i:06}.webp") for i in range(0, 1000, 50)]
    noise = np.random.default_rng(0).integers(256, size=(2, 64, 96, 3), dtype=np.uint8)
    stored: Any = runtime.info.domain
    features = runtime.image_features([*own, *map(Image.fromarray, noise)]).numpy()
    unlike = stored.distances(features) > stored.limit
    assert unlike[: len(own)].mean() <= 0.1
    assert unlike[len(own) :].all()
