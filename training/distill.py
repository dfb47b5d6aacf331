"""Trains an image encoder of our own on photographs, from random weights, with a teacher's help.

`python -m training.distill --recipe flickr8k/backbone --set data=DIR --set teacher=DIR --out RUN`

A few thousand captioned photographs are too few to learn to see from. A published network has seen
a million: the student learns to draw the same feature map (knowledge distillation, Hinton et al.,
2015; feature maps as targets as in FitNets, Romero et al., ICLR 2015). Towards the end a retrieval
loss joins in, so that what captions speak of counts more. Only the student's trunk is kept.

The teacher reads some crops of every photograph once (`training/teacher.py`); the student sees the
same crops, mirrored and with other colours, again and again.
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
from tqdm import tqdm

import models
from models import Views
from models.backbones import BiGRUTextEncoder, SceneNet
from models.preprocess import Preprocess
from models.views import lengths_to_mask
from training.config import load_recipe, to_values
from training.datasets import TokenTable
from training.losses import info_nce, same_image
from training.metrics import retrieval_metrics
from training.runs import RunFolder, hardware
from training.scoring import score_matrix
from training.teacher import DistillConfig, prepare
from training.tokenizer import build_tokenizer

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


class Distillation:
    """The loop: one object a run."""

    def __init__(self, config: DistillConfig, out: Path, *, resume: bool) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.preprocess = Preprocess()
        self.train, self.val = (
            prepare(config, split, self.preprocess, self.device) for split in ("train", "val")
        )
        tokenizer = build_tokenizer(self.train.captions, min_count=2)
        self.train_table, self.val_table = (
            TokenTable(tokenizer, lesson.captions) for lesson in (self.train, self.val)
        )
        self.model = Student(config, tokenizer.get_vocab_size())
        self.grid = self.model.trunk.grid(self.preprocess.size)[0]
        if self.train.targets.shape[1] != self.grid**2:
            raise ValueError(
                f"the teacher's map has {self.train.targets.shape[1]} cells and the student's "
                f"{self.grid**2}; choose blocks so that they agree"
            )
        self.weights = component_weights(self.train.targets, config.emphasis).to(self.device)
        self.model.trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
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
            score = self.evaluate(retrieval=self._retrieves(epoch))
            seconds = time.perf_counter() - began
            self.run.log({"epoch": epoch, **terms, **score, "seconds": round(seconds, 1)})
            print(f"epoch {epoch + 1}: {terms} {score}", file=sys.stderr)
            # before there is a retrieval loss to compare by, the last epoch is the best
            if score.get("rsum", 0.0) >= self.progress["best"]:
                self.progress["best"] = score.get("rsum", self.progress["best"])
                self._save_best(epoch, score)
            self.progress["epoch"] = epoch + 1
            self.run.save_last(self.model, self.optimizer, self.progress)

    def _retrieves(self, epoch: int) -> bool:
        return epoch >= self.config.epochs - self.config.retrieval_epochs

    def _epoch(self, epoch: int) -> dict[str, float]:
        config = self.config
        random = np.random.default_rng([config.seed, epoch])
        order = random.permutation(self.train.photographs)
        steps = len(order) // config.batch_size
        total: dict[str, float] = {}
        self.model.train()
        for step in tqdm(range(steps), desc=f"epoch {epoch + 1}/{config.epochs}", mininterval=2):
            rows = np.sort(order[step * config.batch_size : (step + 1) * config.batch_size])
            self._set_rate(steps * config.epochs)
            terms = self._losses(rows, random, retrieval=self._retrieves(epoch))
            loss = torch.stack(list(terms.values())).sum()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.progress["step"] += 1
            for name, value in terms.items():
                total[name] = total.get(name, 0.0) + value.item() / steps
        return {name: round(value, 5) for name, value in total.items()}

    def _losses(
        self, rows: np.ndarray, random: np.random.Generator, *, retrieval: bool
    ) -> dict[str, Tensor]:
        crops = random.integers(self.config.crops, size=len(rows))
        pixels = torch.from_numpy(self.train.pixels(rows, crops)).float()  # (B, S, S, 3)
        targets = torch.from_numpy(self.train.maps(rows, crops)).float()  # (B, N, T)
        mirrored = torch.from_numpy(random.random(len(rows)) < 0.5)[:, None, None, None]
        pixels = torch.where(mirrored, pixels.flip(2), pixels)
        square = targets.unflatten(1, (self.grid, self.grid))  # (B, rows, columns, T)
        targets = torch.where(mirrored, square.flip(2), square).flatten(1, 2)
        seen = change_colors(pixels, self.config.color, random)
        cells = self._cells(self._normalized(seen))
        terms = {"distillation": self._missed(cells, targets)}
        if retrieval:
            captions = self.train.caption_of(rows, random)
            ids, lengths = map(torch.from_numpy, self.train_table.rows(captions))
            texts = self.model.texts(ids.to(self.device), lengths.to(self.device))
            scores = self.model.heads.score(self.model.images(cells), texts)
            images = torch.from_numpy(rows).to(self.device)
            contrastive = info_nce(scores, same_image(images, images), TEMPERATURE)
            terms["retrieval"] = self.config.retrieval_weight * contrastive
        return terms

    def _missed(self, cells: Tensor, targets: Tensor) -> Tensor:
        """Weighted squared error of imitated maps (B, N, T); 1 where all cells are the mean."""
        error = (self.model.imitate(cells) - targets.to(self.device)).square()
        return (error * self.weights).mean()

    def _normalized(self, pixels: Tensor) -> Tensor:
        mean = 255.0 * torch.tensor(self.preprocess.mean)
        std = 255.0 * torch.tensor(self.preprocess.std)
        return ((pixels - mean) / std).permute(0, 3, 1, 2)  # its memory keeps the channels last

    def _cells(self, pixels: Tensor) -> Tensor:
        enabled = self.config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled):
            cells: Tensor = self.model.trunk(pixels.to(self.device))
        return cells.float()

    def _set_rate(self, steps: int) -> None:
        step = self.progress["step"]
        scale = min(1.0, (step + 1) / max(1, self.config.warmup_steps))
        scale *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * scale

    @torch.no_grad()
    def evaluate(self, *, retrieval: bool) -> dict[str, float]:
        """How far the student is from the teacher on whole validation photographs, and retrieval.

        Returns:
            `val_distillation`, the squared error weighted as in training, and, where asked for, the
            metrics of `retrieval_metrics` by the student's own heads.
        """
        self.model.eval()
        images, missed = [], 0.0
        for start in range(0, self.val.photographs, 100):
            rows = np.arange(start, min(start + 100, self.val.photographs))
            whole = np.zeros(len(rows), int)
            pixels = torch.from_numpy(self.val.pixels(rows, whole)).float()
            cells = self._cells(self._normalized(pixels))
            targets = torch.from_numpy(self.val.maps(rows, whole)).float()
            missed += self._missed(cells, targets).item() * len(rows) / self.val.photographs
            images.append(self.model.images(cells).embeddings.cpu())
        score = {"val_distillation": round(missed, 4)}
        if retrieval:
            texts = []
            for start in range(0, len(self.val.captions), 500):
                index = np.arange(start, min(start + 500, len(self.val.captions)))
                ids, lengths = map(torch.from_numpy, self.val_table.rows(index))
                views = self.model.texts(ids.to(self.device), lengths.to(self.device))
                texts.append(views.embeddings.cpu())
            pair = Views(torch.cat(images)), Views(torch.cat(texts))
            found = retrieval_metrics(score_matrix(self.model.heads, *pair), self.val.image_of)
            score |= {name: round(value, 2) for name, value in found.items()}
        return score

    def _save_best(self, epoch: int, score: dict[str, float]) -> None:
        about: dict[str, Any] = {
            "kind": "image_backbone",
            "arch": "scene_net",
            "arguments": {"widths": list(self.config.widths), "blocks": list(self.config.blocks)},
            "preprocess": self.preprocess.to_json(),
            "config": to_values(self.config),
            "metrics": {"val": score},
            "epoch": epoch,
            "hardware": hardware(),
        }
        self.run.save_best(self.model.trunk.state_dict(), about)


def component_weights(targets: np.ndarray, emphasis: float) -> Tensor:
    """What the error of each component counts.

    Args:
        targets: (crops, N, T).
        emphasis: see `DistillConfig`.

    Returns:
        (T,), such that a student that draws only zeros misses 1.
    """
    some = torch.tensor(targets[:: max(1, len(targets) // 500)]).float()  # enough to tell
    spread = some.square().mean(dim=(0, 1))  # (T,)
    weights = spread**emphasis
    return weights / (weights * spread).mean().clamp_min(1e-12)


def change_colors(pixels: Tensor, most: float, random: np.random.Generator) -> Tensor:
    """Another brightness, contrast and saturation for each picture.

    Args:
        pixels: (B, H, W, 3) in 0..255.
        most: largest relative change; 0 changes nothing.
        random: where the changes come from.

    Returns:
        (B, H, W, 3) in 0..255.
    """
    factors = 1.0 + random.uniform(-most, most, (3, len(pixels), 1, 1, 1))
    brightness, contrast, saturation = torch.from_numpy(factors).to(pixels.dtype)
    grey = pixels.mean(dim=3, keepdim=True)  # (B, H, W, 1)
    level = grey.mean(dim=(1, 2), keepdim=True)  # (B, 1, 1, 1)
    changed = torch.lerp(grey, pixels, saturation)
    changed = torch.lerp(level, changed, contrast) * brightness
    return changed.clamp_(0.0, 255.0)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train an image encoder under a teacher.")
    parser.add_argument("--recipe", default="flickr8k/backbone", help="a recipe or a TOML file")
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="replace a setting")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--threads", type=int, help="CPU threads for torch")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        config = load_recipe(DistillConfig, options.recipe, options.set)
        Distillation(config, options.out, resume=options.resume).fit()
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
