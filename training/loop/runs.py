"""Run folders: the log, and checkpoints from which a run resumes bit for bit."""

from pathlib import Path
from typing import Any

import tomlkit
import torch
from torch import Tensor, nn

from models.checkpoint import load_strict, load_tensors, save_tensors
from models.files import write_whole
from models.preprocess import Preprocess
from training.loop.config import BackboneConfig
from training.loop.logs import LOG, write_rows
from training.settings import Settings, to_values

BEST, LAST, CONFIG = "best.safetensors", "last.safetensors", "config.toml"
TOKENIZER = "tokenizer.json"


class RunFolder:
    """One training run on disk.

    Args:
        path: the folder; made if missing.
        config: the run's settings.
        resume: continue the folder's run; otherwise a folder that holds a run is refused.

    Raises:
        FileExistsError: the folder holds a run and `resume` is off.
        ValueError: `resume` is on and the folder's run has other settings; `epochs` and `patience`
            may be raised.
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
            _check_settings(path, to_values(config))
        write_whole(path / CONFIG, tomlkit.dumps(to_values(config)))

    def log(self, row: dict[str, Any]) -> None:
        """Adds a row to the CSV log, which is rewritten so that it never ends in half a row."""
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
            The progress, or None where the folder holds no checkpoint.
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
        self.rows = about["rows"]
        return about["progress"]


def _check_settings(path: Path, values: dict[str, Any]) -> None:
    """Refuses to resume a run with other settings than its own, see `RunFolder`."""
    before = tomlkit.parse((path / CONFIG).read_text("utf-8")).unwrap()
    for name in sorted(values):
        value, former = values[name], before.get(name)
        if value != former and not (name in ("epochs", "patience") and value > (former or 0)):
            raise ValueError(
                f'cannot resume {path}: its "{name}" is {former!r}, not {value!r}; leave it out '
                "(--resume reads the settings of the run; epochs and patience may be raised), or "
                "name another folder"
            )


def _lay_out_as_weights(optimizer: torch.optim.Optimizer) -> None:
    """Gives moments the memory layout of their weights (channels last), as fused steps need it."""
    for weight, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                slots[name] = torch.empty_like(weight).copy_(value)


def describe_backbone(
    config: BackboneConfig, preprocess: Preprocess, data: dict[str, Any]
) -> dict[str, Any]:
    """The description of a SceneNet's weights, as `export/encoders/` reads it.

    Args:
        config: its training's settings.
        preprocess: how images are prepared for it.
        data: its training data, see `training.data.open_split.describe_data`.
    """
    return {
        "kind": "image_backbone",
        "arch": "scene_net",
        "arguments": {"widths": list(config.widths), "blocks": list(config.blocks)},
        "preprocess": preprocess.to_json(),
        "data": data,
    }
