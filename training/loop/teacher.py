"""What a student of `training/distill.py` learns from: crops of photographs as a teacher sees them.

Everything is computed once and kept in the configuration's `cache`: photographs as pixels, and for
each crop the teacher's feature map. Maps are stored as principal components of the teacher's
features, fitted on training photographs and divided by the root of their standard deviations, so
that the first do not drown the others; then all by one number, so that their mean square is 1.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor, nn
from tqdm import tqdm

from export.hub.sources import describe_image_source, load_image_source
from models.checkpoint import load_tensors, save_tensors
from models.files import write_whole
from models.preprocess import Preprocess
from training.data.extraction import GraphEncoder
from training.data.open_split import open_split, open_training
from training.loop.config import BackboneConfig

_CHUNK = 64  # photographs at a time
_FITTED = 1500  # photographs that the components are fitted on


class DistillConfig(BackboneConfig):
    """Training of a small image encoder under a teacher.

    Attributes:
        data: folder of captioned photographs, see `training/data/photographs.py`.
        also: further such folders to learn from; photographs there that no caption speaks of have
            the teacher alone.
        teacher: a source of the published image encoder, see `export/hub/sources.py`.
        cache: folder for decoded images and the teacher's maps.
        init: run of an image encoder from whose weights this one starts, perhaps with more blocks
            at its end; empty for none.
        side: of the squares that the encoder is shown when it is used. Crops show things larger
            than whole images do, so that somewhat more than the 224 of training is better (FixRes,
            Touvron et al., NeurIPS 2019).
        crops: crops of each training image that the teacher reads.
        smallest: area of the smallest crop, as a share of the image.
        targets: principal components of the teacher's features that the student learns.
        emphasis: a component's error counts by this power of its variance among the targets, lest
            the first, which say most and are learned first, are lost among the many others.
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
    emphasis: float = Field(default=1.0, ge=0, le=2)
    color: float = Field(default=0.3, ge=0, lt=1)
    epochs: int = Field(default=40, ge=1)
    retrieval_epochs: int = Field(default=12, ge=0)
    retrieval_weight: float = Field(default=0.1, ge=0)
    precision: Literal["fp32", "bf16"] = "bf16"

    @model_validator(mode="after")
    def _refuse_more_retrieval_than_epochs(self) -> Self:
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
        captions: of the photographs that have some, which are the first.
        image_of: (number of captions,) the photograph of each, ascending.
    """

    squares: np.ndarray
    boxes: np.ndarray
    targets: np.ndarray
    captions: list[str]
    image_of: np.ndarray

    @property
    def captioned(self) -> int:
        """How many photographs have captions."""
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
        """A random caption of each of some photographs that have some, (B,) -> (B,) indices."""
        first = np.searchsorted(self.image_of, rows)
        count = np.searchsorted(self.image_of, rows, side="right") - first
        return first + random.integers(count)


def prepare(
    config: DistillConfig, split: str, preprocess: Preprocess, device: torch.device
) -> Lesson:
    """Reads a split, or makes it: decodes photographs and asks the teacher about their crops.

    Of the validation split only whole photographs are used.

    Args:
        config: what to prepare.
        split: "train" or "val".
        preprocess: the student's.
        device: where the teacher runs.
    """
    if split == "train":
        data = open_training(Path(config.data), config.also, without_captions=True)
    else:
        data = open_split(Path(config.data), split)
    if not len(data.images):
        raise ValueError(f"{config.data} holds features; name a folder of photographs instead")
    teacher, seen_as, about = load_image_source(config.teacher, device)
    key = _key(config, about)
    folder = Path(config.cache) / key
    folder.mkdir(parents=True, exist_ok=True)
    squares = _squares(data.images, preprocess, folder / f"{split}_pixels.npy")
    if split == "train":
        boxes = random_boxes(len(squares), config.crops, preprocess.size, config)
    else:
        boxes = np.tile(_whole(preprocess.size), (len(squares), 1, 1))
    reader = _Reader(teacher, seen_as, device, squares)
    basis = _basis(reader, config.targets, folder / "components.safetensors")
    targets = _targets(reader, boxes, basis, folder / f"{split}_targets.npy")
    return Lesson(squares, boxes, targets, data.captions, data.image_of)


def missing_bytes(
    config: DistillConfig, images: dict[str, int], preprocess: Preprocess, cells: int
) -> int:
    """How much `prepare` would still write.

    Args:
        config: what to prepare.
        images: how many there are in each split.
        preprocess: the student's.
        cells: of the teacher's map.
    """
    folder = Path(config.cache) / _key(config, describe_image_source(config.teacher))
    total = 0
    for split, count in images.items():
        crops = config.crops if split == "train" else 1
        sizes = {
            "pixels": 3 * count * preprocess.size**2,
            "targets": 2 * count * crops * cells * config.targets,
        }
        for name, size in sizes.items():
            made = folder / f"{split}_{name}.npy"
            total += 0 if made.is_file() or made.with_suffix(".partial").is_file() else size
    return total


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


def _whole(side: int) -> np.ndarray:
    return np.array([0, 0, side, side], np.float32)


class _Reader:
    """A teacher that reads crops; on a CPU through onnxruntime, several times faster there."""

    def __init__(
        self, teacher: nn.Module, seen_as: Preprocess, device: torch.device, squares: np.ndarray
    ) -> None:
        self.teacher, self.seen_as, self.device, self.squares = teacher, seen_as, device, squares
        if device.type == "cpu":
            self.teacher = GraphEncoder(teacher, squares.shape[1])

    @torch.inference_mode()
    def read(self, rows: np.ndarray, boxes: np.ndarray) -> Tensor:
        """Feature maps (B, N, d) of a crop (B, 4) of each of some photographs (B,)."""
        crops = np.stack([cut(self.squares[p], b) for p, b in zip(rows, boxes, strict=True)])
        pixels = self.seen_as.planes(crops)
        features: Tensor = self.teacher(torch.from_numpy(pixels).to(self.device))
        return features.float()


def _key(config: DistillConfig, about: dict[str, Any]) -> str:
    """Names the folder by all that its files depend on; of the photographs, by their folders."""
    parts = [about["sha256"], config.crops, config.smallest, config.targets, config.seed]
    parts += [Path(name).resolve().name for name in (config.data, *config.also)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _squares(images: Sequence[Image.Image], preprocess: Preprocess, path: Path) -> np.ndarray:
    """Whole photographs as pixels, decoded once."""
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


def _basis(reader: _Reader, count: int, path: Path) -> dict[str, Tensor]:
    """The teacher's principal components over whole photographs: mean (d,) and map (d, count)."""
    if path.is_file():
        return load_tensors(path)[0]
    fitted = min(_FITTED, len(reader.squares))
    whole = _whole(reader.squares.shape[1])
    total, square, cells = torch.zeros(()), torch.zeros(()), 0
    spread = np.linspace(0, len(reader.squares) - 1, fitted).astype(int)
    for start in tqdm(range(0, fitted, _CHUNK), desc="principal components", mininterval=2):
        rows = spread[start : start + _CHUNK]
        features = reader.read(rows, np.tile(whole, (len(rows), 1))).flatten(0, 1).double().cpu()
        total, square = total + features.sum(dim=0), square + features.mT @ features
        cells += len(features)
    mean = total / cells  # (d,)
    variance, vectors = torch.linalg.eigh(square / cells - torch.outer(mean, mean))
    variance, vectors = variance.flip(0)[:count], vectors.flip(1)[:, :count]
    scaled = vectors / variance.clamp_min(1e-12) ** 0.25  # components keep the root of their spread
    scaled /= variance.clamp_min(1e-12).sqrt().mean().sqrt()  # mean square 1 over all components
    basis = {"mean": mean.float(), "map": scaled.float()}
    save_tensors(path, basis, {"kind": "components"})
    return basis


def _targets(
    reader: _Reader, boxes: np.ndarray, basis: dict[str, Tensor], path: Path
) -> np.ndarray:
    """The teacher's maps of all crops, in components; goes on where it was interrupted."""
    record = path.with_suffix(".json")
    partial = path.with_suffix(".partial")
    count, crops = boxes.shape[:2]
    if not path.is_file():
        done = json.loads(record.read_text("utf-8"))["done"] if record.is_file() else 0
        mean, components = basis["mean"].to(reader.device), basis["map"].to(reader.device)
        out: np.ndarray | None = np.load(partial, mmap_mode="r+") if done else None
        starts = range(done, count * crops, _CHUNK)
        for start in tqdm(starts, desc=path.stem, mininterval=2):
            index = np.arange(start, min(start + _CHUNK, count * crops))
            rows, which = index // crops, index % crops
            maps = (reader.read(rows, boxes[rows, which]) - mean) @ components  # (B, N, T)
            if out is None:
                shape = (count * crops, *maps.shape[1:])
                out = np.lib.format.open_memmap(partial, "w+", np.float16, shape)
            out[index] = maps.half().cpu().numpy()
            if start // _CHUNK % 50 == 49:
                out.flush()  # type: ignore[attr-defined]
                write_whole(record, json.dumps({"done": int(index[-1]) + 1}))
        if out is not None:
            out.flush()  # type: ignore[attr-defined]
            partial.replace(path)
        record.unlink(missing_ok=True)
    return np.load(path, mmap_mode="r")
