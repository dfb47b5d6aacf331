"""Reading a released checkpoint, tensors and plain options alone, and renaming its weights.

Two containers (zip, and the older one of torch before 1.6) and two shapes occur: a dictionary with
options under `opt` or `args` and weights under `model`, or the bare weights. Weights are one
dictionary of tensors, or a list of two, image side and text side.

A table of names maps beginnings of the release's keys to beginnings of our names, or to None for
weights that the published forward pass never reads. A "*" stands for a number and is carried over.
The first beginning that fits counts; the rest of a key stays as it is. Two keys may have one name
where a release stores a weight twice. Nothing is dropped and nothing is missing in silence.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from export.pack.validation import OPEN, check
from models.files import no_such, sha256_of

State = dict[str, Tensor]
Table = Mapping[str, str | None]
# Counters that batch-norms keep for training alone; releases differ in whether they are stored.
_COUNTER = "num_batches_tracked"


class OfficialError(ValueError):
    """A checkpoint, or what must come with it, cannot be used; the message says why."""


@dataclass(frozen=True, config=OPEN)
class Options:
    """The options of the releases that change their models; defaults where they are not stored."""

    no_imgnorm: bool = False
    no_txtnorm: bool = False
    backbone_source: str = ""
    input_scale_factor: float = 1.0
    legacy: bool | None = None
    order: bool = False
    crop_size: int = 224
    vit_type: str = ""
    img_res: int = 224


@plain_dataclass(frozen=True)
class Checkpoint:
    """A released checkpoint.

    Attributes:
        path: its file.
        state: the weights, without the prefix `module.` that several GPUs leave; where there are
            two dictionaries, their keys begin with `model[0].` (images) and `model[1].` (texts).
        options: those that change its model.
        about: JSON-ready: the file's SHA-256, all its plain options, and other plain values that
            are `stored`, such as `epoch`.
    """

    path: Path
    state: State
    options: Options
    about: dict[str, Any]

    def shape(self, key: str, axes: int = 2) -> tuple[int, ...]:
        """The shape of a weight that sizes are read from.

        Raises:
            OfficialError: it is missing, or has another number of axes.
        """
        if key not in self.state:
            raise OfficialError(f"{self.path} lacks {key}")
        shape = tuple(self.state[key].shape)
        if len(shape) != axes or 0 in shape:
            raise OfficialError(f"{self.path}: {key} has shape {shape}, not {axes} axes")
        return shape

    def count(self, pattern: str) -> int:
        """How many values the group of a regular expression takes at the start of the keys."""
        return len({match[1] for key in self.state if (match := re.match(pattern, key))})


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint with `torch.load(weights_only=True)`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not whole, needs a class other than `argparse.Namespace`, holds no
            weights, or an option of another type.
    """
    if not path.is_file():
        raise FileNotFoundError(no_such("checkpoint", path, "name the released file, or use --hub"))
    content = _load(path)
    options: Any = {}
    stored, model = {}, content
    if isinstance(content, Mapping) and "model" in content:
        model, options = content["model"], content.get("opt", content.get("args", {}))
        stored = {k: v for k, v in content.items() if _is_plain(v)}
    if isinstance(options, argparse.Namespace):
        options = vars(options)
    plain = {k: v for k, v in options.items() if _is_plain(v)}
    if not isinstance(model, list | tuple):
        state = _state(model, "", path)
    elif len(model) == 2:
        state = _state(model[0], "model[0].", path) | _state(model[1], "model[1].", path)
    else:
        raise OfficialError(f"{path} holds {len(model)} sets of weights; there should be 1 or 2")
    about = {"sha256": sha256_of(path), "options": plain, "stored": stored}
    return Checkpoint(path, state, check(Options, plain, f"{path}: options"), about)


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a value: a number, a text, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return all(isinstance(item, str | int | float | None) for item in values)


def _load(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises whatever its readers and its unpickler meet, of no common class
        if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise OfficialError(
                f"{path} needs the Python object {refused[1]} to load; only tensors, plain values "
                "and argparse.Namespace are read, because loading others can run code. Save its "
                "weights again as plain tensors where you trust it"
            ) from error
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise OfficialError(
            f"{path} is not a whole PyTorch checkpoint ({reason}); download it again"
        ) from error


def _state(part: Any, prefix: str, path: Path) -> State:
    """One dictionary of weights, their keys behind a prefix."""
    if not isinstance(part, Mapping) or not part:
        raise OfficialError(f"{path} holds no weights: a dictionary of tensors was expected")
    wrapped = "module." if all(str(key).startswith("module.") for key in part) else ""
    for key, value in part.items():
        if not isinstance(value, Tensor):
            raise OfficialError(
                f"{path}: {key} is a {type(value).__name__}, but weights are tensors; is this a "
                "checkpoint of one of the releases?"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise OfficialError(f"{path}: {key} holds NaN or infinity; the file is damaged")
    return {prefix + str(key).removeprefix(wrapped): value for key, value in part.items()}


def load_renamed(module: nn.Module, checkpoint: Checkpoint, table: Table) -> None:
    """Fills a module with released weights and switches it to evaluation.

    Raises:
        OfficialError: names the first key that is unknown, missing, of another shape, or unlike its
            second copy.
    """
    source, needed = checkpoint.path, module.state_dict()
    loaded: State = {name: value for name, value in needed.items() if name.endswith(_COUNTER)}
    for key, tensor in checkpoint.state.items():
        name = _our_name(key, table, checkpoint)
        if name is None or name.endswith(_COUNTER):
            continue
        if name not in needed:
            raise OfficialError(f"{source} holds {key}, but the model it describes has no {name}")
        if tensor.shape != needed[name].shape:
            raise OfficialError(
                f"{source}: {key} has shape {tuple(tensor.shape)}, but the model that its other "
                "weights, its options and the backbone's config.json describe needs "
                f"{tuple(needed[name].shape)}"
            )
        value = tensor.to(needed[name].dtype)
        if name in loaded and not loaded[name].equal(value):
            raise OfficialError(f"{source}: {key} and another copy of {name} differ")
        loaded[name] = value
    for name in needed:
        if name not in loaded:
            keys = (_exchange(name, ours, theirs) for theirs, ours in table.items() if ours)
            raise OfficialError(f"{source} lacks {next(filter(None, keys), name)}")
    module.load_state_dict(loaded, strict=True)
    module.eval().requires_grad_(False)


def _our_name(key: str, table: Table, checkpoint: Checkpoint) -> str | None:
    for theirs, ours in table.items():
        if (name := _exchange(key, theirs, ours or "")) is not None:
            return name if ours else None
    raise OfficialError(
        f"{checkpoint.path} holds {key}, which this release is not known to have; nothing was "
        "converted"
    )


def _exchange(name: str, start: str, other: str) -> str | None:
    """A name with another beginning; None where it does not begin with `start`.

    >>> _exchange("layer.11.out.bias", "layer.*.out.", "blocks.*.")
    'blocks.11.bias'
    """
    match = re.match(re.escape(start).replace(r"\*", r"(\d+)"), name)
    if match is None:
        return None
    return other.replace("*", "".join(match.groups())) + name[match.end() :]
