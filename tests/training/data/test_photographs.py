"""Photographs from end to end: features, training, a pack without a gallery, its measurement."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from polyview.export.pack.schema import Labels
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import export_runs
from polyview.training import evaluate, train
from polyview.training.data import features, texts
from polyview.training.data.features import Extraction
from polyview.training.evaluation.scoring import image_features, score_matrix, split_views
from polyview.training.loop.loop import read_rows
from polyview.training.loop.trainer import run_views
from tests.published import save_bert
from tests.training.photographs import write_encoder, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`write_world`'s, `cache/` with features, `run/` and the `pack/` made of it."""
    root = write_world(tmp_path_factory.mktemp("world"))
    trained = ["--recipe", f"{root}/recipe.toml", "--cache", f"{root}/cache"]
    for change in ("method=mv_vse", "arguments.embed_dim=8", "arguments.views=2"):
        trained += ["--set", change]
    train.main([*trained, "--out", f"{root}/run"])
    cached = sorted(path.name.split("-")[0] for path in (root / "cache").rglob("*.npy"))
    assert cached == ["train", "val"]
    labels = Labels("photos", "Photos", "Apache-2.0", "nobody", "Random weights for tests.")
    export_runs(root / "pack", root / "backbone", [root / "run"], labels)
    return root


def test_a_folder_of_photographs_is_measured(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--data", f"{world}/photos", "--pack", f"{world}/pack", "--split", "test")
    chosen = ("--method", "mv_vse", "--device", "cpu")
    evaluate.main([*where, *chosen, "--json", f"{world}/measured.json"])
    printed = capsys.readouterr()
    assert "images" in printed.err  # the bar
    head, _, row = (line for line in printed.out.splitlines() if line.startswith("|"))
    assert row.startswith("| mv_vse |")
    assert "rsum" in head
    assert "R-P" not in head  # nobody knows which other photographs a caption is true of
    (values,) = json.loads((world / "measured.json").read_text())["methods"].values()
    assert 0 < values["rsum"] <= 600
    assert values["t2i_r10"] == 100.0  # of six photographs


def test_a_run_is_measured_without_an_export(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = ("--run", f"{world}/run", "--cache", f"{world}/cache"), world / "of_run.json"
    evaluate.main([*run, "--split", "val", "--json", str(out)])
    assert "| mv_vse |" in capsys.readouterr().out
    (results,) = json.loads(out.read_text())["methods"].values()
    best = max(float(row["rsum"]) for row in read_rows(world / "run" / "log.csv"))
    assert round(results["rsum"], 2) == best
    measured = run_views(world / "run", "test", Extraction(world / "cache"))
    _, method, images, sentences, split = measured
    scores = score_matrix(method, images, sentences)
    runtime = Runtime.load(world / "pack", "cpu")
    shipped = split_views(runtime, "mv_vse", split, image_features(runtime, split))
    packed = score_matrix(runtime.methods["mv_vse"], *shipped)
    np.testing.assert_allclose(scores, packed, atol=5e-3)  # the pack's weights are rounded
    same = str(shutil.copytree(world / "run", world / "same"))
    evaluate.main([*run, "--run", same, "--split", "val", "--mistakes", f"{world}/run", same])
    assert "+0.0 points found within 1, 95 % interval [+0.0, +0.0]" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--views measures packs; export the run"):
        evaluate.main([*run, "--views"])
    with pytest.raises(SystemExit, match="holds an image encoder; name the run of a method"):
        evaluate.main(["--run", f"{world}/backbone"])
    with pytest.raises(SystemExit, match="was trained on another image encoder"):
        run_with_other_backbone(world)


def run_with_other_backbone(world: Path) -> None:
    """Measures the run where another encoder lies in the place of its own."""
    copy = shutil.copytree(world / "run", world / "copy")
    other = write_encoder(world / "other_backbone", seed=1)
    text = (copy / "config.toml").read_text().replace(f"{world}/backbone", str(other))
    (copy / "config.toml").write_text(text)
    evaluate.main(["--run", str(copy), "--split", "val"])


def test_a_second_training_reads_neither_images_nor_captions_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = save_bert(tmp_path / "bert")
    changes = ("feature_copies=3", "text.arch=bert", f"text.source={bert}", "epochs=1")
    settings = [part for change in changes for part in ("--set", change)]
    command = ["--recipe", f"{world}/recipe.toml", "--cache", f"{tmp_path}/cache", *settings]
    train.main([*command, "--out", f"{tmp_path}/first"])
    files = sorted((tmp_path / "cache").rglob("*.npy"))
    assert len(files) == 3 + 1 + 1  # looks, validation images, captions
    monkeypatch.setattr(features, "load_image_source", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(texts, "_encode", lambda *_: pytest.fail("a caption is read"))
    train.main([*command, "--out", f"{tmp_path}/second"])
    assert sorted((tmp_path / "cache").rglob("*.npy")) == files
