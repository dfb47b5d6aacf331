"""Run folders: the log, and checkpoints that hold everything a run needs to go on bit for bit."""

from pathlib import Path
from typing import Any

import tomlkit
import torch
from torch import Tensor, nn

from models.checkpoint import load_strict, load_tensors, save_tensors
from models.files import write_whole
from models.preprocess import Preprocess
from training.loop.config import BackboneConfig
from training.loop.logs import LOG, from_one, write_rows
from training.settings import Settings, from_values, to_values

BEST, LAST, CONFIG = "best.safetensors", "last.safetensors", "config.toml"
TOKENIZER = "tokenizer.json"


class RunFolder:
    """One training run on disk.

    Args:
        path: the folder; made if missing.
        config: the run's settings.
        resume: go on with what is there; otherwise a folder that holds a run is refused.

    Raises:
        FileExistsError: the folder holds a run and `resume` is off.
        ValueError: `resume` is on and the folder's run has another configuration.
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
        started = (path / LAST).is_file()
        if started and not resume:
            raise FileExistsError(
                f"{path} holds a run already; add --resume to go on with it, or name another folder"
            )
        if started:
            written = tomlkit.parse((path / CONFIG).read_text("utf-8")).unwrap()
            # read as settings: by an earlier version, names were others and some were missing
            before = to_values(from_values(type(config), written))
            now = to_values(config)
            changed = sorted(name for name in now if now[name] != before[name])
            if changed:
                raise ValueError(
                    f'cannot resume {path}: "{changed[0]}" was {before[changed[0]]!r} there '
                    f"and is {now[changed[0]]!r} now; leave it out, as --resume reads the settings "
                    "of the run, or name another folder"
                )
        write_whole(path / CONFIG, tomlkit.dumps(to_values(config)))

    def log(self, row: dict[str, Any]) -> None:
        """Adds a row to the CSV log, which is rewritten whole and so never ends in half a row."""
        self.rows.append(row)
        write_rows(self.path / LOG, self.rows)

    def save_best(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Replaces the best weights."""
        save_tensors(self.path / BEST, tensors, about)

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
        """Restores what `save_last` wrote.

        Returns:
            The progress, or None when there is nothing to go on with.
        """
        if not (self.path / LAST).is_file():
            return None
        tensors, about = load_tensors(self.path / LAST)
        weights = {
            k.removeprefix("module."): v for k, v in tensors.items() if k.startswith("module.")
        }
        load_strict(module, weights, str(self.path / LAST))
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                slots.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({"state": slots, "param_groups": about["groups"]})
        _lay_out_as_weights(optimizer)
        torch.set_rng_state(tensors["random.cpu"])
        if torch.cuda.is_available() and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
        self.rows = from_one(about["rows"])
        return about["progress"]


def _lay_out_as_weights(optimizer: torch.optim.Optimizer) -> None:
    """Gives moments the memory layout of their weights (channels last), as fused steps need it."""
    for weight, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                slots[name] = torch.empty_like(weight).copy_(value)


def describe_backbone(
    config: BackboneConfig, preprocess: Preprocess, data: dict[str, Any]
) -> dict[str, Any]:
    """What the weights of a SceneNet are, as `export/hub/sources.py` reads it.

    Args:
        config: what it was trained with.
        preprocess: how it is shown images.
        data: what it learned from, see `training.data.open_split.describe_data`.
    """
    return {
        "kind": "image_backbone",
        "arch": "scene_net",
        "arguments": {"widths": list(config.widths), "blocks": list(config.blocks)},
        "preprocess": preprocess.to_json(),
        "data": data,
    }
