"""The papers' own data, end to end: trained, measured, exported and measured again.

A folder of ready-made region features stands for SCAN's of Flickr30K and COCO; its `testall` has
five equal rows an image, as COCO's.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from export import to_onnx
from export.pack.reading import load_info
from models.checkpoint import load_tensors, save_tensors
from tests.training.conftest import make_features, write_regions
from tests.training.photographs import write_photographs
from training import evaluate, train
from training.data.features import Extraction
from training.evaluation.metrics import folded_metrics
from training.loop.trained_run import run_scores

BUNDLED = Path(__file__).parents[1] / "app" / "bundled" / "scenes"
RECIPE = """
method = "{method}"
epochs = 2
batch_size = 24
data = "data"
backbone = ""
arguments = {{ embed_dim = 12 }}
text = {{ word_dim = 8, hidden_dim = 8 }}
"""
LABELS = ("--licence", "research only")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data`, two seeds of one recipe and another method over it, and a pack; nobody changes it."""
    root = tmp_path_factory.mktemp("regions")
    write_regions(root / "data")
    split = make_features(20, 7)
    np.save(root / "data" / "testall_ims.npy", np.repeat(split.features[:], 5, axis=0))
    captions = [line for line in split.captions[::2] for _ in range(5)]
    (root / "data" / "testall_caps.txt").write_text("\n".join(captions))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for method in ("vsepp", "mv_vse"):
            Path(f"{method}.toml").write_text(RECIPE.format(method=method))
        for method, seed in (("vsepp", 0), ("vsepp", 1), ("mv_vse", 0)):
            out = ["--out", f"runs/{method}_{seed}", "--set", f"seed={seed}"]
            train.main(["--recipe", f"{method}.toml", *out])
        runs = ["--run", "runs/vsepp_0", "--run", "runs/mv_vse_0"]
        assert to_onnx.main([*runs, "--out", "pack", *LABELS]) == 0
    return root


@pytest.fixture(autouse=True)
def at_home(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)


def measure(tmp_path: Path, *arguments: str) -> dict[str, dict[str, float]]:
    """What `training.evaluate` measures."""
    evaluate.main([*arguments, "--json", str(tmp_path / "rows.json")])
    rows: dict[str, dict[str, float]] = json.loads((tmp_path / "rows.json").read_text())
    return rows


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        evaluate.main(list(arguments))
    return str(end.value)


@pytest.mark.parametrize("split", ["test", "testall"])
def test_runs_and_their_average(split: str, tmp_path: Path) -> None:
    runs = ["--run", "runs/vsepp_0", "--run", "runs/vsepp_1"]
    rows = measure(tmp_path, *runs, "--split", split, "--folds", "5")
    assert list(rows) == ["runs/vsepp_0", "runs/vsepp_1", "average"]
    alone = measure(tmp_path, *runs[:2], "--split", split, "--folds", "5")
    assert alone == {"vsepp": rows["runs/vsepp_0"]}
    whole = measure(tmp_path, *runs[:2], "--split", split)
    assert whole["vsepp"]["rsum"] <= alone["vsepp"]["rsum"]


def test_the_average_is_of_scores(tmp_path: Path) -> None:
    folders = [Path("runs/vsepp_0"), Path("runs/mv_vse_0")]
    found = [run_scores(folder, "test", Extraction(device="cpu")) for folder in folders]
    image_of = found[0][2].image_of
    expected = folded_metrics((found[0][1] + found[1][1]) / 2, image_of, 5)
    given = [option for folder in folders for option in ("--run", str(folder))]
    rows = measure(tmp_path, *given, "--split", "test", "--folds", "5")
    assert rows["average"] == pytest.approx(expected)


def test_a_pack_without_an_image_encoder() -> None:
    info = load_info(Path("pack"))
    assert info.image_encoder.file is None
    assert info.image_encoder.dim == 16
    assert list(info.methods) == ["vsepp", "mv_vse"]
    assert (info.name, info.licence) == ("data", "research only")
    assert "ready-made features of their regions" in info.description
    assert "60 images with 120 captions" in info.description
    assert "training/vsepp/config.toml" in info.files
    assert "There is no image encoder" in Path("pack/README.md").read_text()


@pytest.mark.parametrize("split", ["test", "testall"])
def test_the_pack_measures_as_its_runs_do(split: str, tmp_path: Path) -> None:
    of = ["--data", "data", "--split", split, "--folds", "5"]
    pack = measure(tmp_path, "--pack", "pack", "--ensemble", "vsepp+mv_vse", *of)
    runs = measure(tmp_path, "--run", "runs/vsepp_0", "--run", "runs/mv_vse_0", *of)
    assert list(pack) == ["vsepp", "mv_vse", "vsepp+mv_vse"]
    for ours, theirs in zip(pack.values(), runs.values(), strict=True):
        assert ours["rsum"] == pytest.approx(theirs["rsum"], abs=15)  # weights in half precision


def test_what_is_written_says_how_it_was_measured(tmp_path: Path) -> None:
    pack = shutil.copytree("pack", tmp_path / "pack")
    rows = measure(tmp_path, "--pack", str(pack), "--data", "data", "--folds", "5", "--write")
    metrics = load_info(pack).methods["vsepp"].metrics
    assert metrics is not None
    assert metrics.values == rows["vsepp"]
    assert metrics.command.endswith("--data data --split test --folds 5")


def changed(run: str, folder: Path, **about: object) -> str:
    """A copy of a run that says something else of itself."""
    shutil.copytree(run, folder)
    tensors, was = load_tensors(folder / "best.safetensors")
    save_tensors(folder / "best.safetensors", tensors, was | about)
    return str(folder)


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """A folder of features of twice the width."""
    folder = write_regions(tmp_path / "wide")
    for path in folder.glob("*_ims.npy"):
        np.save(path, np.concatenate([np.load(path)] * 2, axis=2))
    return str(folder)


@pytest.fixture
def photographs(tmp_path: Path) -> str:
    return str(write_photographs(tmp_path / "photographs", {"train": 4, "test": 4}))


def test_images_and_features_are_told_apart(
    wide: str, photographs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--run", "runs/vsepp_0")
    images = ("--run", changed("runs/vsepp_0", tmp_path / "run", backbone_sha256="0" * 64))
    pack = ("--pack", "pack")
    for given, data, sentence in (
        (run, photographs, "was trained on ready-made features, and .* holds images"),
        (images, "data", "was trained on images, and data holds ready-made features"),
        (run, wide, "reads features of 16 numbers a region, and those in .* have 32"),
        (pack, photographs, "holds images, but the pack reads ready-made features of 16 numbers"),
        (pack, wide, "holds features of 32 numbers a region, but the pack reads 16"),
        (("--pack", str(BUNDLED)), "data", "data holds ready-made features, but the pack reads im"),
    ):
        assert re.search(sentence, refusal(*given, "--data", data)), sentence
    assert "a region is on no grid" in refusal(*pack, "--data", "data", "--evidence")
    for more, sentence in (
        (images, "was trained on images; name the backbone of its config.toml with --backbone"),
        ((*run, "--backbone", str(BUNDLED)), "on ready-made features; leave --backbone out"),
        (run, "nobody knows the licence of weights that learned from data; say it"),
    ):
        assert to_onnx.main([*more, "--out", str(tmp_path / "pack")]) == 1
        assert sentence in capsys.readouterr().err
    narrow = changed("runs/mv_vse_0", tmp_path / "narrow", image_dim=8)
    both = [*run, "--run", narrow, "--out", str(tmp_path / "pack"), *LABELS]
    assert to_onnx.main(both) == 1
    assert "reads features of 8 numbers" in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()


def test_runs_that_cannot_be_averaged(tmp_path: Path) -> None:
    first = ("--run", "runs/vsepp_0", "--split", "test")
    assert "names a folder twice" in refusal(*first, "--run", "runs/../runs/vsepp_0")
    shutil.copytree("data", tmp_path / "data")
    captions = (tmp_path / "data/test_caps.txt").read_text()
    (tmp_path / "data/test_caps.txt").write_text(captions.replace("thing1", "thing2"))
    other = shutil.copytree("runs/vsepp_1", tmp_path / "run")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('"data"', f'"{tmp_path}/data"'))
    assert "were trained on different data" in refusal(*first, "--run", str(other))
    assert "7 folds do not divide 20 images" in refusal(*first, "--folds", "7")
