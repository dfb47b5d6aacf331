"""Reading a released checkpoint: tensors and plain options, nothing that could run.

Two containers (zip, and the older one of torch before 1.6) and two shapes occur: a dictionary with
options under `opt` or `args` and weights under `model`, or the bare weights. Weights are one
dictionary of tensors, or a list of two, image side and text side.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from export.pack.writing import describe_file

_NAMESPACE = "argparse.Namespace"
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_PREFIX = "module."  # of weights that were saved from several GPUs

State = dict[str, Tensor]
V = TypeVar("V")


class OfficialError(ValueError):
    """A checkpoint, or what must come with it, cannot be used; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A released checkpoint.

    Attributes:
        path: its file.
        sha256: of the file.
        parts: the weights, one dictionary or two (image side, text side), without the prefix
            `module.` that several GPUs leave.
        options: the options it was trained with; empty where they were not stored.
        stored: the other plain values, such as `epoch`.
    """

    path: Path
    sha256: str
    parts: tuple[State, ...]
    options: dict[str, Any]
    stored: dict[str, Any]

    def option(self, name: str, default: V) -> V:
        """An option's value, or the default where options were not stored.

        Raises:
            OfficialError: its value is of another type than the default's.
        """
        value = self.options.get(name, default)
        if type(value) is not type(default):
            raise OfficialError(
                f"{self.path}: its option {name} is {value!r}, but a value like {default!r} is "
                "expected"
            )
        return value

    def number(self, name: str, default: float) -> float:
        """An option's value where whole numbers and others are alike; see `option`."""
        if type(self.options.get(name)) is int:
            return float(self.options[name])
        return self.option(name, default)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint with `torch.load(weights_only=True)`.

    `argparse.Namespace` is admitted for a file that needs it, and no other class.

    Raises:
        FileNotFoundError: there is no such file.
        OfficialError: it is not whole, needs another class, or holds no weights.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    content = _load(path)
    if not isinstance(content, (Mapping, list, tuple)):
        raise OfficialError(f"{path} holds a {type(content).__name__} instead of weights")
    options: Any = {}
    stored: dict[str, Any] = {}
    model: Any = content
    if isinstance(content, Mapping) and "model" in content:
        model = content["model"]
        options = content.get("opt", content.get("args", {}))
        stored = {
            key: value
            for key, value in content.items()
            if isinstance(value, (int, float, str)) and isinstance(key, str)
        }
    named = vars(options) if isinstance(options, argparse.Namespace) else options
    parts = tuple(model) if isinstance(model, (list, tuple)) else (model,)
    if len(parts) not in (1, 2):
        raise OfficialError(f"{path} holds {len(parts)} sets of weights; there should be 1 or 2")
    return Checkpoint(
        path,
        describe_file(path).sha256,
        tuple(_state(part, path) for part in parts),
        dict(named) if isinstance(named, Mapping) else {},
        stored,
    )


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises whatever its readers and its unpickler meet, of no common class
        if _refused(error) != _NAMESPACE:
            raise _explain(path, error) from error
    with torch.serialization.safe_globals([argparse.Namespace]):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise _explain(path, error) from error


def _refused(error: Exception) -> str | None:
    """The name of the class that the restricted reader met and does not know."""
    match = _GLOBAL.search(str(error))
    return None if match is None else match[1]


def _explain(path: Path, error: Exception) -> OfficialError:
    refused = _refused(error)
    if refused is not None:
        return OfficialError(
            f"{path} needs the Python object {refused} to load; only tensors, plain values and "
            f"{_NAMESPACE} are read, because loading others can run code. Save its weights again "
            "as plain tensors where you trust it"
        )
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    return OfficialError(f"{path} is not a whole PyTorch checkpoint ({reason}); download it again")


def _state(part: Any, path: Path) -> State:
    if not isinstance(part, Mapping) or not part:
        raise OfficialError(f"{path} holds no weights: a dictionary of tensors was expected")
    state: State = {}
    for key, value in _entries(part):
        if not isinstance(value, Tensor):
            raise OfficialError(
                f"{path}: {key} is a {type(value).__name__}, but weights are tensors; is this a "
                "checkpoint of one of the releases?"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise OfficialError(f"{path}: {key} holds NaN or infinity; the file is damaged")
        state[key] = value
    return state


def _entries(part: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    wrapped = all(str(key).startswith(_PREFIX) for key in part)
    for key, value in part.items():
        yield str(key).removeprefix(_PREFIX) if wrapped else str(key), value
