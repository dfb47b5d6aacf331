"""Pretrains the scenes' image encoder.

`python -m polyview pretrain --recipe scenes/backbone --out runs/backbone`

The encoder replaces the region detector of the papers, which was trained on Visual Genome. A small
CNN learns from random weights to recognise the objects in each cell of its grid and the setting,
time and weather of the image. Only the CNN's trunk is saved. All methods use the trunk frozen.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from polyview.models.encoders.scene_net import SceneNet
from polyview.models.preprocess import Preprocess
from polyview.training.loop.command import run_command
from polyview.training.loop.config import BackboneConfig
from polyview.training.loop.loop import Loop
from polyview.training.scenes.store import SceneData, load_scenes
from polyview.training.scenes.world import LABEL_GROUPS, LABELS, label_matrix

# an object is in a cell if it covers this share of the cell, or a third of the object is there
MIN_COVERAGE = 0.15
# columns of `label_matrix` for objects (also by colour), and for setting, time and weather
OBJECTS = tuple(
    i for i, name in enumerate(LABELS) if name in LABEL_GROUPS["objects"] + LABEL_GROUPS["color"]
)
SURROUNDINGS = tuple(i for i in range(len(LABELS)) if i not in OBJECTS)
_COLUMN = {LABELS[label]: column for column, label in enumerate(OBJECTS)}


class PretrainConfig(BackboneConfig):
    """Pretraining of the scenes' image encoder on object, setting, time and weather labels.

    Attributes:
        cell_weight: weight of the object loss per cell; the object loss per image has weight 1.
    """

    widths: tuple[int, ...] = (48, 64, 128, 256)
    blocks: tuple[int, ...] = (1, 1, 2)
    data: str = "data/scenes"
    epochs: int = Field(default=16, ge=1)
    batch_size: int = Field(default=64, ge=1)
    cell_weight: float = Field(default=1.0, ge=0)


class Labeller(nn.Module):
    """SceneNet with linear classifiers for objects, per cell and image, and for surroundings."""

    def __init__(self, trunk: SceneNet) -> None:
        super().__init__()
        self.trunk = trunk
        self.object_logits = nn.Linear(trunk.dim, len(OBJECTS))
        self.surroundings = nn.Linear(trunk.dim, len(SURROUNDINGS))
        nn.init.constant_(self.object_logits.bias, -4.0)  # a cell shows few of the classes

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns logits: C objects per cell (B, N, C) and image (B, C), S surroundings (B, S)."""
        cells = self.trunk(pixels)  # (B, 3, H, W) -> (B, N, d)
        per_cell = self.object_logits(cells)  # (B, N, C)
        return per_cell, per_cell.amax(dim=1), self.surroundings(cells.mean(dim=1))


def cell_labels(data: SceneData, index: np.ndarray, grid: int) -> np.ndarray:
    """Labels the objects in each grid cell of the scenes in rows `index` (B,).

    Returns (B, grid * grid, C) float32, 0 or 1; the C columns follow `OBJECTS`.
    """
    maps = data.instances[index]  # (B, S, S): i + 1 at the pixels of object i
    size = maps.shape[1] // grid  # side of a cell in pixels
    labels = np.zeros((len(index), grid * grid, len(OBJECTS)), np.float32)
    for b, scene in enumerate(index):
        tiles = maps[b, : grid * size, : grid * size].reshape(grid, size, grid, size)
        tiles = tiles.transpose(0, 2, 1, 3).reshape(grid * grid, size * size)
        for i, item in enumerate(data.scenes[scene].objects):
            pixels = (tiles == i + 1).sum(axis=1)  # (N,), pixels of the object in each cell
            min_pixels = min(MIN_COVERAGE * size * size, pixels.sum() / 3)
            is_visible = (pixels >= min_pixels) & (pixels > 0)
            labels[b, is_visible, _COLUMN[item.name]] = 1.0
            if item.color is not None:
                labels[b, is_visible, _COLUMN[f"color:{item.color} {item.name}"]] = 1.0
    return labels


def object_r_precision(logits: np.ndarray, truth: np.ndarray) -> float:
    """Returns the mean R-precision of logits (N_img, C) in percent; an image has R true classes."""
    order = np.argsort(-logits, axis=1, kind="stable")
    hits = np.take_along_axis(truth, order, axis=1)
    counts = truth.sum(axis=1).astype(int)
    return 100.0 * float(np.mean([h[:r].mean() for h, r in zip(hits, counts, strict=True) if r]))


class Pretraining(Loop[PretrainConfig, np.ndarray]):
    """Trains SceneNet on labels; a batch is an array of scene rows."""

    selection_metric = "object_r_precision"

    def __init__(self, config: PretrainConfig, out: Path, *, resume: bool) -> None:
        super().__init__(config, out, resume=resume)
        self.preprocess = Preprocess()
        root = Path(config.data)
        self.train, self.val = load_scenes(root / "train"), load_scenes(root / "val")
        self.targets = torch.from_numpy(label_matrix(self.train.scenes))
        self.val_targets = label_matrix(self.val.scenes)
        trunk = SceneNet(config.widths, config.blocks)
        self.grid = trunk.grid(self.preprocess.size)[0]
        self.model = Labeller(trunk)
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.start(self.model, item_count=len(self.train), fused=False)

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        return self.row_batches(np.random.default_rng([self.config.seed, epoch]), len(self.train))

    def losses(self, batch: np.ndarray, epoch: int) -> dict[str, Tensor]:  # noqa: ARG002
        pixels = torch.from_numpy(self.preprocess.planes(self.train.images[batch]))
        cells = torch.from_numpy(cell_labels(self.train, batch, self.grid))
        is_mirrored = torch.rand(len(batch)) < 0.5
        pixels = torch.where(is_mirrored[:, None, None, None], pixels.flip(3), pixels)
        grids = cells.unflatten(1, (self.grid, self.grid))  # (B, rows, columns, C)
        cells = torch.where(is_mirrored[:, None, None, None], grids.flip(2), grids).flatten(1, 2)
        target = self.targets[torch.from_numpy(batch)].to(self.device)
        pixels = pixels.to(self.device, memory_format=torch.channels_last)
        with self.autocast():
            per_cell, objects, surroundings = self.model(pixels)
        cross_entropy = F.binary_cross_entropy_with_logits
        cell_loss = cross_entropy(per_cell.float(), cells.to(self.device))
        return {
            # object losses are sums over classes: positives are rare, so means would be tiny
            "image": len(OBJECTS) * cross_entropy(objects.float(), target[:, OBJECTS]),
            "cell": len(OBJECTS) * self.config.cell_weight * cell_loss,
            "surroundings": cross_entropy(surroundings.float(), target[:, SURROUNDINGS]),
        }

    @torch.no_grad()
    def validate(self, epoch: int) -> dict[str, float]:  # noqa: ARG002
        """Returns object R-precision and surroundings accuracy on validation scenes, in percent."""
        self.model.eval()
        objects, surroundings = [], []
        for start in range(0, len(self.val), 100):
            pixels = torch.from_numpy(self.preprocess.planes(self.val.images[start : start + 100]))
            pixels = pixels.to(self.device, memory_format=torch.channels_last)
            _, object_logits, surrounding_logits = self.model(pixels)
            objects.append(object_logits.float().cpu())
            surroundings.append(surrounding_logits.float().cpu())
        logits, truth = torch.cat(objects).numpy(), self.val_targets
        count = len(LABEL_GROUPS["objects"])  # objects are the first columns of logits and truth
        precision = object_r_precision(logits[:, :count], truth[:, :count])
        is_right = (torch.cat(surroundings).numpy() > 0) == (truth[:, SURROUNDINGS] > 0.5)
        return {
            "object_r_precision": round(precision, 2),
            "surroundings_accuracy": round(100.0 * float(is_right.mean()), 2),
        }

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        data = {"kind": "scenes", "name": "rendered scenes", "images": len(self.train)}
        description = self.config.describe(self.preprocess, {**data, "captions": 0})
        return self.model.trunk.state_dict(), description


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    run_command(argv, "pretrain", PretrainConfig, Pretraining, recipe="scenes/backbone")
