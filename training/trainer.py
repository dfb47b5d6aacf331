"""One loop trains every method, on one process or, under torchrun, on many.

It trains on cached features, or on pictures where the image encoder is trained along.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

import models
from models import Method, Views
from models.views import lengths_to_mask
from training.config import TrainConfig, to_values
from training.datasets import Batch, CaptionedFeatures, ahead, batches
from training.features import CACHE, file_sha256
from training.images import ImageSide
from training.metrics import retrieval_metrics
from training.objectives import build_objective
from training.pair import Pair
from training.runs import RunFolder, hardware, write_text
from training.scoring import score_matrix
from training.start import start_from
from training.texts import TextSide, build_text_side

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Trains one method.

    Args:
        config: what to train.
        train: features and captions to learn from.
        val: features and captions that choose the best epoch.
        out: run folder.
        backbone_sha256: of the image encoder that made the features.
        images: the image encoder where it is trained along; `train` and `val` then hold pictures.
        resume: go on with the run in `out`; on CPU its weights come out bit for bit the same as
            those of a run that was never interrupted.
        cache: folder of the token features of text encoders that are not trained.
    """

    def __init__(
        self,
        config: TrainConfig,
        train: CaptionedFeatures,
        val: CaptionedFeatures,
        out: Path,
        *,
        backbone_sha256: str = "",
        images: ImageSide | None = None,
        resume: bool = False,
        cache: Path = CACHE,
    ) -> None:
        self.config, self.train, self.val = config, train, val
        self.images = images
        self.backbone_sha256 = backbone_sha256 if images is None else images.sha256
        if config.backbone_frozen == (images is not None):
            raise ValueError("backbone_frozen must be false just where an image encoder is trained")
        self.rank, self.world = _join_processes()
        if config.batch_size % self.world:
            raise ValueError(
                f"batch_size {config.batch_size} does not divide by {self.world} processes"
            )
        self.device = _device(config.precision)
        torch.manual_seed(config.seed)
        self.texts = self._read_texts(cache)
        self.objective = build_objective(config.method, config.objective)
        self.pair = self._build().to(self.device)
        self.optimizer = torch.optim.AdamW(
            self._parameters(),
            lr=config.optimizer.learning_rate,
            weight_decay=config.optimizer.weight_decay,
            amsgrad=config.optimizer.amsgrad,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        resume, defaults = resume or self.rank > 0, to_values(TrainConfig())
        self.run = RunFolder(out, to_values(config), resume=resume, defaults=defaults)
        loaded = self.run.load_last(self.pair, self.optimizer)
        if loaded is None and config.init:
            known = self.backbone_sha256, self.texts.tokenizer
            start_from(Path(config.init), self.pair, config, *known)
        self.progress: dict[str, Any] = loaded or {
            "epoch": 0,
            "step": 0,
            "best": -1.0,
            "best_epoch": 0,
            "drops": [],
        }
        if self.rank:
            torch.manual_seed(config.seed + 7919 * self.rank)  # its own draw of dropped elements
        self.terms: tuple[str, ...] = ()
        self.parallel = (
            nn.parallel.DistributedDataParallel(self.pair) if self.world > 1 else self.pair
        )

    def _read_texts(self, cache: Path) -> TextSide:
        """The text side; among several processes the first one fills the cache for all."""
        if self.rank:
            dist.barrier()
        sides = self.train.captions, self.val.captions
        texts = build_text_side(self.config.text, *sides, cache, self.device)
        if self.world > 1 and not self.rank:
            dist.barrier()
        return texts

    def _build(self) -> Pair:
        config, texts = self.config, self.texts
        encoder = None if self.images is None else self.images.encoder
        method = models.build(config.method, self.image_dim, texts.encoder.dim, config.arguments)
        summaries = self.train.summary_token, texts.summary_token
        _refuse_without_summary(config.method, method, *summaries)
        return Pair(
            method,
            texts.encoder,
            config,
            image_encoder=encoder,
            image_summary=self.train.summary_token,
            text_summary=texts.summary_token,
        )

    @property
    def image_dim(self) -> int:
        """Width d of the image features."""
        return self.train.features.shape[2] if self.images is None else self.images.encoder.dim

    @property
    def image_elements(self) -> int:
        """How many features N an image has."""
        return self.train.features.shape[1] if self.images is None else self.images.elements

    def _parameters(self) -> list[dict[str, Any]]:
        """What is trained, a group for each share of the base rate."""
        own = {"text_encoder": self.config.text.rate, "image_encoder": self.config.backbone_rate}
        groups: dict[float, list[nn.Parameter]] = {}
        for name, part in self.pair.named_children():
            groups.setdefault(own.get(name, 1.0), []).extend(part.parameters())
        return [{"params": params, "share": share} for share, params in groups.items() if params]

    def fit(self) -> dict[str, float]:
        """Trains until the last epoch or until patience runs out.

        Returns:
            The best validation metrics.
        """
        for epoch in range(self.progress["epoch"], self.config.epochs):
            if epoch - self.progress["best_epoch"] > self.config.patience:
                break
            began = time.perf_counter()
            terms = self._epoch(epoch)
            due = (epoch + 1) % self.config.validate_every == 0 or epoch + 1 == self.config.epochs
            metrics = self.validate() if due else {}
            self._finish_epoch(epoch, terms, metrics, time.perf_counter() - began)
        best: dict[str, float] = self.progress["metrics"]
        return best

    def step_milliseconds(self, steps: int = 15) -> float:
        """What a training step takes: the median of some; they change the weights.

        On a CPU it is the time that all threads computed, which a busy machine does not lengthen.
        """
        clock = time.perf_counter if self.device.type == "cuda" else time.process_time
        self.pair.train()
        spans = []
        for batch in islice(self._batches(self.config.epochs), steps):
            began = clock()
            self._step(batch.to(self.device), self.config.epochs)
            spans.append(clock() - began)
        return 1000 * float(np.median(spans))

    def _batches(self, epoch: int) -> Iterator[Batch]:
        config = self.config
        seed, rate = (config.seed, epoch), config.text.unknown_rate
        table, share = self.texts.tables[0], (self.rank, self.world)
        together = config.captions_together
        stream = batches(self.train, table, config.batch_size, seed, rate, share, together)
        return stream if self.images is None else ahead(stream)

    def _epoch(self, epoch: int) -> dict[str, float]:
        config = self.config
        steps = len(self.train.captions) // config.batch_size
        totals: dict[str, float] = {}
        self.pair.train()
        stream, quiet = self._batches(epoch), self.rank > 0
        title = f"{config.method} epoch {epoch + 1}/{config.epochs}"
        with tqdm(stream, desc=title, total=steps, mininterval=2, disable=quiet) as bar:
            for batch in bar:
                rate = self._set_rate(epoch, steps)
                terms = self._step(batch.to(self.device), epoch)
                for name, value in terms.items():
                    totals[name] = totals.get(name, 0.0) + value / steps
        return {"rate": rate, **{name: round(value, 5) for name, value in totals.items()}}

    def _step(self, batch: Batch, epoch: int) -> dict[str, float]:
        precision = PRECISIONS[self.config.precision]
        with torch.autocast(self.device.type, precision, enabled=precision != torch.float32):
            images, texts = self.parallel(
                batch.features, batch.mask, batch.rows, batch.ids, batch.lengths
            )
        # every process sees the whole batch, so that negatives do not depend on how many there are
        images, texts = (v.apply(lambda part: self._gather(part.float())) for v in (images, texts))
        image_ids = self._gather(batch.image_ids)
        terms = self.objective(self.pair.method, images, texts, image_ids, epoch)
        loss = torch.stack(list(terms.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.pair.parameters(), self.config.optimizer.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.progress["step"] += 1
        self.terms = tuple(terms)
        values = {name: value.item() for name, value in terms.items()}
        return {"loss": loss.item(), **values, "grad_norm": norm.item()}

    def _gather(self, tensor: Tensor) -> Tensor:
        if self.world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor.detach().contiguous())
        parts[self.rank] = own = tensor.view_as(tensor)
        if own.requires_grad:
            # DDP averages over processes, but each holds the gradient of its own part only; the
            # score's own parameters see the whole batch everywhere, so for them that is right
            own.register_hook(lambda grad: grad * self.world)
        return torch.cat(parts)

    def _set_rate(self, epoch: int, steps: int) -> float:
        o = self.config.optimizer
        rate = o.learning_rate * min(1.0, (self.progress["step"] + 1) / max(1, o.warmup_steps))
        if o.schedule == "cosine":
            share = self.progress["step"] / (steps * self.config.epochs)
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        elif o.schedule == "plateau":
            rate *= o.decay ** len(self.progress["drops"])
        else:
            rate *= o.decay ** sum(epoch >= e for e in o.decay_epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        return rate

    def validate(self) -> dict[str, float]:
        """Retrieval metrics on the validation split."""
        scores = score_matrix(self.pair.method, *self.validation_views())
        return retrieval_metrics(scores, self.val.image_of)

    @torch.inference_mode()
    def validation_views(self) -> tuple[Views, Views]:
        """Views of all images and of all texts of the validation split, as the weights are now."""
        self.pair.eval()
        method = self.pair.method
        images, texts = [], []
        at_once = 256 if self.images is None else 64
        for start in range(0, len(self.val.features), at_once):
            part = np.asarray(self.val.features[start : start + at_once], np.float32)
            read = torch.from_numpy(part).to(self.device)
            mask = torch.ones(read.shape[:2], dtype=torch.bool, device=self.device)
            features, mask = self.pair.image_features(read, mask)
            images.append(method.encode_image(features, mask).embeddings)
        for start in range(0, len(self.val.captions), 512):
            stop = min(start + 512, len(self.val.captions))
            ids, lengths = map(torch.from_numpy, self.texts.tables[1].rows(np.arange(start, stop)))
            words = self.pair.text_encoder(ids.to(self.device), lengths.to(self.device))
            spoken = lengths_to_mask(lengths, ids.shape[1]).to(self.device)
            texts.append(method.encode_text(words, spoken).embeddings)
        return Views(torch.cat(images)), Views(torch.cat(texts))

    def _finish_epoch(
        self, epoch: int, terms: dict[str, float], metrics: dict[str, float], seconds: float
    ) -> None:
        if not math.isfinite(terms["loss"]):
            raise ValueError("the loss is not finite; lower optimizer.learning_rate")
        better = metrics.get("rsum", -math.inf) > self.progress["best"]
        self.progress["epoch"] = epoch + 1
        if better:
            self.progress |= {"best": metrics["rsum"], "best_epoch": epoch, "metrics": metrics}
        last = max([self.progress["best_epoch"], *self.progress["drops"]])
        if epoch - last >= self.config.optimizer.plateau_epochs:
            self.progress["drops"].append(epoch)  # which the schedule "plateau" goes by
        if self.rank:
            return
        shown = {name: round(value, 2) for name, value in metrics.items()}
        self.run.log({"epoch": epoch, **terms, **shown, "seconds": round(seconds, 1)})
        reached = f", val rsum {shown['rsum']}" if shown else ""
        print(f"epoch {epoch + 1}: loss {terms['loss']:.3f}{reached}", file=sys.stderr)
        if better:
            self._save_best(epoch, metrics)
        self.run.save_last(self.pair, self.optimizer, self.progress)

    def _save_best(self, epoch: int, metrics: dict[str, float]) -> None:
        tokenizer = self.run.path / "tokenizer.json"
        write_text(tokenizer, self.texts.tokenizer.to_str(pretty=True))
        about = {
            "kind": "run",
            "method": self.config.method,
            "arguments": self.config.arguments,
            "image_dim": self.image_dim,
            "text_dim": self.pair.text_encoder.dim,
            "text_encoder": dict(self.texts.about),
            "config": to_values(self.config),
            "backbone_sha256": self.backbone_sha256,
            "tokenizer_sha256": file_sha256(tokenizer),
            "metrics": {"val": metrics},
            "epoch": epoch,
            "seed": self.config.seed,
            "hardware": hardware(),
        }
        if self.images is not None:
            about["image_encoder"] = dict(self.images.about)
        self.run.save_best(self.pair.state_dict(), about)


def _refuse_without_summary(name: str, method: Method, image: bool, text: bool) -> None:
    """A method that reads a [CLS] element is no use where another element stands in its place."""
    if not method.summary_token:
        return
    lacking = [side for side, has in (("image", image), ("text", text)) if not has]
    if lacking:
        raise ValueError(
            f'method "{name}" reads the first element of a set as its summary ([CLS]), but the '
            f"{' and the '.join(lacking)} encoder puts none there; use encoders whose "
            "summary_token is True, or choose a method that pools the whole set"
        )


def _join_processes() -> tuple[int, int]:
    """Joins the group that torchrun announces; returns (rank, number of processes)."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return (dist.get_rank(), world) if world > 1 else (0, 1)


def _device(precision: str) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    if precision == "fp16":
        raise ValueError(
            'precision "fp16" needs a CUDA GPU; set precision=fp32 or bf16 on this machine'
        )
    return torch.device("cpu")
