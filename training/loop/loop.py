"""The training loop: epochs, steps, learning rates, and run folders.

Subclasses define modules, batches and losses: `training/loop/trainer.py` (methods),
`training/loop/clip.py` (CLIP), `training/pretrain.py` and `training/distill.py` (image encoders).
"""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import tomlkit
import torch
from torch import Tensor, nn
from tqdm import tqdm

from polyview.export.sessions import hardware
from polyview.models.checkpoint import load_strict, load_tensors, save_tensors
from polyview.models.files import atomic_write
from polyview.training.evaluation.report import write_rows
from polyview.training.loop.config import BackboneConfig, TrainConfig

BEST, LAST, CONFIG = "best.safetensors", "last.safetensors", "config.toml"
TOKENIZER, LOG = "tokenizer.json", "log.csv"

C = TypeVar("C", bound=TrainConfig | BackboneConfig)
B = TypeVar("B")


class Loop(ABC, Generic[C, B]):
    """A training run: `__init__` checks settings and sets the seed; `start` receives the module.

    `out` is the run folder. `resume` continues the run in it; on a CPU the final weights equal
    those of an uninterrupted run bit for bit.

    Attributes:
        selection_metric: the validation metric to maximise.
        digits: decimal digits of validation metrics in the log.
        progress: finished epochs and steps, the best epoch (from 0) with its metrics, rate drops.
        rows: rows of the log.

    Raises FileExistsError if the folder holds a run and `resume` is False. Raises ValueError if a
    resumed run has other settings (only `epochs` and `patience` may be raised), or if the precision
    is bf16 and the processor has no instructions for it.
    """

    selection_metric: ClassVar[str] = "rsum"
    digits: ClassVar[int] = 2

    def __init__(self, config: C, out: Path, *, resume: bool) -> None:
        self.config, self.out = config, out
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        capabilities = torch.cpu.get_capabilities()
        on_cpu = self.device.type == "cpu"
        is_slow = on_cpu and not (capabilities.get("avx512_bf16") or capabilities.get("bf16"))
        if config.precision == "bf16" and is_slow:
            reason = 'precision "bf16" takes ten times as long as fp32 on this processor'
            problem = "no instructions for it (avx512_bf16 or Arm's bf16)"
            raise ValueError(f"{reason}, which has {problem}; set precision=fp32")
        self.rows: list[dict[str, Any]] = []
        if (out / LOG).is_file():
            if not resume:
                advice = "add --resume to continue it, or name another folder"
                raise FileExistsError(f"{out} already holds a run; {advice}")
            self._check_settings()
        torch.manual_seed(config.seed)

    def _check_settings(self) -> None:
        """Raises ValueError if settings differ from the run's; epochs and patience may grow."""
        stored = tomlkit.parse((self.out / CONFIG).read_text("utf-8")).unwrap()
        for name, value in sorted(self.config.model_dump(mode="json").items()):
            old = stored.get(name)
            is_raised = name in ("epochs", "patience") and value > (old or 0)
            if value != old and not is_raised:
                rule = "--resume reads the settings of the run; epochs and patience may be raised"
                reason = f'its "{name}" is {old!r}, not {value!r}; leave it out ({rule})'
                raise ValueError(f"cannot resume {self.out}: {reason}, or name another folder")

    def start(
        self,
        module: nn.Module,
        *,
        item_count: int,
        groups: list[dict[str, Any]] | None = None,
        fused: bool = True,
    ) -> bool:
        """Sets the module to train, writes the settings, and restores a checkpoint if there is one.

        `module` has all weights on the device. `item_count` is the number of captions or images
        in an epoch. `groups` are optimizer groups, by default `parameter_groups` of all weights.
        `fused` updates all weights in one kernel. Returns whether a checkpoint was restored.

        Raises ValueError if an epoch has no step or the warm-up is at least as long as the run, and
        OSError if the run folder cannot be created.
        """
        config, optimizer_config = self.config, self.config.optimizer
        self.steps = self.steps_in_epoch(item_count)
        total, warmup = self.steps * config.epochs, optimizer_config.warmup_steps
        if warmup and warmup >= total:
            prefix = "optimizer." if isinstance(config, TrainConfig) else ""
            name, steps = f"{prefix}warmup_steps", f"{total} steps ({config.epochs} x {self.steps})"
            reason = f"the whole run has {steps}, so the rate would never reach learning_rate"
            advice = f"lower it: --set {name}={total // 10}"
            raise ValueError(f"{name} is {warmup}, but {reason}; {advice}")
        self.module = module
        self.optimizer = torch.optim.AdamW(
            groups or parameter_groups(module.parameters()),
            lr=optimizer_config.learning_rate,
            weight_decay=optimizer_config.weight_decay,
            amsgrad=optimizer_config.amsgrad,
            fused=fused or None,
        )
        atomic_write(self.out / CONFIG, tomlkit.dumps(config.model_dump(mode="json")))
        self.progress: dict[str, Any] = {"epoch": 0, "step": 0, "best": -1.0, "best_epoch": 0}
        self.progress["drops"] = []  # epochs after which the schedule "plateau" lowers the rate
        if has_checkpoint := (self.out / LAST).is_file():
            self._load_last()
        return has_checkpoint

    @abstractmethod
    def batches(self, epoch: int) -> Iterable[B]:
        """Yields the batches of an epoch, which depend only on the seed and the epoch."""

    @abstractmethod
    def losses(self, batch: B, epoch: int) -> dict[str, Tensor]:
        """Returns the terms of a batch's loss; the loss is their sum."""

    @abstractmethod
    def validate(self, epoch: int) -> dict[str, float]:
        """Returns metrics on the validation split; empty for an epoch without validation."""

    @abstractmethod
    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the weights to save after a new best epoch, and their metadata."""

    def is_better(self, metrics: dict[str, float]) -> bool:
        """Returns whether an epoch's metrics are the best so far."""
        return metrics.get(self.selection_metric, -math.inf) > self.progress["best"]

    def stop_reason(self, epoch: int) -> str:  # noqa: ARG002
        """Returns why training ends before this epoch; empty to continue."""
        return ""

    def after_step(self) -> None:
        """Runs after each update of the weights; does nothing by default."""

    def fit(self) -> dict[str, float]:
        """Trains all epochs, with a checkpoint after each; returns the metrics of the best epoch.

        Raises ValueError if the loss is not finite, and DiskFullError if the disk has no space for
        the log or a checkpoint.
        """
        epochs = self.config.epochs
        if self.progress["epoch"] == epochs:
            advice = f"train more with --set epochs={2 * epochs}"
            print(f"all {epochs} epochs of {self.out} are done; {advice}", file=sys.stderr)
        for epoch in range(self.progress["epoch"], epochs):
            if reason := self.stop_reason(epoch):
                print(reason, file=sys.stderr)
                break
            start_time = time.perf_counter()
            terms = self._train_epoch(epoch)
            metrics = self.validate(epoch)
            self._finish_epoch(epoch, terms, metrics, time.perf_counter() - start_time)
        return self.progress.get("metrics", {})

    def row_batches(self, random: np.random.Generator, row_count: int) -> Iterator[np.ndarray]:
        """Yields random batches of image rows, sorted within each batch."""
        order = random.permutation(row_count)[: self.steps * self.config.batch_size]
        return map(np.sort, np.split(order, self.steps))

    def steps_in_epoch(self, item_count: int) -> int:
        """Returns the number of whole batches of items; raises ValueError if there is none."""
        if item_count < (size := self.config.batch_size):
            reason = f"batch_size {size} is more than the {item_count} items to train on"
            raise ValueError(f"{reason}; lower it: --set batch_size={item_count}")
        return item_count // size

    def autocast(self) -> torch.autocast:
        """Returns the context of a forward pass in the configured precision."""
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def _train_epoch(self, epoch: int) -> dict[str, float]:
        """Trains one epoch; returns the last base rate and the means of the values of `step()`."""
        totals: dict[str, float] = {}
        self.module.train()
        title = f"{self.out.name} epoch {epoch + 1}/{self.config.epochs}"
        for batch in tqdm(self.batches(epoch), desc=title, total=self.steps, mininterval=2):
            rate = self._set_rate(epoch)
            for name, value in self.step(batch, epoch).items():
                totals[name] = totals.get(name, 0.0) + value / self.steps
        return {"rate": rate, **{name: round(value, 5) for name, value in totals.items()}}

    def step(self, batch: B, epoch: int) -> dict[str, float]:
        """Updates the weights on a batch; returns the loss, its terms and the gradient norm."""
        terms = self.losses(batch, epoch)
        loss = torch.stack(list(terms.values())).sum()
        if not torch.isfinite(loss):
            prefix = "optimizer." if isinstance(self.config, TrainConfig) else ""
            advice = f"lower {prefix}learning_rate, which is {self.config.optimizer.learning_rate}"
            raise ValueError(f"the loss is not finite in epoch {epoch + 1}; {advice}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.config.optimizer.clip_norm)
        self.optimizer.step()
        self.after_step()
        self.progress["step"] += 1
        values = {name: value.item() for name, value in terms.items()}
        return {"loss": loss.item(), **values, "grad_norm": norm.item()}

    def _set_rate(self, epoch: int) -> float:
        """Sets the learning rate of the next step; returns the base rate."""
        config, step = self.config.optimizer, self.progress["step"]
        rate = config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup_steps))
        if config.schedule == "cosine":
            fraction = min(1.0, step / (self.steps * self.config.epochs))
            rate *= 0.5 * (1 + math.cos(math.pi * fraction))
        elif config.schedule == "plateau":
            rate *= config.decay ** len(self.progress["drops"])
        else:
            rate *= config.decay ** sum(epoch >= drop for drop in config.decay_epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        return rate

    def _finish_epoch(
        self, epoch: int, terms: dict[str, float], metrics: dict[str, float], seconds: float
    ) -> None:
        """Logs and prints an epoch, and saves the checkpoint and the best weights."""
        is_best = self.is_better(metrics)
        self.progress["epoch"] = epoch + 1
        if is_best:
            score = metrics.get(self.selection_metric, self.progress["best"])
            self.progress |= {"best": score, "best_epoch": epoch, "metrics": metrics}
        last_change = max([self.progress["best_epoch"], *self.progress["drops"]])
        if epoch - last_change > self.config.optimizer.plateau_epochs:
            self.progress["drops"].append(epoch)
        rounded = {name: round(value, self.digits) for name, value in metrics.items()}
        self.rows.append({"epoch": epoch + 1, **terms, **rounded, "seconds": round(seconds, 1)})
        write_rows(self.out / LOG, self.rows)
        line = f"epoch {epoch + 1}/{self.config.epochs}: loss {terms['loss']:.3f}"
        if self.selection_metric in rounded:
            line += f", val {self.selection_metric} {rounded[self.selection_metric]}"
        if remaining := self.config.epochs - epoch - 1:
            line += f", {tqdm.format_interval(remaining * seconds)} left"
        print(line, file=sys.stderr)
        if is_best:
            tensors, metadata = self.checkpoint()
            metadata |= {"config": self.config.model_dump(mode="json"), "metrics": {"val": metrics}}
            metadata |= {"epoch": epoch + 1, "hardware": hardware()}
            save_tensors(self.out / BEST, tensors, metadata)
        self._save_last()

    def _save_last(self) -> None:
        """Atomically writes weights, optimizer, random state, log and progress to one file."""
        tensors = {f"module.{k}": v for k, v in self.module.state_dict().items()}
        state = self.optimizer.state_dict()
        for index, slots in state["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        metadata = {"progress": self.progress, "rows": self.rows, "groups": state["param_groups"]}
        save_tensors(self.out / LAST, tensors, metadata)

    def _load_last(self) -> None:
        """Restores the state that `_save_last` wrote."""
        tensors, metadata = load_tensors(self.out / LAST)
        weights = {k.removeprefix("module."): v for k, v in tensors.items() if k[:7] == "module."}
        load_strict(self.module, weights, str(self.out / LAST))
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                slots.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({"state": slots, "param_groups": metadata["groups"]})
        for weight, moments in self.optimizer.state.items():
            for name, value in moments.items():  # fused steps need the weights' memory layout
                if value.shape == weight.shape and value.stride() != weight.stride():
                    moments[name] = torch.empty_like(weight).copy_(value)
        torch.set_rng_state(tensors["random.cpu"])
        if torch.cuda.is_available() and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
        self.rows = metadata["rows"]
        self.progress |= metadata["progress"]


def parameter_groups(weights: Iterable[nn.Parameter], share: float = 1.0) -> list[dict[str, Any]]:
    """Returns AdamW's groups at a `share` of the base rate; only matrices have weight decay."""
    weights = list(weights)
    matrices = [weight for weight in weights if weight.ndim > 1]
    others = [weight for weight in weights if weight.ndim <= 1]
    groups = {"params": matrices}, {"params": others, "weight_decay": 0.0}
    return [{**group, "share": share} for group in groups if group["params"]]
