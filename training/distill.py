"""Trains a small image encoder on captioned images, from random weights, with a teacher's help.

`python -m training.distill --recipe flickr8k/backbone --set data=DIR --set teacher=T --out RUN`

A few thousand captioned photographs are too few to train an image encoder on. A published network
was trained on a million: the student learns to predict its feature map (knowledge distillation,
Hinton et al., 2015; feature maps as targets as in FitNets, Romero et al., ICLR 2015), also on
photographs without captions. In the last epochs a retrieval loss is added for those with captions.
Only the student's trunk is saved.

The teacher reads some crops of every photograph once (`training/loop/teacher.py`); the student
reads the same crops (Beyer et al., CVPR 2022), mirrored and with other colours, in every epoch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import models
from export.encoders.sources import describe_image_source
from models import Views
from models.checkpoint import load_strict, load_tensors
from models.encoders import IMAGE_ENCODERS
from models.encoders.bigru import BiGRUTextEncoder
from models.encoders.scene_net import SceneNet
from models.preprocess import Preprocess
from models.views import lengths_to_mask
from training.data.features import refuse_missing
from training.data.open_split import names_of_data, open_split, open_training
from training.data.texts import TokenTable
from training.data.tokenizer import build_tokenizer
from training.evaluation.metrics import retrieval_metrics
from training.evaluation.scoring import score_matrix
from training.loop.command import Command
from training.loop.loop import Loop, check_pace, is_first_process
from training.loop.runs import BEST, RunFolder, describe_backbone
from training.loop.teacher import DistillConfig, prepare
from training.objectives.losses import info_nce, same_image

_FITTED = 1500  # photographs that the linear map over a trunk that has learned is fitted on
WORD_DIM, EMBED_DIM, TEMPERATURE = 128, 256, 0.05  # of the retrieval loss's throw-away heads


class Student(nn.Module):
    """SceneNet, a linear map onto the teacher's features, and heads for the retrieval loss."""

    def __init__(self, config: DistillConfig, vocabulary: int) -> None:
        super().__init__()
        self.trunk = SceneNet(config.widths, config.blocks)
        self.imitate = nn.Linear(self.trunk.dim, config.targets)
        self.words = BiGRUTextEncoder(vocabulary, WORD_DIM, EMBED_DIM)
        heads = {"embed_dim": EMBED_DIM, "released_gpo": True}
        self.heads = models.build("vse_infty", self.trunk.dim, EMBED_DIM, heads)

    def texts(self, ids: Tensor, lengths: Tensor) -> Views:
        """Captions (B, L) to views (B, 1, D)."""
        spoken = lengths_to_mask(lengths, ids.shape[1])
        return self.heads.encode_text(self.words(ids, lengths), spoken)

    def images(self, cells: Tensor) -> Views:
        """Feature maps (B, N, d) to views (B, 1, D)."""
        mask = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        return self.heads.encode_image(cells, mask)


class Distillation(Loop[DistillConfig, np.ndarray]):
    """Trains a student; a batch is the rows of its images."""

    best_by = "rsum"
    digits = 4

    def __init__(self, config: DistillConfig, out: Path, *, resume: bool) -> None:
        super().__init__(config)
        self.preprocess = Preprocess()
        check_distillation(config, self.preprocess.size)
        RunFolder(out, config, resume=resume or not is_first_process())
        self.train, self.val = (
            prepare(config, split, self.preprocess, self.device) for split in ("train", "val")
        )
        tokenizer = build_tokenizer(self.train.captions, min_count=2)
        self.train_table, self.val_table = (
            TokenTable(tokenizer, lesson.captions) for lesson in (self.train, self.val)
        )
        self.model = Student(config, tokenizer.get_vocab_size())
        self.grid = self.model.trunk.grid(self.preprocess.size)[0]
        self.weights = component_weights(self.train.targets).to(self.device)
        self.model.trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.to(self.device)
        resumed = self.start(self.model, out, items=len(self.train.squares), resume=resume)
        if config.init and not resumed:
            start_from(Path(config.init), self.model.trunk)
            self._fit_imitation()

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """See `Loop`."""
        self.random = np.random.default_rng([self.config.seed, epoch])
        order = self.random.permutation(len(self.train.squares))
        for start in range(0, self.steps * self.config.batch_size, self.config.batch_size):
            yield np.sort(order[start : start + self.config.batch_size])

    def is_better(self, metrics: dict[str, float]) -> bool:
        """See `Loop`; before there is a retrieval loss, the last epoch is the best."""
        return metrics.get("rsum", 0.0) >= self.progress["best"]

    def _retrieves(self, epoch: int) -> bool:
        return epoch >= self.config.epochs - self.config.retrieval_epochs

    def losses(self, batch: np.ndarray, epoch: int) -> dict[str, Tensor]:
        """See `Loop`."""
        rows, random = batch, self.random
        crops = random.integers(self.config.crops, size=len(rows))
        pixels = self.train.pixels(rows, crops)  # (B, S, S, 3)
        targets = torch.from_numpy(self.train.maps(rows, crops)).float()  # (B, N, T)
        mirrored = random.random(len(rows)) < 0.5
        pixels[mirrored] = pixels[mirrored, :, ::-1]
        square = targets.unflatten(1, (self.grid, self.grid))  # (B, rows, columns, T)
        square[mirrored] = square[mirrored].flip(2)
        targets = square.flatten(1, 2)
        cells = self._cells(change_colors(pixels, self.config.color, random))
        terms = {"distillation": self._missed(cells, targets)}
        spoken_of = rows < self.train.captioned
        if self._retrieves(epoch) and spoken_of.any():
            rows, cells = rows[spoken_of], cells[spoken_of]
            captions = self.train.caption_of(rows, random)
            ids, lengths = map(torch.from_numpy, self.train_table.rows(captions))
            texts = self.model.texts(ids.to(self.device), lengths.to(self.device))
            scores = self.model.heads.score(self.model.images(cells), texts)
            images = torch.from_numpy(rows).to(self.device)
            contrastive = info_nce(scores, same_image(images, images), TEMPERATURE)
            terms["retrieval"] = self.config.retrieval_weight * contrastive
        return terms

    @torch.no_grad()
    def _fit_imitation(self) -> None:
        """Sets the linear map to the least squares of what a trunk that has learned gives."""
        self.model.eval()
        rows = np.linspace(0, len(self.train.squares) - 1, _FITTED).astype(int)
        crops = np.random.default_rng(self.config.seed).integers(self.config.crops, size=_FITTED)
        squares, products = torch.zeros(()), torch.zeros(())
        for start in range(0, _FITTED, 50):
            part = rows[start : start + 50], crops[start : start + 50]
            cells = self._cells(self.train.pixels(*part)).flatten(0, 1).double()
            cells = nn.functional.pad(cells, (0, 1), value=1.0)  # (B * N, d + 1), for the bias
            maps = torch.from_numpy(self.train.maps(*part)).to(cells).flatten(0, 1)  # (B * N, T)
            squares, products = squares + cells.mT @ cells, products + cells.mT @ maps
        ridge = 1e-6 * _FITTED * self.grid**2 * torch.eye(len(squares)).to(squares)
        fitted = torch.linalg.solve(squares + ridge, products)  # (d + 1, T)
        self.model.imitate.weight.copy_(fitted[:-1].mT)
        self.model.imitate.bias.copy_(fitted[-1])

    def _missed(self, cells: Tensor, targets: Tensor) -> Tensor:
        """Weighted squared error of imitated maps (B, N, T); 1 where all cells are the mean."""
        error = (self.model.imitate(cells) - targets.to(self.device)).square()
        return (error * self.weights).mean()

    def _cells(self, pixels: np.ndarray) -> Tensor:
        """What the student makes of (B, S, S, 3) in 0..255: (B, N, d)."""
        normal = torch.from_numpy(self.preprocess.planes(pixels))
        with self.autocast():
            cells: Tensor = self.model.trunk(normal.to(self.device))
        return cells.float()

    @torch.no_grad()
    def validate(self, epoch: int) -> dict[str, float]:
        """How far the student is from the teacher on whole validation images, and retrieval.

        Returns:
            `val_distillation`, the squared error weighted as in training, and, in epochs with a
            retrieval loss, the metrics of `retrieval_metrics` by the student's own heads.
        """
        self.model.eval()
        images, missed = [], 0.0
        for start in range(0, len(self.val.squares), 100):
            rows = np.arange(start, min(start + 100, len(self.val.squares)))
            whole = np.zeros(len(rows), int)
            cells = self._cells(self.val.pixels(rows, whole))
            targets = torch.from_numpy(self.val.maps(rows, whole)).float()
            missed += self._missed(cells, targets).item() * len(rows) / len(self.val.squares)
            images.append(self.model.images(cells).embeddings.cpu())
        score = {"val_distillation": round(missed, 4)}
        if self._retrieves(epoch):
            texts = []
            for start in range(0, len(self.val.captions), 500):
                index = np.arange(start, min(start + 500, len(self.val.captions)))
                ids, lengths = map(torch.from_numpy, self.val_table.rows(index))
                read = self.model.texts(ids.to(self.device), lengths.to(self.device))
                texts.append(read.embeddings.cpu())
            views = Views(torch.cat(images)), Views(torch.cat(texts))
            found = retrieval_metrics(score_matrix(self.model.heads, *views), self.val.image_of)
            score |= {name: round(value, 2) for name, value in found.items()}
        return score

    def described(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Loop`."""
        config, shown = self.config, replace(self.preprocess, size=self.config.side)
        data = {
            "kind": "photographs",
            "name": names_of_data(Path(config.data), config.also),
            "images": len(self.train.squares),
            "captions": len(self.train.captions),
            "teacher": config.teacher,
        }
        return self.model.trunk.state_dict(), describe_backbone(config, shown, data)


def check_distillation(config: DistillConfig, side: int) -> None:
    """Checks the settings of a student before images are read.

    Args:
        config: its settings.
        side: of the squares that it reads in training.

    Raises:
        ValueError, OSError: data, teacher or `init` are missing or do not fit; one sentence.
    """
    train = open_training(Path(config.data), config.also, without_captions=True)
    open_split(Path(config.data), "val")
    check_pace(config, len(train.images))
    refuse_missing(config.teacher, "teacher")
    about = describe_image_source(config.teacher)
    with torch.device("meta"):  # sizes alone
        teacher = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
        student = SceneNet(config.widths, config.blocks)
    cells = math.prod(teacher.grid(side)) + teacher.summary_token, math.prod(student.grid(side))
    if cells[0] != cells[1]:
        raise ValueError(
            f"the teacher's map has {cells[0]} cells and the student's {cells[1]}; choose blocks "
            "that make them equal"
        )
    if config.init and not (Path(config.init) / BEST).is_file():
        raise FileNotFoundError(f"init: there is no weights file {Path(config.init) / BEST}")


def start_from(run: Path, trunk: SceneNet) -> None:
    """Takes over the weights of a trunk of fewer blocks; a block that is new changes nothing yet.

    Args:
        run: folder of the earlier run.
        trunk: of the same widths; what it has more stands at its end.

    Raises:
        FileNotFoundError, ValueError: there are no such weights, or they do not fit.
    """
    tensors, _ = load_tensors(run / BEST)
    for number, block in enumerate(trunk.stages):
        if f"stages.{number}.conv1.weight" not in tensors:
            nn.init.zeros_(block.get_parameter("norm2.weight"))  # relu(0 + x) is x
            new = {f"stages.{number}.{name}": value for name, value in block.state_dict().items()}
            tensors |= new
    load_strict(trunk, tensors, str(run / BEST))


def component_weights(targets: np.ndarray) -> Tensor:
    """The weight of each component's error: its variance, so that the first ones count most.

    Args:
        targets: (crops, N, T).

    Returns:
        (T,), such that the error of a student that predicts zeros is 1.
    """
    sample = torch.tensor(targets[:: max(1, len(targets) // 500)]).float()
    variance = sample.square().mean(dim=(0, 1))  # (T,)
    return variance / variance.square().mean().clamp_min(1e-12)


def change_colors(pixels: np.ndarray, most: float, random: np.random.Generator) -> np.ndarray:
    """Another brightness, contrast and saturation for each image.

    Saturation moves a pixel away from its grey, contrast away from the image's mean, brightness
    scales: together one matrix and one shift an image.

    Args:
        pixels: (B, H, W, 3) in 0..255.
        most: largest relative change; 0 changes nothing.
        random: where the changes come from.

    Returns:
        (B, H, W, 3) float32 in 0..255.
    """
    factors = 1.0 + random.uniform(-most, most, (3, len(pixels), 1, 1))
    brightness, contrast, saturation = torch.from_numpy(factors).float()
    mix = saturation * torch.eye(3) + (1 - saturation) / 3  # (B, 3, 3)
    flat = torch.from_numpy(pixels).float().flatten(1, 2)  # (B, H * W, 3)
    level = flat.mean(dim=(1, 2), keepdim=True)  # (B, 1, 1)
    changed = torch.bmm(flat, brightness * contrast * mix)
    changed += brightness * (1 - contrast) * level
    return changed.clamp_(0.0, 255.0).reshape(pixels.shape).numpy()


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    command = Command(
        "distill", "Train an image encoder under a teacher.", DistillConfig, "flickr8k/backbone"
    )
    command.run(
        argv, lambda config, options: Distillation(config, options.out, resume=options.resume)
    )


if __name__ == "__main__":
    main()
