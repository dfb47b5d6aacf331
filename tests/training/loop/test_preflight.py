"""Whatever a training lacks is one sentence, before the first image is read."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from export.hub import client
from models.checkpoint import load_tensors
from tests.published import save_bert
from tests.training.photographs import write_encoder, write_photographs
from training import distill, train
from training.data import features
from training.loop import preflight, teacher
from training.loop.runs import CONFIG

Refused = Callable[..., str]
RECIPE = """
method = "vsepp"
epochs = 2
batch_size = 8
data = "{0}/photos"
backbone = "{0}/backbone"
arguments = {{ embed_dim = 8 }}
text = {{ word_dim = 8, hidden_dim = 8 }}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos/` with 16 images of five captions to train on, encoders, `recipe.toml`, a run."""
    root = tmp_path_factory.mktemp("world")
    write_photographs(root / "photos", {"train": 16, "val": 8})
    write_encoder(root / "backbone")
    save_bert(root / "bert")
    (root / "recipe.toml").write_text(RECIPE.format(root))
    given = ["--recipe", f"{root}/recipe.toml", "--cache", f"{root}/cache", "--set", "epochs=1"]
    train.main([*given, "--out", f"{root}/first"])
    return root


@pytest.fixture
def looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where an image is read or the Hub is asked."""
    monkeypatch.setattr(features, "load_image_source", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(teacher, "prepare", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(client, "fetch", lambda *_: pytest.fail("the Hub is asked"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(world: Path, looking: None) -> Refused:  # noqa: ARG001
    """Begins a training that must be refused; returns the sentence."""

    def begin(*changes: str, out: str = "run") -> str:
        settings = [part for change in changes for part in ("--set", change)]
        given = ["--recipe", f"{world}/recipe.toml", "--out", out, "--cache", "cache"]
        with pytest.raises(SystemExit) as end:
            train.main([*given, *settings])
        assert not (Path(out) / CONFIG).exists()
        return str(end.value)

    return begin


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("batch_size=81", "batch_size 81 is more than the 80 there are to train on; lower it"),
        ("train_images=1", "batch_size 8 is more than the 5 there are"),
        ("optimizer.warmup_steps=20", "optimizer.warmup_steps is 20, but the whole run has 20"),
        ("data=nowhere", "nowhere holds neither photographs"),
        ("text.arch=bart", "text.arch must be one of bigru"),
        ("text.vectors=glove.txt", "there is no word vectors file glove.txt"),
        ("backbone=", "backbone must name an image encoder"),
        ("backbone=../gone", "there is no folder ../gone"),
        ("arguments.width=3", 'method "vsepp" has no argument "width"'),
        ("init=gone", "there is no weights file gone/best.safetensors"),
        ("also=['gone']", "gone holds no file of captions"),
        ("order_epochs=1", "order_epochs need clips of the moving world"),
        ("exchange_halves=true", "exchange_halves and order_epochs need clips"),
        ("method=base_cls", "reads the first element of a set as its summary"),
    ],
)
def test_what_is_wrong_is_said_before_an_image_is_read(
    refused: Refused, change: str, sentence: str
) -> None:
    said = refused(change)
    assert sentence in said
    assert "\n" not in said


def test_a_warm_up_that_ends_in_time_is_none_of_that(world: Path, tmp_path: Path) -> None:
    given = ["--recipe", f"{world}/recipe.toml", "--set", "optimizer.warmup_steps=19"]
    train.main([*given, "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")])


def test_a_missing_text_encoder_is_noticed_first(refused: Refused, world: Path) -> None:
    said = refused("text.arch=bert", "text.source=data/minilm")
    assert "there is no folder data/minilm; see docs/photographs.md, or name" in said
    assert said.endswith("with --set text.source=...")
    said = refused("text.arch=clip_text", f"text.source={world}/bert")
    assert 'is of text.arch "bert", not "clip_text"' in said


def test_texts_that_nothing_would_map_are_refused(
    refused: Refused, world: Path, tmp_path: Path
) -> None:
    text = f"text={{arch='bert',source='{world}/bert'}}"
    same = "arguments.embed_dim=16"  # the width of that encoder's features
    assert "already have embed_dim's width, 16, so nothing would learn to map texts" in refused(
        text, same
    )
    run = ["--recipe", f"{world}/recipe.toml", "--cache", f"{world}/cache", "--set", text]
    run += ["--set", same, "--set", "arguments.map_text=true", "--out", f"{tmp_path}/mapped"]
    train.main(run)
    tensors = load_tensors(tmp_path / "mapped" / "best.safetensors")[0]
    assert tensors["method.project_text.weight"].shape == (16, 16)


@pytest.mark.parametrize("parent_is_there", [False, True])
def test_a_missing_backbone_is_answered_by_the_command_that_makes_it(
    refused: Refused, parent_is_there: bool
) -> None:
    if parent_is_there:
        Path("runs").mkdir()
    assert refused("backbone=runs/backbone") == (
        "there is no folder runs/backbone; make it with python -m training.pretrain --recipe "
        "scenes/backbone --out runs/backbone, or name another one with --set backbone=..."
    )
    assert "with --set backbone=" in refused("backbone=runs/eye")


def test_a_full_disk_is_noticed_first(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert refused().startswith("features need 0.0 GB, but the disk of cache has only 0.0 GB left")


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_place_that_takes_no_run_is_named(refused: Refused, place: str) -> None:
    Path("file").touch()
    said = refused(out=place)
    assert said.startswith(f"cannot make the run folder {place}: ")
    assert said.endswith("; name another --out")


def test_a_run_that_is_there_is_noticed_first(refused: Refused) -> None:
    Path("run").mkdir()
    (Path("run") / "last.safetensors").touch()
    assert "holds a run already; add --resume" in refused()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("teacher=runs/eye", "there is no folder runs/eye"),
        ("batch_size=17", "batch_size 17 is more than the 16"),
        ("warmup_steps=40", "warmup_steps is 40, but the whole run has 40 steps (20 x 2)"),
        ("widths=[4, 4]", "2 widths need 1 block counts"),
        ("init=gone", "there is no weights file gone/best.safetensors"),
    ],
)
@pytest.mark.usefixtures("looking")
def test_a_student_is_looked_at_likewise(world: Path, change: str, sentence: str) -> None:
    given = [f"data={world}/photos", f"teacher={world}/backbone", "batch_size=8", "warmup_steps=1"]
    given += ["blocks=[1, 1]", "widths=[4, 4, 4]", change]
    settings = [part for value in given for part in ("--set", value)]
    with pytest.raises(SystemExit) as end:
        distill.main(["--out", "run", *settings])
    assert sentence in str(end.value)


def test_features_that_are_there_need_no_room(world: Path, tmp_path: Path) -> None:
    cache = ("--cache", str(tmp_path / "cache"))
    given = ["--recipe", f"{world}/recipe.toml", *cache, "--set", "feature_copies=2"]
    train.main([*given, "--out", str(tmp_path / "run")])
    config = preflight.TrainConfig(
        data=f"{world}/photos", backbone=f"{world}/backbone", feature_copies=3
    )
    splits = [preflight.open_split(Path(config.data), name) for name in ("train", "val")]
    missing = preflight._bytes_of_features(config, splits, tmp_path / "cache")
    assert missing == 16 * 4 * 6 * 2  # the third look: images, cells, numbers, bytes of each


def test_a_run_that_is_no_start_is_noticed_first(refused: Refused, world: Path) -> None:
    said = refused(f"init={world}/first", "method=vse_infty")
    assert said == f"init: {world}/first is a run of vsepp, not of vse_infty"
