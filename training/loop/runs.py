"""Run folders: settings, logs, and checkpoints from which a run resumes bit for bit.

`log.csv` has a row for each epoch; epochs count from 1.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
import torch
from torch import Tensor, nn

from polyview.models.checkpoint import load_strict, load_tensors, save_tensors
from polyview.models.files import replacing, write_whole
from polyview.training.settings import Settings, to_values

BEST, LAST, CONFIG = "best.safetensors", "last.safetensors", "config.toml"
TOKENIZER, LOG = "tokenizer.json", "log.csv"


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
        if (path / LAST).is_file():
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
        """Writes weights, optimiser, random state, log and progress in one atomic file."""
        tensors = {f"module.{k}": v for k, v in module.state_dict().items()}
        state = optimizer.state_dict()
        for index, slots in state["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        about = {"progress": progress, "rows": self.rows, "groups": state["param_groups"]}
        save_tensors(self.path / LAST, tensors, about)

    def load_last(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any] | None:
        """Restores the checkpoint that `save_last` wrote.

        Returns:
            The progress, or None without a checkpoint.
        """
        if not (self.path / LAST).is_file():
            return None
        tensors, about = load_tensors(self.path / LAST)
        load_strict(module, part_of(tensors, "module."), str(self.path / LAST))
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in part_of(tensors, "optimizer.").items():
            index, name = key.split(".", 1)
            slots.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({"state": slots, "param_groups": about["groups"]})
        for weight, moments in optimizer.state.items():
            for name, value in moments.items():  # fused steps need the weights' memory layout
                if value.shape == weight.shape and value.stride() != weight.stride():
                    moments[name] = torch.empty_like(weight).copy_(value)
        torch.set_rng_state(tensors["random.cpu"])
        if torch.cuda.is_available() and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
        self.rows = about["rows"]
        return about["progress"]


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, which is removed."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


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
