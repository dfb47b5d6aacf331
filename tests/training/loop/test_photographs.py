"""Training on photographs: refused settings, cached features, evaluation of runs."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from polyview.export.hub import client
from polyview.models.checkpoint import load_tensors
from polyview.training import evaluate
from polyview.training.data import features, texts
from polyview.training.evaluation.report import read_rows
from tests.published import save_bert
from tests.training.conftest import RECIPE, run_training, write_encoder, write_photographs


def start(world: Path, *changes: str, folder: Path = Path(), more: Sequence[str] = ()) -> None:
    """Trains `run` in `folder`; the features are cached in `cache` next to it."""
    sources = f"data={world}/photos", f"backbone={world}/backbone", "batch_size=8"
    run_training(world / "recipe.toml", folder / "run", *sources, *changes, more=more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, an image encoder, a text encoder, a recipe and a run."""
    root = tmp_path_factory.mktemp("world")
    write_photographs(root / "photos", {"train": 16, "val": 8, "test": 6})
    write_encoder(root / "backbone")
    save_bert(root / "bert")
    (root / "recipe.toml").write_text(RECIPE.format(method="vsepp"))
    start(root, "method=mv_vse", "arguments.embed_dim=8", "arguments.views=2", folder=root)
    cached = sorted(path.name.split("-")[0] for path in (root / "cache").rglob("*.npy"))
    assert cached == ["train", "val"]
    return root


def test_evaluating_a_run(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    run = ("--run", f"{world}/run", "--cache", f"{world}/cache", "--split", "val")
    same = str(shutil.copytree(world / "run", tmp_path / "same"))
    options = ("--run", same, "--mistakes", f"{world}/run", same, "--json", str(out))
    evaluate.main([*run, *options])
    assert "+0.0 points found within 1, 95 % interval [+0.0, +0.0]" in capsys.readouterr().out
    results = json.loads(out.read_text())["methods"][f"{world}/run"]
    best = max(float(row["rsum"]) for row in read_rows(world / "run" / "log.csv"))
    assert round(results["rsum"], 2) == best
    config, other = Path(same) / "config.toml", write_encoder(tmp_path / "other", seed=1)
    config.write_text(config.read_text().replace(f"{world}/backbone", str(other)))
    for arguments, sentence in (
        ((*run, "--views"), "--views measures packs; leave it out"),
        (("--run", f"{world}/backbone"), "holds an image encoder; name the run of a method"),
        (("--run", same, "--split", "val"), "was trained with a different image encoder"),
    ):
        with pytest.raises(SystemExit, match=sentence):
            evaluate.main(list(arguments))


BERT_AS_WIDE = "arguments.embed_dim=16 text={arch='bert',source='WORLD/bert'}"
REFUSED = (
    ("batch_size=81", "batch_size 81 is more than the 80 items to train on; lower it"),
    ("train_images=1", "batch_size 8 is more than the 5 items"),
    ("optimizer.warmup_steps=20", "optimizer.warmup_steps is 20, but the whole run has 20"),
    ("data=nowhere", "nowhere"),
    ("text.arch=bart", "text.arch must be one of bigru"),
    ("text.vectors=glove.txt", "there is no file of word vectors glove.txt"),
    ("backbone=", "backbone must name an image encoder"),
    ("backbone=../gone", "there is no folder ../gone"),
    ("arguments.width=3", 'method "vsepp" has no argument "width"'),
    ("init=gone", "there is no weights file gone/best.safetensors"),
    ("also=['gone']", "gone"),
    ("exchange_halves=true", "exchange_halves and order_epochs need clips"),
    ("backbone_frozen=false --skip-damaged", "--skip-damaged needs backbone_frozen=true"),
    ("method=base_cls", "reads the first element of a set as its summary"),
    (BERT_AS_WIDE, "already have the width of embed_dim, 16, so no weights would map texts"),
    ("--out file", "file/config.toml cannot be written: File exists; choose another folder"),
    ("--out file/run", "file/run/config.toml cannot be written: Not a directory; choose"),
    ("--threads -1", "2"),  # the exit status
)


def test_settings_are_checked_before_an_image_is_read(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "load_image_source", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(client, "fetch", lambda *_: pytest.fail("the Hub is asked"))
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for change, sentence in REFUSED:
        changes, dashes, more = change.replace("WORLD", str(world)).partition("--")
        with pytest.raises(SystemExit) as end:
            start(world, *changes.split(), more=f"{dashes}{more}".split())
        assert sentence in str(end.value)
        assert "\n" not in str(end.value)
        assert not Path("run").exists()


def test_cached_text_features(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also skips a damaged image."""
    data = write_photographs(tmp_path / "photos", {"train": 16, "val": 8})
    (data / "images" / "003.jpg").write_bytes(b"no image")
    text = f"text={{arch='bert',source='{world}/bert'}}"
    same = (text, "arguments.embed_dim=16", "arguments.map_text=true", "epochs=1", f"data={data}")
    start(world, *same, folder=tmp_path, more=["--skip-damaged"])
    tensors, about = load_tensors(tmp_path / "run" / "best.safetensors")
    assert (about["data"]["images"], about["data"]["captions"]) == (15, 75)
    assert tensors["method.project_text.weight"].shape == (16, 16)
    monkeypatch.setattr(features, "load_image_source", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(texts, "_encode", lambda *_: pytest.fail("a caption is read"))
    start(world, *same, folder=tmp_path, more=("--skip-damaged", "--out", f"{tmp_path}/second"))
