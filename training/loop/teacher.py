"""The training data of `training/distill.py`: crops of photographs and a teacher's maps of them.

Everything is computed once and stored in the configuration's `cache`: photographs as pixels, and
for each crop the teacher's feature map. Maps are stored as principal components of the teacher's
features, fitted on training photographs and divided by the root of their standard deviations, so
that the first do not drown the others; then all by one number, so that their mean square is 1.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor, nn
from tqdm import tqdm

from export.encoders.sources import load_image_source
from models.checkpoint import load_tensors, save_tensors
from models.preprocess import Preprocess
from training.data.extraction import Extraction, GraphEncoder, extract
from training.data.open_split import open_split, open_training
from training.loop.config import BackboneConfig

_BATCH = 64  # images
_FITTED = 1500  # images that the components are fitted on


class DistillConfig(BackboneConfig):
    """Training of a small image encoder under a teacher.

    Attributes:
        data: folder of captioned photographs, see `training/data/photographs.py`.
        also: further such folders to learn from; photographs there without captions have the
            teacher alone.
        teacher: a source of the published image encoder, see `export/encoders/`.
        cache: folder for decoded images and the teacher's maps.
        init: run of an image encoder from whose weights this one starts, perhaps with more blocks
            at its end; empty for none.
        side: of the squares that the encoder reads when it is used. Crops show things larger than
            whole images do, so that somewhat more than the 224 of training is better (FixRes,
            Touvron et al., NeurIPS 2019).
        crops: crops of each training image that the teacher reads.
        smallest: area of the smallest crop, as a share of the image.
        targets: principal components of the teacher's features that the student learns.
        color: largest relative change of brightness, contrast and saturation.
        epochs: passes over the training images, one random crop of each.
        retrieval_epochs: last epochs with the retrieval loss.
        retrieval_weight: its weight beside the distillation loss.
    """

    widths: tuple[int, ...] = (32, 64, 160, 320)
    blocks: tuple[int, ...] = (2, 2, 2)
    data: str = "data/flickr8k"
    also: tuple[str, ...] = ()
    teacher: str = "data/mobilenet_v2"
    cache: str = "data/cache/distill"
    init: str = ""
    side: int = Field(default=224, ge=32, le=1024)
    crops: int = Field(default=8, ge=1)
    smallest: float = Field(default=0.35, gt=0, le=1)
    targets: int = Field(default=256, ge=1)
    color: float = Field(default=0.3, ge=0, lt=1)
    epochs: int = Field(default=40, ge=1)
    retrieval_epochs: int = Field(default=12, ge=0)
    retrieval_weight: float = Field(default=0.1, ge=0)
    precision: Literal["fp32", "bf16"] = "bf16"

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        if self.retrieval_epochs > self.epochs:
            raise ValueError(
                f"retrieval_epochs must be 0 to epochs ({self.epochs}), not {self.retrieval_epochs}"
            )
        return self


@dataclass(frozen=True)
class Lesson:
    """A split to learn from.

    Attributes:
        squares: (P, S, S, 3) uint8, whole photographs as the student's preprocessing shows them.
        boxes: (P, C, 4) float32, crops as xyxy in pixels.
        targets: (P * C, N, T) float16; with the first two axes as one.
        captions: of the photographs with captions, which are the first.
        image_of: (number of captions,) the photograph of each, ascending.
    """

    squares: np.ndarray
    boxes: np.ndarray
    targets: np.ndarray
    captions: list[str]
    image_of: np.ndarray

    @property
    def captioned(self) -> int:
        """Number of photographs with captions."""
        return int(self.image_of[-1]) + 1

    def pixels(self, rows: np.ndarray, crops: np.ndarray) -> np.ndarray:
        """One crop of each of some photographs, (B,) and (B,) -> (B, S, S, 3) uint8."""
        return np.stack(
            [cut(self.squares[p], self.boxes[p, c]) for p, c in zip(rows, crops, strict=True)]
        )

    def maps(self, rows: np.ndarray, crops: np.ndarray) -> np.ndarray:
        """The teacher's maps of the same crops, (B, N, T) float16."""
        return self.targets[rows * self.boxes.shape[1] + crops]

    def caption_of(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """A random caption of each of some captioned photographs, (B,) -> (B,) indices."""
        first = np.searchsorted(self.image_of, rows)
        count = np.searchsorted(self.image_of, rows, side="right") - first
        return first + random.integers(count)


def prepare(
    config: DistillConfig, split: str, preprocess: Preprocess, device: torch.device
) -> Lesson:
    """Reads a split from the cache, or decodes its photographs and runs the teacher on their crops.

    Of the validation split only whole photographs are used. What was interrupted is continued.

    Args:
        config: the training of the student.
        split: "train" or "val".
        preprocess: the student's.
        device: where the teacher computes.
    """
    if split == "train":
        data = open_training(Path(config.data), config.also, without_captions=True)
    else:
        data = open_split(Path(config.data), split)
    if not len(data.images):
        raise ValueError(f"{config.data} holds features; name a folder of photographs instead")
    teacher, shown, about = load_image_source(config.teacher, device)
    shown = replace(shown, size=preprocess.size, fit="stretch", resize=0)  # crops are squares
    folder = Path(config.cache) / _key(config, about)
    folder.mkdir(parents=True, exist_ok=True)
    squares = _squares(data.images, preprocess, folder / f"{split}_pixels.npy")
    if split == "train":
        boxes = random_boxes(len(squares), config.crops, preprocess.size, config)
    else:
        whole = np.array([0, 0, preprocess.size, preprocess.size], np.float32)
        boxes = np.tile(whole, (len(squares), 1, 1))
    path = folder / "components.safetensors"
    if not path.is_file():
        basis = _principal_components(teacher, shown, device, squares, config.targets)
        save_tensors(path, basis, {"kind": "components"})
    encoder = _Components(teacher, load_tensors(path)[0]).to(device)
    targets = folder / f"{split}_targets.npy"
    how = Extraction(batch=_BATCH, device=device.type)
    extract(encoder, shown, _Crops(squares, boxes), targets, how, targets.stem)
    maps = np.load(targets, mmap_mode="r")
    return Lesson(squares, boxes, maps, data.captions, data.image_of)


def random_boxes(count: int, crops: int, side: int, config: DistillConfig) -> np.ndarray:
    """Random crops: areas from `config.smallest` to 1, aspect ratios from 3:4 to 4:3.

    Returns:
        (count, crops, 4) float32, xyxy within a square of the given side; the first is the whole.
    """
    random = np.random.default_rng([config.seed, 1])
    area = random.uniform(config.smallest, 1.0, (count, crops))
    aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3), (count, crops)))
    width = np.minimum(np.sqrt(area * aspect), 1.0)
    height = np.minimum(np.sqrt(area / aspect), 1.0)
    left = random.random((count, crops)) * (1 - width)
    top = random.random((count, crops)) * (1 - height)
    boxes = side * np.stack([left, top, left + width, top + height], axis=-1)
    boxes[:, 0] = (0, 0, side, side)
    return boxes.astype(np.float32)


def cut(square: np.ndarray, box: np.ndarray) -> np.ndarray:
    """A crop at full size, (S, S, 3) uint8 and xyxy pixels -> (S, S, 3) uint8."""
    side = len(square)
    if tuple(box) == (0, 0, side, side):
        return square
    bounds = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
    resized = Image.fromarray(square).resize((side, side), Image.Resampling.BILINEAR, bounds)
    return np.asarray(resized)


class _Crops(Sequence[Image.Image]):
    """All crops (P, C, 4) of squares (P, S, S, 3), those of an image one after the other."""

    def __init__(self, squares: np.ndarray, boxes: np.ndarray) -> None:
        self.squares, self.boxes = squares, boxes

    def __len__(self) -> int:
        return self.boxes.shape[0] * self.boxes.shape[1]

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        row, crop = divmod(index, self.boxes.shape[1])
        return Image.fromarray(cut(self.squares[row], self.boxes[row, crop]))


class _Components(nn.Module):
    """A teacher's feature maps as principal components, (B, 3, S, S) -> (B, N, T)."""

    def __init__(self, teacher: nn.Module, basis: dict[str, Tensor]) -> None:
        super().__init__()
        self.teacher = teacher
        self.register_buffer("mean", basis["mean"])
        self.register_buffer("map", basis["map"])

    def forward(self, pixels: Tensor) -> Tensor:
        maps: Tensor = (self.teacher(pixels) - self.mean) @ self.map
        return maps


def _key(config: DistillConfig, about: dict[str, Any]) -> str:
    """The name of the cache's folder: a hash of everything that its files depend on."""
    parts = [about["sha256"], config.crops, config.smallest, config.targets, config.seed]
    parts += [Path(name).resolve().name for name in (config.data, *config.also)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _squares(images: Sequence[Image.Image], preprocess: Preprocess, path: Path) -> np.ndarray:
    """Whole photographs as pixels (P, S, S, 3), decoded once."""
    if not path.is_file():
        side, partial = preprocess.size, path.with_suffix(".partial")
        shape = (len(images), side, side, 3)
        out = np.lib.format.open_memmap(partial, "w+", np.uint8, shape)

        def decode(row: int) -> None:
            out[row] = np.asarray(preprocess.square(images[row]))

        with ThreadPoolExecutor() as pool:
            rows = range(len(out))
            list(tqdm(pool.map(decode, rows), desc=path.stem, total=len(out), mininterval=2))
        out.flush()
        partial.replace(path)
    return np.load(path, mmap_mode="r")


@torch.inference_mode()
def _principal_components(
    teacher: nn.Module, shown: Preprocess, device: torch.device, squares: np.ndarray, count: int
) -> dict[str, Tensor]:
    """Those of the teacher's features over whole photographs: `mean` (d,), `map` (d, count)."""
    if device.type == "cpu":  # several times faster than torch
        teacher = GraphEncoder(teacher, shown.size)
    fitted = min(_FITTED, len(squares))
    total, square, cells = torch.zeros(()), torch.zeros(()), 0
    subset = np.linspace(0, len(squares) - 1, fitted).astype(int)
    for start in tqdm(range(0, fitted, _BATCH), desc="principal components", mininterval=2):
        pixels = torch.from_numpy(shown.planes(squares[subset[start : start + _BATCH]]))
        maps: Tensor = teacher(pixels.to(device))  # (B, N, d)
        features = maps.float().flatten(0, 1).double().cpu()  # (B * N, d)
        total, square = total + features.sum(dim=0), square + features.mT @ features
        cells += len(features)
    mean = total / cells  # (d,)
    variance, vectors = torch.linalg.eigh(square / cells - torch.outer(mean, mean))
    variance, vectors = variance.flip(0)[:count], vectors.flip(1)[:, :count]
    scaled = vectors / variance.clamp_min(1e-12) ** 0.25  # components keep the root of their spread
    scaled /= variance.clamp_min(1e-12).sqrt().mean().sqrt()  # mean square 1 over all components
    return {"mean": mean.float(), "map": scaled.float()}
