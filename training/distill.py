"""Trains a small image encoder from random weights to imitate a teacher.

`python -m polyview distill --recipe flickr8k/backbone --set data=DIR --set teacher=T --out RUN`

The student learns to predict the feature maps of a published network, also on photographs without
captions (knowledge distillation, Hinton et al., 2015; feature maps as targets as in FitNets, Romero
et al., ICLR 2015). The last epochs add a retrieval loss on captioned photographs. Only the weights
of the student's trunk are saved. The teacher's maps of several crops of each photograph are cached.
Each epoch reads one of these crops (Beyer et al., CVPR 2022) with random mirroring and colours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from polyview import models
from polyview.export.encoders.sources import describe_image_source
from polyview.models.checkpoint import load_strict, load_tensors, save_tensors
from polyview.models.encoders import IMAGE_ENCODERS
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.scene_net import SceneNet
from polyview.models.preprocess import Preprocess
from polyview.training.data.features import Extraction, feature_file, read_features, refuse_missing
from polyview.training.data.image_files import crops
from polyview.training.data.open_split import describe_data, open_split, open_training
from polyview.training.data.split import Copies, Pixels, Split
from polyview.training.data.texts import TokenTable, build_tokenizer
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.loop.command import run_command
from polyview.training.loop.config import BackboneConfig, TrainConfig
from polyview.training.loop.dual_encoder import DualEncoder, encode_split
from polyview.training.loop.loop import BEST, Loop
from polyview.training.objectives.losses import info_nce, same_image

WORD_DIM, EMBED_DIM, TEMPERATURE = 128, 256, 0.05  # of the heads for the retrieval loss
_COMPONENT_IMAGES = 1500  # number of photographs for fitting the teacher's principal components
_REGRESSION_IMAGES = 300  # number of photographs for fitting the linear map over a trained trunk


class DistillConfig(BackboneConfig):
    """Training of a small image encoder with a teacher.

    Attributes:
        data: folder of captioned photographs, see `training/data/photographs.py`.
        also: further folders of photographs; those without captions are used for distillation only.
        teacher: source of the published image encoder, see `export/encoders/`.
        cache: folder that stores the teacher's maps.
        init: run folder of an image encoder to start from; the new encoder may have additional
            blocks at its end. Empty for random weights.
        side: side of input images in pixels at inference. Training uses crops of 224 pixels, where
            objects look larger, so a larger side is better (FixRes, Touvron et al., NeurIPS 2019).
        crops: number of versions of each training image that the teacher encodes: the whole image
            and random crops of at least half of its area.
        targets: number of principal components of the teacher's features to learn.
        color: largest relative change of brightness, contrast and saturation.
        epochs: passes over the training images; each reads a random version of each image.
        retrieval_epochs: number of final epochs with the retrieval loss.
        retrieval_weight: weight of the retrieval loss relative to the distillation loss.
    """

    widths: tuple[int, ...] = (32, 64, 160, 320)
    blocks: tuple[int, ...] = (2, 2, 2)
    data: str = "data/flickr8k"
    also: tuple[str, ...] = ()
    teacher: str = "data/mobilenet_v2"
    cache: str = "data/cache"
    init: str = ""
    side: int = Field(default=224, ge=32, le=1024)
    crops: int = Field(default=8, ge=1)
    targets: int = Field(default=256, ge=1)
    color: float = Field(default=0.3, ge=0, lt=1)
    epochs: int = Field(default=40, ge=1)
    retrieval_epochs: int = Field(default=12, ge=0)
    retrieval_weight: float = Field(default=0.1, ge=0)
    precision: Literal["fp32", "bf16"] = "bf16"


class Student(nn.Module):
    """SceneNet, a linear map onto the teacher's features, and heads for the retrieval loss."""

    def __init__(self, config: DistillConfig, vocab_size: int) -> None:
        super().__init__()
        self.trunk = SceneNet(config.widths, config.blocks)
        self.imitate = nn.Linear(self.trunk.dim, config.targets)
        text_encoder = BiGRUTextEncoder(vocab_size, WORD_DIM, EMBED_DIM)
        arguments = {"embed_dim": EMBED_DIM, "released_gpo": True}
        method = models.build("vse_infty", self.trunk.dim, EMBED_DIM, arguments)
        self.heads = DualEncoder(method, text_encoder, TrainConfig(size_augmentation=0.0))


class Distillation(Loop[DistillConfig, np.ndarray]):
    """Trains a student; a batch is an array of image rows.

    Raises ValueError or OSError, before an image is read, if data, teacher or `init` is unusable.
    """

    digits = 4

    def __init__(self, config: DistillConfig, out: Path, *, resume: bool) -> None:
        super().__init__(config, out, resume=resume)
        train = open_training(Path(config.data), config.also, without_captions=True)
        val = open_split(Path(config.data), "val")
        train.require_images()
        train.refuse_copies("crops", config.crops)
        with torch.random.fork_rng():  # building a teacher must not change the random state
            self.preprocess = self._check_teacher()
        tokenizer = build_tokenizer(train.captions, min_count=2)
        self.tables = [TokenTable(tokenizer, split.captions) for split in (train, val)]
        self.model = Student(config, tokenizer.get_vocab_size())
        self.model.trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.to(self.device)
        is_resumed = self.start(self.model, item_count=train.image_count)
        with torch.random.fork_rng():
            self._read_teacher(train, val)
        if config.init and not is_resumed:
            self._start_from(Path(config.init))
            self._fit_imitation()

    def _read_teacher(self, train: Split, val: Split) -> None:
        """Opens P photographs; loads the teacher's maps of them and the principal components."""
        config = self.config
        extraction = Extraction(Path(config.cache), device=self.device.type)
        self.train = read_features(train, config.teacher, extraction, config.crops)
        self.val = read_features(val, config.teacher, extraction)
        maps: Any = self.train.features
        self.maps = maps.versions if isinstance(maps, Copies) else [maps]  # (P, N, d) per crop
        images = [train.images, *(crops(train.images, n) for n in range(1, config.crops))]
        self.pixels = [Pixels(crop, self.preprocess) for crop in images]  # (P, 3, S, S) per crop
        self.val_pixels = val.with_pixels(self.preprocess)
        self.captioned_count = int(train.image_of[-1]) + 1  # photographs with captions come first
        path = feature_file(train, config.teacher, extraction)
        path = path.with_name(f"{path.stem}-components{config.targets}.safetensors")
        if not path.is_file():  # recomputed values could differ in the last bits
            components = principal_components(self.maps[0], config.targets)
            tensors = dict(zip(("mean", "map", "weights"), components, strict=True))
            save_tensors(path, tensors, {"kind": "components"})
        tensors, _ = load_tensors(path)
        self.mean, self.basis, self.weights = (
            tensors[name].to(self.device) for name in ("mean", "map", "weights")
        )

    def _check_teacher(self) -> Preprocess:
        """Checks settings; returns the teacher's preprocessing with the default mean and std."""
        config, defaults = self.config, Preprocess()
        refuse_missing(config.teacher, "teacher")
        spec = describe_image_source(config.teacher)
        preprocess = Preprocess.from_json(spec["preprocess"])
        with torch.device("meta"):  # only shapes are needed
            teacher = IMAGE_ENCODERS[spec["arch"]](**spec["arguments"])
            student = SceneNet(config.widths, config.blocks)
        teacher_cells = math.prod(teacher.grid(preprocess.size)) + teacher.summary_token
        student_cells = math.prod(student.grid(preprocess.size))
        if teacher_cells != student_cells:
            counts = f"{teacher_cells} cells and the student's {student_cells}"
            raise ValueError(f"the teacher's map has {counts}; choose blocks that make them equal")
        if config.init and not (Path(config.init) / BEST).is_file():
            raise FileNotFoundError(f"init: there is no weights file {Path(config.init) / BEST}")
        return replace(preprocess, mean=defaults.mean, std=defaults.std)

    def _start_from(self, run: Path) -> None:
        """Loads the trunk of a run; blocks that the run lacks start as the identity."""
        tensors, _ = load_tensors(run / BEST)
        for number, block in enumerate(self.model.trunk.stages):
            if f"stages.{number}.conv1.weight" not in tensors:
                nn.init.zeros_(block.get_parameter("norm2.weight"))  # relu(0 + x) is x
                state = block.state_dict()
                tensors |= {f"stages.{number}.{name}": value for name, value in state.items()}
        load_strict(self.model.trunk, tensors, str(run / BEST))

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        self.random = np.random.default_rng([self.config.seed, epoch])
        return self.row_batches(self.random, self.train.image_count)

    def is_better(self, metrics: dict[str, float]) -> bool:
        """Returns whether rsum is at least the best so far; always True without retrieval loss."""
        return metrics.get("rsum", 0.0) >= self.progress["best"]

    def _has_retrieval_loss(self, epoch: int) -> bool:
        return epoch >= self.config.epochs - self.config.retrieval_epochs

    def load_crops(self, rows: np.ndarray, crop_numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """Loads one crop of each image; returns pixels (B, 3, S, S) and targets (B, N, T)."""
        pairs = list(zip(crop_numbers.tolist(), rows.tolist(), strict=True))
        pixels = np.concatenate([self.pixels[crop][row : row + 1] for crop, row in pairs])
        maps = np.stack([self.maps[crop][row] for crop, row in pairs])
        return torch.from_numpy(pixels), self._targets(maps)

    def _targets(self, maps: np.ndarray) -> Tensor:
        """Projects the teacher's maps (B, N, d) to T principal components (B, N, T)."""
        return (torch.tensor(maps).float().to(self.device) - self.mean) @ self.basis

    def losses(self, batch: np.ndarray, epoch: int) -> dict[str, Tensor]:
        rows, random = batch, self.random
        pixels, targets = self.load_crops(rows, random.integers(self.config.crops, size=len(rows)))
        mirror(pixels, targets, torch.from_numpy(random.random(len(rows)) < 0.5))
        cells = self._cells(change_colors(pixels, self.config.color, random))
        terms = {"distillation": self._map_error(cells, targets)}
        has_caption = rows < self.captioned_count
        if self._has_retrieval_loss(epoch) and has_caption.any():
            rows, cells = rows[has_caption], cells[has_caption]
            # the captions of each image are in rows `start` to `end` - 1; one of them is drawn
            start, end = (np.searchsorted(self.train.image_of, rows + n) for n in (0, 1))
            arrays = self.tables[0].rows(random.integers(start, end))
            ids, lengths = (torch.from_numpy(array).to(self.device) for array in arrays)
            mask = torch.ones(cells.shape[:2], dtype=torch.bool, device=self.device)
            image_rows = torch.arange(len(rows), device=self.device)
            heads = self.model.heads
            scores = heads.method.score(*heads(cells, mask, image_rows, ids, lengths))
            image_ids = torch.from_numpy(rows).to(self.device)
            contrastive = info_nce(scores, same_image(image_ids), TEMPERATURE)
            terms["retrieval"] = self.config.retrieval_weight * contrastive
        return terms

    @torch.no_grad()
    def _fit_imitation(self) -> None:
        """Fits the linear map on top of a trained trunk by least squares."""
        self.model.eval()
        count = self.train.image_count
        rows = np.linspace(0, count - 1, min(_REGRESSION_IMAGES, count)).astype(int)
        inputs, outputs = [], []
        for batch in np.array_split(rows, -(-len(rows) // 50)):
            pixels, targets = self.load_crops(batch, np.zeros(len(batch), int))
            inputs.append(self._cells(pixels).flatten(0, 1).double())  # (B * N, d)
            outputs.append(targets.flatten(0, 1).double())  # (B * N, T)
        cells = nn.functional.pad(torch.cat(inputs), (0, 1), value=1.0)  # a column for the bias
        ridge = 1e-6 * len(cells) * torch.eye(cells.shape[1]).to(cells)
        products = cells.mT @ torch.cat(outputs)
        solution = torch.linalg.solve(cells.mT @ cells + ridge, products)  # (d + 1, T)
        self.model.imitate.weight.copy_(solution[:-1].mT)
        self.model.imitate.bias.copy_(solution[-1])

    def _map_error(self, cells: Tensor, targets: Tensor) -> Tensor:
        """Returns the weighted mean squared error of predicted maps; predicting 0 gives about 1."""
        return ((self.model.imitate(cells) - targets).square() * self.weights).mean()

    def _cells(self, pixels: Tensor) -> Tensor:
        """Returns the student's features (B, N, d) of pixels (B, 3, S, S)."""
        with self.autocast():
            cells: Tensor = self.model.trunk(pixels.to(self.device))
        return cells.float()

    @torch.no_grad()
    def validate(self, epoch: int) -> dict[str, float]:
        """Returns `val_distillation`, the weighted squared error on whole validation images.

        Epochs with a retrieval loss add `retrieval_metrics` of the student's heads.
        """
        self.model.eval()
        error, count = 0.0, self.val.image_count
        for batch in (slice(start, start + 100) for start in range(0, count, 100)):
            cells = self._cells(torch.from_numpy(self.val_pixels.features[batch]))
            targets = self._targets(self.val.features[batch])
            error += self._map_error(cells, targets).item() * len(cells) / count
        scores = {"val_distillation": round(error, 4)}
        if self._has_retrieval_loss(epoch):
            method, text_encoder = self.model.heads.method, self.model.heads.text_encoder
            model = DualEncoder(method, text_encoder, TrainConfig(), self.model.trunk).eval()
            views = encode_split(model, self.val_pixels, self.tables[1], self.device)
            metrics = retrieval_metrics(score_matrix(method, *views), self.val.image_of)
            scores |= {name: round(value, 2) for name, value in metrics.items()}
        return scores

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        config = self.config
        data = describe_data(Path(config.data), config.also, self.train)
        metadata = config.describe(Preprocess(config.side), data | {"teacher": config.teacher})
        return self.model.trunk.state_dict(), metadata


def principal_components(maps: np.ndarray, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fits T = `count` principal components to a sample of a teacher's maps (P, N, d).

    Each component is divided by the square root of its standard deviation, so that the first
    components do not dominate. A common factor sets the mean square of all components to 1.

    Returns:
        The mean (d,) and the map (d, T), applied as (features - mean) @ map, and the weight (T,) of
        each component's squared error: the variance, scaled so that predicting 0 has an error of 1.
    """
    rows = np.linspace(0, len(maps) - 1, min(_COMPONENT_IMAGES, len(maps))).astype(int)
    total, product_sum, cell_count = torch.zeros(()), torch.zeros(()), 0
    for batch in np.array_split(rows, -(-len(rows) // 64)):
        features = torch.from_numpy(maps[batch]).flatten(0, 1).double()  # (B * N, d)
        total, product_sum = total + features.sum(dim=0), product_sum + features.mT @ features
        cell_count += len(features)
    mean = total / cell_count  # (d,)
    variance, vectors = torch.linalg.eigh(product_sum / cell_count - torch.outer(mean, mean))
    deviation = variance.flip(0)[:count].clamp_min(1e-12).sqrt()
    basis = vectors.flip(1)[:, :count] / (deviation * deviation.mean()).sqrt()
    variances = deviation / deviation.mean()  # (T,) of the scaled components
    return mean.float(), basis.float(), (variances / variances.square().mean()).float()


def mirror(pixels: Tensor, maps: Tensor, is_mirrored: Tensor) -> None:
    """Mirrors images (B, 3, S, S) and maps (B, N, T) in place where `is_mirrored` (B,) is True."""
    side = math.isqrt(maps.shape[1])
    pixels[is_mirrored] = pixels[is_mirrored].flip(3)
    maps[is_mirrored] = maps[is_mirrored].unflatten(1, (side, side)).flip(2).flatten(1, 2)


def change_colors(pixels: Tensor, max_change: float, random: np.random.Generator) -> Tensor:
    """Changes saturation, contrast and brightness of each image, in this order.

    Pixels (B, 3, H, W) are in -1 to 1; factors are uniform in 1 ± `max_change`.
    """
    factors = 1.0 + random.uniform(-max_change, max_change, (3, len(pixels), 1, 1, 1))
    brightness, contrast, saturation = torch.from_numpy(factors).float()
    light = (pixels + 1) / 2
    grey = light.mean(dim=1, keepdim=True)
    light = grey + saturation * (light - grey)
    level = light.mean(dim=(1, 2, 3), keepdim=True)
    light = brightness * (level + contrast * (light - level))
    return light.clamp(0.0, 1.0) * 2 - 1


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    run_command(argv, "distill", DistillConfig, Distillation, recipe="flickr8k/backbone")
