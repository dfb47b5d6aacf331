"""Pretrains the scenes' image encoder.

`python -m training.pretrain --recipe scenes/backbone --out runs/backbone`

The stand-in for the papers' region detector trained on Visual Genome: a small CNN learns, from
random weights, to name the objects in each cell of its grid, and the picture's setting, time and
weather. Only the trunk is kept; it is frozen for every method.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models.backbones import SceneNet
from models.preprocess import Preprocess
from training.config import PretrainConfig, load_recipe, to_values
from training.runs import RunFolder, hardware
from training.scenes.store import SceneData, load_scenes
from training.scenes.world import LABEL_GROUPS, LABELS, label_matrix

MIN_COVERAGE = 0.15  # a thing is in a cell if it covers so much of it, or a third of it is there
THINGS = tuple(
    i for i, name in enumerate(LABELS) if name in LABEL_GROUPS["objects"] + LABEL_GROUPS["color"]
)
SURROUNDINGS = tuple(i for i in range(len(LABELS)) if i not in THINGS)
_COLUMN = {LABELS[label]: column for column, label in enumerate(THINGS)}


class Labeller(nn.Module):
    """SceneNet with linear classifiers of things, per cell and picture, and surroundings."""

    def __init__(self, trunk: SceneNet, things: int, surroundings: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.things = nn.Linear(trunk.dim, things)
        self.surroundings = nn.Linear(trunk.dim, surroundings)
        nn.init.constant_(self.things.bias, -4.0)  # most things are in no cell

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Labels pictures.

        Args:
            pixels: (B, 3, H, W).

        Returns:
            Logits of things per cell (B, N, C) and per picture (B, C), of surroundings (B, S).
        """
        cells = self.trunk(pixels)  # (B, N, d)
        per_cell = self.things(cells)  # (B, N, C)
        return per_cell, per_cell.amax(dim=1), self.surroundings(cells.mean(dim=1))


def cell_labels(data: SceneData, index: np.ndarray, grid: int) -> np.ndarray:
    """Which things, and which coloured things, each cell shows.

    Args:
        data: scenes with instance maps.
        index: (B,) scenes to label.
        grid: cells along a side.

    Returns:
        (B, grid * grid, C) float32 of 0 and 1; columns are those of `THINGS`.
    """
    maps = data.instances[index]  # (B, S, S)
    size = maps.shape[1] // grid
    labels = np.zeros((len(index), grid * grid, len(THINGS)), np.float32)
    for b, scene in enumerate(index):
        tiles = maps[b, : grid * size, : grid * size].reshape(grid, size, grid, size)
        tiles = tiles.transpose(0, 2, 1, 3).reshape(grid * grid, size * size)
        for i, item in enumerate(data.scenes[scene].objects):
            covered = (tiles == i + 1).sum(axis=1)  # (N,)
            enough = min(MIN_COVERAGE * size * size, covered.sum() / 3)
            shown = (covered >= enough) & (covered > 0)
            labels[b, shown, _COLUMN[item.name]] = 1.0
            if item.color is not None:
                labels[b, shown, _COLUMN[f"color:{item.color} {item.name}"]] = 1.0
    return labels


def object_r_precision(logits: np.ndarray, truth: np.ndarray) -> float:
    """Share of each picture's R objects among its R highest logits, averaged, in percent.

    Args:
        logits: (N, C).
        truth: (N, C) of 0 and 1.
    """
    order = np.argsort(-logits, axis=1, kind="stable")
    hits = np.take_along_axis(truth, order, axis=1)
    counts = truth.sum(axis=1).astype(int)
    return 100.0 * float(np.mean([h[:r].mean() for h, r in zip(hits, counts, strict=True) if r]))


class Pretraining:
    """The loop: one object a run."""

    def __init__(self, config: PretrainConfig, out: Path, *, resume: bool) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.preprocess = Preprocess()
        root = Path(config.data)
        self.train, self.val = load_scenes(root / "train"), load_scenes(root / "val")
        self.targets = torch.from_numpy(label_matrix(self.train.scenes)[0])
        self.val_targets = label_matrix(self.val.scenes)[0]
        trunk = SceneNet(config.widths, config.blocks)
        self.grid = trunk.grid(self.preprocess.size)[0]
        self.model = Labeller(trunk, len(THINGS), len(SURROUNDINGS))
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.run = RunFolder(out, to_values(config), resume=resume)
        self.progress = self.run.load_last(self.model, self.optimizer) or {
            "epoch": 0,
            "step": 0,
            "best": -1.0,
        }

    def fit(self) -> None:
        """Trains to the end, writing a checkpoint after each epoch."""
        for epoch in range(self.progress["epoch"], self.config.epochs):
            began = time.perf_counter()
            terms = self._epoch(epoch)
            score = self.evaluate()
            seconds = time.perf_counter() - began
            self.run.log({"epoch": epoch, **terms, **score, "seconds": round(seconds, 1)})
            print(f"epoch {epoch}: {score}", file=sys.stderr)
            if score["object_r_precision"] > self.progress["best"]:
                self.progress["best"] = score["object_r_precision"]
                self._save_best(epoch, score)
            self.progress["epoch"] = epoch + 1
            self.run.save_last(self.model, self.optimizer, self.progress)

    def _epoch(self, epoch: int) -> dict[str, float]:
        config = self.config
        order = np.random.default_rng([config.seed, epoch]).permutation(len(self.train))
        steps = len(order) // config.batch_size
        total = {"image": 0.0, "cell": 0.0, "surroundings": 0.0}
        self.model.train()
        for step in tqdm(range(steps), desc=f"epoch {epoch + 1}/{config.epochs}", mininterval=2):
            index = np.sort(order[step * config.batch_size : (step + 1) * config.batch_size])
            self._set_rate(steps * config.epochs)
            terms = self._losses(index)
            loss = torch.stack(list(terms.values())).sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.progress["step"] += 1
            for name, value in terms.items():
                total[name] += value.item() / steps
        return {name: round(value, 5) for name, value in total.items()}

    def _losses(self, index: np.ndarray) -> dict[str, Tensor]:
        pixels = torch.from_numpy(self.preprocess.normalize(self.train.images[index]))
        cells = torch.from_numpy(cell_labels(self.train, index, self.grid))
        flipped = torch.rand(len(index)) < 0.5
        pixels = torch.where(flipped[:, None, None, None], pixels.flip(3), pixels)
        square = cells.unflatten(1, (self.grid, self.grid))  # (B, rows, columns, C)
        cells = torch.where(flipped[:, None, None, None], square.flip(2), square).flatten(1, 2)
        target = self.targets[torch.from_numpy(index)].to(self.device)
        with self._autocast():
            per_cell, things, surroundings = self.model(
                pixels.to(self.device, memory_format=torch.channels_last)
            )
        entropy = F.binary_cross_entropy_with_logits
        cell_loss = entropy(per_cell.float(), cells.to(self.device))
        return {
            # sums over labels, so that the rare positives count: means would be tiny
            "image": len(THINGS) * entropy(things.float(), target[:, THINGS]),
            "cell": len(THINGS) * self.config.cell_weight * cell_loss,
            "surroundings": entropy(surroundings.float(), target[:, SURROUNDINGS]),
        }

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"
        )

    def _set_rate(self, steps: int) -> None:
        step, warmup = self.progress["step"], self.config.warmup_steps
        scale = min(1.0, (step + 1) / max(1, warmup))
        scale *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * scale

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Object R-precision and surroundings accuracy on the validation scenes, in percent."""
        self.model.eval()
        things, surroundings = [], []
        for start in range(0, len(self.val), 100):
            pixels = torch.from_numpy(
                self.preprocess.normalize(self.val.images[start : start + 100])
            )
            _, seen, around = self.model(pixels.to(self.device, memory_format=torch.channels_last))
            things.append(seen.float().cpu())
            surroundings.append(around.float().cpu())
        truth = self.val_targets
        known = len(LABEL_GROUPS["objects"])  # the first columns of both
        precision = object_r_precision(torch.cat(things).numpy()[:, :known], truth[:, :known])
        right = (torch.cat(surroundings).numpy() > 0) == (truth[:, SURROUNDINGS] > 0.5)
        return {
            "object_r_precision": round(precision, 2),
            "surroundings_accuracy": round(100.0 * float(right.mean()), 2),
        }

    def _save_best(self, epoch: int, score: dict[str, float]) -> None:
        config = self.config
        about: dict[str, Any] = {
            "kind": "image_backbone",
            "arch": "scene_net",
            "arguments": {"widths": list(config.widths), "blocks": list(config.blocks)},
            "preprocess": self.preprocess.to_json(),
            "config": to_values(config),
            "metrics": {"val": score},
            "epoch": epoch,
            "hardware": hardware(),
        }
        self.run.save_best(self.model.trunk.state_dict(), about)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Pretrain the scenes' image encoder.")
    parser.add_argument("--recipe", default="scenes/backbone", help="a recipe or a TOML file")
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="replace a setting")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    options = parser.parse_args()
    try:
        config = load_recipe(PretrainConfig, options.recipe, options.set)
        Pretraining(config, options.out, resume=options.resume).fit()
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
