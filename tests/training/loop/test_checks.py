"""Whatever a training lacks is one sentence, before the first image is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from polyview.export.hub import client
from polyview.models.checkpoint import load_tensors
from polyview.training import train
from polyview.training.data import features
from polyview.training.data.open_split import open_split
from tests.published import save_bert
from tests.training.photographs import write_photographs, write_world

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`write_world`'s with `bert/`, and `cache/` with the features of all images."""
    root = write_world(tmp_path_factory.mktemp("world"))
    save_bert(root / "bert")
    for part in ("train", "val"):
        split = open_split(root / "photos", part)
        features.read_features(split, root / "backbone", features.Extraction(root / "cache"))
    return root


@pytest.fixture
def refused(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Starts a training that must be refused before an image is read or the Hub is asked."""
    monkeypatch.setattr(features, "load_image_source", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(client, "fetch", lambda *_: pytest.fail("the Hub is asked"))
    monkeypatch.chdir(tmp_path)

    def start(*changes: str, out: str = "run") -> str:
        settings = [part for change in changes for part in ("--set", change)]
        options = ["--recipe", f"{world}/recipe.toml", "--out", out, "--cache", "cache"]
        with pytest.raises(SystemExit) as end:
            train.main([*options, *settings])
        assert not Path(out).is_dir()
        return str(end.value)

    return start


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("batch_size=81", "batch_size 81 is more than the 80 items to train on; lower it"),
        ("train_images=1", "batch_size 8 is more than the 5 items"),
        ("optimizer.warmup_steps=20", "optimizer.warmup_steps is 20, but the whole run has 20"),
        ("data=nowhere", "nowhere"),
        ("text.arch=bart", "text.arch must be one of bigru"),
        ("text.vectors=glove.txt", "there is no word vectors file glove.txt"),
        ("backbone=", "backbone must name an image encoder"),
        ("backbone=../gone", "there is no folder ../gone"),
        ("arguments.width=3", 'method "vsepp" has no argument "width"'),
        ("init=gone", "there is no weights file gone/best.safetensors"),
        ("also=['gone']", "gone"),
        ("exchange_halves=true", "exchange_halves and order_epochs need clips"),
        ("method=base_cls", "reads the first element of a set as its summary"),
    ],
)
def test_a_refusal_precedes_the_first_image(refused: Refused, change: str, sentence: str) -> None:
    message = refused(change)
    assert sentence in message
    assert "\n" not in message


def test_texts_that_nothing_would_map_are_refused(
    refused: Refused, world: Path, tmp_path: Path
) -> None:
    text = f"text={{arch='bert',source='{world}/bert'}}"
    same = "arguments.embed_dim=16"  # the width of that encoder's features
    assert "already have the width of embed_dim, 16, so that nothing would learn to map" in refused(
        text, same
    )
    run = ["--recipe", f"{world}/recipe.toml", "--cache", f"{world}/cache", "--set", text]
    run += ["--set", same, "--set", "arguments.map_text=true", "--out", f"{tmp_path}/mapped"]
    train.main(run)
    tensors = load_tensors(tmp_path / "mapped" / "best.safetensors")[0]
    assert tensors["method.project_text.weight"].shape == (16, 16)


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_place_that_takes_no_run_is_named(refused: Refused, place: str) -> None:
    Path("file").touch()
    message = refused(out=place)
    assert message.startswith(f"cannot make the run folder {place}: ")
    assert message.endswith("; name another --out")


def test_damaged_images_are_left_out_on_request(world: Path, tmp_path: Path) -> None:
    data = write_photographs(tmp_path / "photos", {"train": 16, "val": 8})
    whole = (data / "images" / "003.jpg").read_bytes()
    (data / "images" / "003.jpg").write_bytes(whole[: len(whole) // 2])
    options = ["--recipe", f"{world}/recipe.toml", "--set", f"data={data}", "--set", "epochs=1"]
    options += ["--set", "feature_copies=2", "--cache", f"{tmp_path}/cache"]
    options += ["--out", f"{tmp_path}/run"]
    with pytest.raises(SystemExit, match=r"(?s)1 of 16 images cannot be read.*003\.jpg"):
        train.main(options)
    train.main([*options, "--skip-damaged"])
    about = load_tensors(tmp_path / "run" / "best.safetensors")[1]
    assert (about["data"]["images"], about["data"]["captions"]) == (15, 75)
    trained = ("--set", "backbone_frozen=false")
    with pytest.raises(SystemExit, match="--skip-damaged needs backbone_frozen=true"):
        train.main([*options, "--skip-damaged", "--set", "feature_copies=1", *trained])
