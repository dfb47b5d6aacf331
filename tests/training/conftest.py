"""Small data sets of vectors and photographs that methods learn within seconds, and their runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export import to_onnx
from polyview.models.checkpoint import load_tensors
from polyview.training import train
from polyview.training.data import precomputed
from polyview.training.data.split import Split
from polyview.training.loop.loop import LAST, Loop
from tests.conftest import made_once
from tests.export.conftest import write_backbone

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
WORDS = [f"thing{i}" for i in range(12)]
COLORS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "grey": (128,) * 3}
SIZE, WIDTH = 32, 6  # input size and feature width of the encoder


def make_features(images: int, seed: int) -> Split:
    """Makes images of three of twelve things, one in a cell, with two captions of two things."""
    random = np.random.default_rng(seed)
    directions = np.random.default_rng(99).normal(size=(12, 16))
    features = random.normal(scale=0.1, size=(images, 5, 16))
    captions, rows = [], []
    for i in range(images):
        names = random.choice(12, 3, replace=False)
        features[i, :3] += directions[names]
        for _ in range(2):
            a, b = random.choice(names, 2, replace=False)
            captions.append(f"a {WORDS[a]} and a {WORDS[b]}")
            rows.append(i)
    return Split(captions, np.array(rows), features=features.astype(np.float16))


def run_training(recipe: str | Path, out: Path, *changes: str, more: Sequence[str] = ()) -> Path:
    """Trains a recipe with changed settings; the features are cached in `cache` next to `out`."""
    settings = [part for change in changes for part in ("--set", change)]
    places = ["--out", f"{out}", "--cache", f"{out.parent / 'cache'}"]
    train.main(["--recipe", f"{recipe}", *places, *settings, *more])
    return out


def check_resume(kind: type[Loop[Any, Any]], config: Any, whole: Path, part: Path) -> None:
    """Checks that a run that is resumed after its first epoch has the weights of run `whole`."""
    ended = {"stop_reason": lambda _, epoch: "interrupted" if epoch else ""}
    type("Interrupted", (kind,), ended)(config, part, resume=False).fit()
    kind(config, part, resume=True).fit()
    first, second = (load_tensors(folder / LAST)[0] for folder in (whole, part))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def write_regions(folder: Path) -> Path:
    """Writes `make_features` as files: 60 training, 30 validation and 20 test images."""
    folder.mkdir()
    for part, images in (("train", 60), ("dev", 30), ("test", 20)):
        split = make_features(images, images)
        np.save(folder / f"{part}_ims.npy", split.features[:])
        (folder / f"{part}_caps.txt").write_text("\n".join(split.captions))
    return folder


def shared_world(factory: pytest.TempPathFactory) -> Path:
    """Returns the read-only folder of `write_world`, made once for all processes."""
    return made_once(factory, "regions", write_world)


def write_world(root: Path) -> None:
    """Writes `data`, `runs/vsepp_0`, `runs/vsepp_1` (another seed), `runs/mv_vse_0` and `pack`.

    The pack contains all runs, the second as `vsepp_2`; its gallery is the test split. The split
    `testall` has five equal rows for each image, as COCO's.
    """
    write_regions(root / "data")
    split = make_features(20, 7)
    np.save(root / "data" / "testall_ims.npy", np.repeat(split.features[:], 5, axis=0))
    captions = [line for line in split.captions[::2] for _ in range(5)]
    (root / "data" / "testall_caps.txt").write_text("\n".join(captions))
    corners = np.random.default_rng(5).uniform(size=(20, 5, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(axis=2), corners.max(axis=2)], axis=-1)
    np.save(root / "data" / "test_boxes.npy", boxes)  # (20, 5, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for method, seed in (("vsepp", 0), ("vsepp", 1), ("mv_vse", 0)):
            Path(f"{method}.toml").write_text(RECIPE.format(method=method))
            run_training(f"{method}.toml", Path(f"runs/{method}_{seed}"), f"seed={seed}")
        precomputed.main(["--data", "data", "--split", "test", "--out", "gallery"])
        runs = ["runs/vsepp_0", "vsepp_2=runs/vsepp_1", "runs/mv_vse_0"]
        values = [option for run in runs for option in ("--run", run)]
        assert to_onnx.main([*values, "--gallery", "gallery", "--out", "pack", *LABELS]) == 0


def write_photographs(
    folder: Path,
    counts: dict[str, int],
    name: str = "flickr8k",
    captions: int = 5,
    folders: dict[str, str] | None = None,
) -> Path:
    """Writes `counts` photographs of one colour per split, with captions that name the colour.

    `folders` is the `filepath` of each split, as in Karpathy's JSON of COCO.
    """
    random, entries = np.random.default_rng(0), list[dict[str, Any]]()
    for split, count in counts.items():
        inside = {"filepath": folders[split]} if folders else {}
        target = folder / "images" / inside.get("filepath", "")
        target.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            i = len(entries)
            color = list(COLORS)[i % len(COLORS)]
            pixels = np.clip(COLORS[color] + random.integers(-30, 30, (30, 40, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(target / f"{i:03}.jpg")
            sentences = [{"raw": f"A {color} field, number {n} ."} for n in range(captions)]
            entry = {"filename": f"{i:03}.jpg", "split": split, "sentences": sentences}
            entries.append(entry | {"imgid": 100 + i} | inside)
    text = json.dumps({"dataset": name, "images": entries})
    (folder / f"dataset_{name}.json").write_text(text, "utf-8")
    return folder


def write_encoder(
    folder: Path, seed: int = 0, widths: tuple[int, ...] = (4, 4, WIDTH), size: int = SIZE
) -> Path:
    """Writes a run of a tiny image encoder; by default 2 x 2 cells with `WIDTH` features."""
    torch.manual_seed(seed)
    return write_backbone(folder, widths, size, trained=False)
