"""The training loop: epochs, steps, learning rate; run folders with settings, log, checkpoints.

Subclasses define modules, batches and losses: `training/loop/trainer.py` (methods),
`training/pretrain.py` and `training/distill.py` (image encoders).
"""

import csv
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import tomlkit
import torch
from torch import Tensor, nn
from tqdm import tqdm

from polyview.export.sessions import hardware
from polyview.models.checkpoint import load_strict, load_tensors, save_tensors
from polyview.models.files import replacing, write_whole
from polyview.training.loop.config import BackboneConfig, TrainConfig
from polyview.training.settings import Settings, to_values

BEST, LAST, CONFIG = "best.safetensors", "last.safetensors", "config.toml"
TOKENIZER, LOG = "tokenizer.json", "log.csv"

C = TypeVar("C", bound=TrainConfig | BackboneConfig)
B = TypeVar("B")


class Loop(ABC, Generic[C, B]):
    """One training: `__init__` chooses the device and seeds, `start` receives the modules.

    Attributes:
        best_by: the validation metric to maximise.
        digits: digits of validation metrics in the log.
        progress: the state in a checkpoint besides weights and optimiser; epochs count from 0.
    """

    best_by: ClassVar[str]
    digits: ClassVar[int] = 2

    def __init__(self, config: C) -> None:
        self.config = config
        self.device = device_for(config.precision)
        torch.manual_seed(config.seed)

    def start(
        self,
        module: nn.Module,
        out: Path,
        *,
        items: int,
        resume: bool,
        groups: list[dict[str, Any]] | None = None,
        fused: bool = True,
    ) -> bool:
        """Sets the modules to train, and restores the run in `out` on request.

        Args:
            module: all weights, on the device.
            out: run folder.
            items: number of captions or images in an epoch.
            resume: restore; on a CPU the final weights equal those of an uninterrupted run bit for
                bit.
            groups: from `parameter_groups`, with `share` of the base rate; None for all of
                `module`.
            fused: let the optimiser update all weights in one kernel.

        Returns:
            Whether a run was restored.

        Raises:
            FileExistsError, ValueError: see `RunFolder`; or an epoch has no step.
        """
        config, plan = self.config, self.config.optimizer
        self.steps = steps_in_epoch(items, config.batch_size)
        self.module = module
        self.optimizer = torch.optim.AdamW(
            groups or parameter_groups(module.parameters()),
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            amsgrad=plan.amsgrad,
            fused=fused or None,
        )
        self.run = RunFolder(out, config, resume=resume)
        loaded = self.run.load_last(module, self.optimizer)
        self.progress: dict[str, Any] = {"epoch": 0, "step": 0, "best": -1.0, "best_epoch": 0}
        self.progress |= {"drops": [], **(loaded or {})}
        return loaded is not None

    @abstractmethod
    def batches(self, epoch: int) -> Iterable[B]:
        """The batches of an epoch, which depend only on the seed and the epoch."""

    @abstractmethod
    def losses(self, batch: B, epoch: int) -> dict[str, Tensor]:
        """The terms of a batch's loss, which is their sum."""

    @abstractmethod
    def validate(self, epoch: int) -> dict[str, float]:
        """Metrics on the validation split; empty for an epoch without validation."""

    @abstractmethod
    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weights to save after the best epoch, and their description."""

    def is_better(self, metrics: dict[str, float]) -> bool:
        """Whether an epoch's metrics are the best so far."""
        return metrics.get(self.best_by, -math.inf) > self.progress["best"]

    def stop_reason(self, epoch: int) -> str:  # noqa: ARG002
        """Why training ends before this epoch; empty to continue."""
        return ""

    def after_step(self) -> None:
        """Called after each update of the weights; does nothing by default."""

    def fit(self) -> dict[str, float]:
        """Trains to the end, with a checkpoint after each epoch; returns the best metrics.

        Raises:
            ValueError: the loss is no longer finite.
            DiskFullError: the disk has no space left for a log or checkpoint.
        """
        epochs = self.config.epochs
        if self.progress["epoch"] == epochs:
            line = f"all {epochs} epochs of {self.run.path} are done; train more with --set"
            print(f"{line} epochs={2 * epochs}", file=sys.stderr)
        for epoch in range(self.progress["epoch"], epochs):
            if reason := self.stop_reason(epoch):
                print(reason, file=sys.stderr)
                break
            began = time.perf_counter()
            terms = self._epoch(epoch)
            if not math.isfinite(terms["loss"]):
                raise ValueError("the loss is not finite; lower the learning rate")
            metrics = self.validate(epoch)
            self._finish_epoch(epoch, terms, metrics, time.perf_counter() - began)
        return self.progress.get("metrics", {})

    def autocast(self) -> torch.autocast:
        """The context of a forward pass in the configured precision."""
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def _epoch(self, epoch: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        rate = 0.0
        self.module.train()
        title = f"{self.run.path.name} epoch {epoch + 1}/{self.config.epochs}"
        for batch in tqdm(self.batches(epoch), desc=title, total=self.steps, mininterval=2):
            rate = self._set_rate(epoch)
            for name, value in self.step(batch, epoch).items():
                totals[name] = totals.get(name, 0.0) + value / self.steps
        return {"rate": rate, **{name: round(value, 5) for name, value in totals.items()}}

    def step(self, batch: B, epoch: int) -> dict[str, float]:
        """Learns from a batch; returns the loss, its terms and the gradient's norm."""
        terms = self.losses(batch, epoch)
        loss = torch.stack(list(terms.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        largest = self.config.optimizer.clip_norm
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), largest)
        self.optimizer.step()
        self.after_step()
        self.progress["step"] += 1
        values = {name: value.item() for name, value in terms.items()}
        return {"loss": loss.item(), **values, "grad_norm": norm.item()}

    def _set_rate(self, epoch: int) -> float:
        plan, step = self.config.optimizer, self.progress["step"]
        rate = plan.learning_rate * min(1.0, (step + 1) / max(1, plan.warmup_steps))
        if plan.schedule == "cosine":
            rate *= 0.5 * (
                1 + math.cos(math.pi * min(1.0, step / (self.steps * self.config.epochs)))
            )
        elif plan.schedule == "plateau":
            rate *= plan.decay ** len(self.progress["drops"])
        else:
            rate *= plan.decay ** sum(epoch >= e for e in plan.decay_epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        return rate

    def _finish_epoch(
        self, epoch: int, terms: dict[str, float], metrics: dict[str, float], seconds: float
    ) -> None:
        """Logs and prints an epoch, and saves the checkpoint and the best weights."""
        better = self.is_better(metrics)
        self.progress["epoch"] = epoch + 1
        if better:
            reached = metrics.get(self.best_by, self.progress["best"])
            self.progress |= {"best": reached, "best_epoch": epoch, "metrics": metrics}
        last = max([self.progress["best_epoch"], *self.progress["drops"]])
        if epoch - last > self.config.optimizer.plateau_epochs:
            self.progress["drops"].append(epoch)  # for the schedule "plateau"
        rounded = {name: round(value, self.digits) for name, value in metrics.items()}
        row = {"epoch": epoch + 1, **terms, **rounded, "seconds": round(seconds, 1)}
        self.run.rows.append(row)
        write_rows(self.run.path / LOG, self.run.rows)
        line = f"epoch {epoch + 1}/{self.config.epochs}: loss {terms['loss']:.3f}"
        if self.best_by in rounded:
            line += f", val {self.best_by} {rounded[self.best_by]}"
        if remaining := self.config.epochs - epoch - 1:
            line += f", {tqdm.format_interval(remaining * seconds)} left"
        print(line, file=sys.stderr)
        if better:
            tensors, metadata = self.checkpoint()
            metadata |= {"config": to_values(self.config), "metrics": {"val": metrics}}
            metadata |= {"epoch": epoch + 1, "hardware": hardware()}
            save_tensors(self.run.path / BEST, tensors, metadata)
        self.run.save_last(self.module, self.optimizer, self.progress)


def check_pace(config: TrainConfig | BackboneConfig, items: int) -> None:
    """Raises ValueError if an epoch has no step or the warm-up is as long as the run."""
    each = steps_in_epoch(items, config.batch_size)
    steps, warmup = each * config.epochs, config.optimizer.warmup_steps
    if warmup and warmup >= steps:
        prefix = "optimizer." if isinstance(config, TrainConfig) else ""
        raise ValueError(
            f"{prefix}warmup_steps is {warmup}, but the whole run has {steps} steps "
            f"({config.epochs} x {each}), so that the rate would never reach learning_rate; lower "
            f"it: --set {prefix}warmup_steps={steps // 10}"
        )


def parameter_groups(
    parameters: Iterable[nn.Parameter], share: float = 1.0
) -> list[dict[str, Any]]:
    """AdamW's groups: matrices decay; biases, norms and learned temperatures (1-d, scalars) do not.

    Args:
        parameters: to train.
        share: share of the base rate.
    """
    decaying: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        decaying[parameter.ndim > 1].append(parameter)
    fixed: dict[bool, dict[str, float]] = {True: {}, False: {"weight_decay": 0.0}}
    return [
        {"params": params, "share": share, **fixed[decays]}
        for decays, params in decaying.items()
        if params
    ]


def steps_in_epoch(items: int, batch_size: int) -> int:
    """The number of whole batches; raises ValueError if there is none."""
    if items < batch_size:
        raise ValueError(
            f"batch_size {batch_size} is more than the {items} items to train on; lower it: "
            f"--set batch_size={items}"
        )
    return items // batch_size


def device_for(precision: str) -> torch.device:
    """The device of a training; raises ValueError if it does not support the precision."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if precision == "bf16" and not computes_in_bf16():
        raise ValueError(
            'precision "bf16" takes ten times as long as fp32 on this processor, which has no '
            "instructions for it (avx512_bf16 or Arm's bf16); set precision=fp32"
        )
    return torch.device("cpu")


def computes_in_bf16() -> bool:
    """Whether this machine's processor has instructions that multiply in bf16."""
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("bf16"))


class RunFolder:
    """A training run on disk; the folder is created if missing; `rows` are those of its log.

    Raises:
        FileExistsError: the folder holds a run and `resume` is off.
        ValueError: `resume` is on and the folder's run has other settings; only `epochs` and
            `patience` may be raised.
        OSError: the folder cannot be made or written.
    """

    def __init__(self, path: Path, config: Settings, *, resume: bool) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"cannot make the run folder {path}: {error.strerror}; name another --out"
            ) from error
        if (path / LOG).is_file():
            if not resume:
                raise FileExistsError(
                    f"{path} already holds a run; add --resume to continue it, or name another "
                    "folder"
                )
            self._check_settings(to_values(config))
        write_whole(path / CONFIG, tomlkit.dumps(to_values(config)))

    def _check_settings(self, values: dict[str, Any]) -> None:
        before = tomlkit.parse((self.path / CONFIG).read_text("utf-8")).unwrap()
        for name in sorted(values):
            value, former = values[name], before.get(name)
            if value != former and not (name in ("epochs", "patience") and value > (former or 0)):
                raise ValueError(
                    f'cannot resume {self.path}: its "{name}" is {former!r}, not {value!r}; leave '
                    "it out (--resume reads the settings of the run; epochs and patience may be "
                    "raised), or name another folder"
                )

    def save_last(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
    ) -> None:
        """Writes weights, optimizer, random state, log and progress in one atomic file."""
        tensors = {f"module.{k}": v for k, v in module.state_dict().items()}
        state = optimizer.state_dict()
        for index, slots in state["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        metadata = {"progress": progress, "rows": self.rows, "groups": state["param_groups"]}
        save_tensors(self.path / LAST, tensors, metadata)

    def load_last(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any] | None:
        """Restores the checkpoint that `save_last` wrote.

        Returns:
            The progress, or None without a checkpoint.
        """
        if not (self.path / LAST).is_file():
            return None
        tensors, metadata = load_tensors(self.path / LAST)
        weights = {k.removeprefix("module."): v for k, v in tensors.items() if k[:7] == "module."}
        load_strict(module, weights, str(self.path / LAST))
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                slots.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({"state": slots, "param_groups": metadata["groups"]})
        for weight, moments in optimizer.state.items():
            for name, value in moments.items():  # fused steps need the weights' memory layout
                if value.shape == weight.shape and value.stride() != weight.stride():
                    moments[name] = torch.empty_like(weight).copy_(value)
        torch.set_rng_state(tensors["random.cpu"])
        if torch.cuda.is_available() and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
        self.rows = metadata["rows"]
        return dict(metadata["progress"])


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file atomically; rows may lack columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a CSV file; missing values are empty texts."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
