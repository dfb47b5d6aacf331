"""Small data sets of vectors that methods learn within seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyview.models.checkpoint import load_tensors
from polyview.training import train
from polyview.training.data.split import Split
from polyview.training.loop.loop import LAST, Loop

WORDS = [f"thing{i}" for i in range(12)]


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
