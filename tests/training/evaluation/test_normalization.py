"""Nearest Neighbor Normalization: against the sum in a loop, and where an image fits everything."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.app.settings import BUNDLED
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from polyview.training.evaluate import main as evaluate
from polyview.training.evaluation import normalization
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.normalization import normalized
from tests.training.photographs import write_photographs

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("k", [1, 2, 9, 99])
def test_each_side_loses_the_mean_of_its_highest_scores(k: int) -> None:
    scores, of_images, of_texts = (RANDOM.normal(size=shape) for shape in ((4, 6), (4, 9), (6, 8)))
    corrected = normalized(scores, of_images, of_texts, 0.5, k)
    for image in range(4):
        for text in range(6):
            banks = (sorted(of_images[image])[-k:], sorted(of_texts[text])[-k:])
            bias = 0.5 * sum(np.mean(bank) for bank in banks)
            assert corrected[image, text] == pytest.approx(scores[image, text] - bias)


def test_an_image_that_fits_every_text_no_longer_wins() -> None:
    truth = np.arange(8)
    scores = np.eye(8) + RANDOM.normal(scale=0.1, size=(8, 8))
    scores[0] += 1.2
    bank = RANDOM.normal(scale=0.1, size=(8, 40))
    bank[0] += 1.2
    assert retrieval_metrics(scores, truth)["t2i_r1"] < 50
    corrected = normalized(scores, bank, bank * 0, 1.0, 4)
    assert retrieval_metrics(corrected, truth)["t2i_r1"] == 100


def test_a_pack_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_photographs(tmp_path / "data", {"train": 8, "val": 6, "test": 6})
    command = ["--pack", str(BUNDLED / "photos"), "--method", "vse_infty", "--nnn"]
    evaluate([*command, "--data", str(data), "--json", str(tmp_path / "rows.json")])
    row = json.loads((tmp_path / "rows.json").read_text())["methods"]["vse_infty"]
    assert f"| vse_infty | {row['alpha']:g} | {row['k']:g} |" in capsys.readouterr().out
    assert row["low"] <= row["difference"] <= row["high"]
    assert row["after"] - row["before"] == pytest.approx(row["difference"])


def test_a_pack_of_clip_stores_a_certain_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_photographs(tmp_path / "data", {"train": 8, "val": 6})
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED / "clip_tiny", pack)
    command = ["--pack", str(pack), "--nnn", "--write", "--data", str(data)]
    gain = {"difference": 0.0, "low": -1.0, "high": 1.0}
    monkeypatch.setattr(normalization, "bootstrap_difference", lambda *_, **__: gain)
    evaluate(command)
    assert (pack / "pack.json").read_text() == (BUNDLED / "clip_tiny/pack.json").read_text()
    gain["low"] = 0.1
    evaluate(command)
    assert "| clip | " in capsys.readouterr().out

    plain, corrected = Runtime.load(BUNDLED / "clip_tiny", "cpu"), Runtime.load(pack, "cpu")
    entry = corrected.info.methods["clip"]
    assert entry.metrics is None
    assert load_info(pack).methods["clip"].arguments["reference_queries"] == 8
    with Image.open(next((data / "images").iterdir())) as image:
        pixels = plain.preprocess([image])
    views = [
        runtime.image_views(runtime.pixel_features(pixels, "clip"), "clip")
        for runtime in (plain, corrected)
    ]
    texts = [runtime.text_views(["a dog", "a car"], "clip") for runtime in (plain, corrected)]
    scores = [
        runtime.methods["clip"].score(*pair)
        for runtime, *pair in zip((plain, corrected), views, texts, strict=True)
    ]
    reference = corrected.methods["clip"].get_buffer("reference").float()
    cosines = (views[0].embeddings[:, 0] @ reference.T).sort(descending=True).values
    bias = entry.arguments["bias_weight"] * cosines[:, : entry.arguments["bias_neighbours"]].mean(1)
    torch.testing.assert_close(scores[1], scores[0] - bias[:, None], atol=1e-5, rtol=0)
    with pytest.raises(SystemExit, match="has reference queries already"):
        evaluate(command)
    command[1] = str(BUNDLED / "photos")
    with pytest.raises(SystemExit, match="is for packs of CLIP and SigLIP"):
        evaluate(command)
