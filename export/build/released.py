"""Reads the authors' released checkpoints; `releases.toml` maps the names of their weights to ours.

A checkpoint is a dictionary with options under `opt` or `args` and weights under `model`, or only
the weights. Weights are one dictionary of tensors, or a list of two, for images and texts.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from polyview.export.hub.client import HubError, Repo, inspect_repo, is_hub_id
from polyview.export.pack.validation import OPEN, check
from polyview.models.checkpoint import load_strict
from polyview.models.files import not_found_error, sha256_of

BERT_ID = "google-bert/bert-base-uncased"  # source of the word pieces of VSE-infinity and AVSE
BERT_FILES = ("config.json", "tokenizer.json", "vocab.txt")
_SUFFIXES = (".pth", ".pth.tar", ".pt", ".ckpt", ".tar", ".bin")
_BEST = "model_best"  # prefix of the file name of the best epoch's checkpoint, in every release
_COUNTER = "num_batches_tracked"  # a counter of batch norms; eval mode does not use it


@dataclass(frozen=True, config=OPEN)
class Options:
    """The training options that change a released model, and the defaults of missing options."""

    no_imgnorm: bool = False
    no_txtnorm: bool = False
    backbone_source: str = ""
    input_scale_factor: float = 1.0
    legacy: bool = False
    order: bool = False
    crop_size: int = 224
    img_res: int = 224


class Release(NamedTuple):
    """The description of a release in `releases.toml`."""

    names: dict[str, str]  # released prefix -> our prefix; "-" for unused weights
    code: str  # address and licence of its code
    not_stored: str  # values that its checkpoints do not store, and the values used instead
    options: Sequence[str] = ()  # command-line options for this release only


def read_releases() -> dict[str, Release]:
    """Reads `releases.toml`, and expands "text.@words" and the like; returns method -> release."""
    content = tomllib.loads(Path(__file__).with_name("releases.toml").read_text("utf-8"))
    parts, releases = content.pop("parts"), {}
    for method, entry in content.items():
        names = dict[str, str]()
        for released_prefix, our_prefix in entry.pop("weights").items():
            start, _, group = our_prefix.partition("@")
            for old, new in (parts[group] if group else {"": ""}).items():
                names[released_prefix + old] = new if new == "-" else start + new
        releases[method] = Release(names, **entry)
    return releases


def rename_weight(key: str, names: Mapping[str, str]) -> str | None:
    """Returns our name for a released weight, "-" if it is unused, None if no prefix matches."""
    for released_prefix, our_prefix in names.items():  # "*" in a prefix stands for a number
        if match := re.match(re.escape(released_prefix).replace(r"\*", r"(\d+)"), key):
            prefix = our_prefix.replace("*", "".join(match.groups()))
            return prefix if prefix == "-" else prefix + key[match.end() :]
    return None


@plain_dataclass(frozen=True)
class Checkpoint:
    """A released checkpoint."""

    path: Path
    state: dict[str, Tensor]  # the weights under our names
    options: Options
    details: dict[str, Any]  # JSON-ready: SHA-256, options, other values such as `epoch`

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a weight; raises ValueError if the weight is missing."""
        if name not in self.state:
            raise ValueError(f"{self.path} lacks {name}; check --from")
        return tuple(self.state[name].shape)

    def count(self, start: str) -> int:
        """Counts the distinct indices that follow the prefix `start` in the names of weights."""
        pattern = re.compile(re.escape(start) + r"(\d+)\.")
        return len({match[1] for name in self.state if (match := pattern.match(name))})

    def load_into(self, module: nn.Module) -> None:
        """Loads all weights into a module; puts the module in eval mode, without gradients."""
        # keeps the module's batch counters, because some releases lack counters
        counters = {k: v for k, v in module.state_dict().items() if k.endswith(_COUNTER)}
        try:
            load_strict(module, counters | self.state, str(self.path))
        except ValueError as error:
            advice = "check --from, and that config.json describes the checkpoint's BERT or ViT"
            raise ValueError(f"{error}; {advice}") from error
        module.eval().requires_grad_(False)


def read_checkpoint(path: Path, names: Mapping[str, str]) -> Checkpoint:
    """Reads a checkpoint; raises ValueError if its weights do not fit `names`, see `Release`."""
    if not path.is_file():
        raise not_found_error("checkpoint", path, "name the released file, or use --hub")
    content, state = _load(path), dict[str, Tensor]()
    model, options, stored = content, dict[str, Any](), dict[str, Any]()
    if isinstance(content, Mapping) and "model" in content:
        options = content.get("opt", content.get("args", {}))
        options = _to_json(vars(options) if isinstance(options, argparse.Namespace) else options)
        model, stored = content["model"], _to_json(content)
    for key, value in _stored_weights(model, path).items():
        name = rename_weight(key, names)
        if name is None:
            raise ValueError(f"{path} holds {key}, which this release does not have; check --from")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{path}: {key} holds NaN or infinity; download the file again")
        if name == "-" or name.endswith(_COUNTER):
            continue
        if not state.setdefault(name, value).equal(value):  # a release may store a weight twice
            raise ValueError(f"{path}: {key} and another copy of {name} differ; check --from")
    details = {"sha256": sha256_of(path), "options": options, "stored": stored}
    return Checkpoint(path, state, check(Options, options, f"{path}: options"), details)


def _stored_weights(model: Any, path: Path) -> dict[str, Tensor]:
    """Returns weights by the release's names, without `DataParallel`'s prefix `module.`."""
    is_pair, weights = isinstance(model, list | tuple), dict[str, Tensor]()
    for side, state in enumerate(model if is_pair else [model]):
        is_state = isinstance(state, Mapping) and all(isinstance(v, Tensor) for v in state.values())
        if not state or not is_state:
            raise ValueError(f"{path} holds no dictionary of tensors; name a released checkpoint")
        start = f"model[{side}]." if is_pair else ""
        wrapper = "module." if all(key.startswith("module.") for key in state) else ""
        weights |= {start + key.removeprefix(wrapper): value for key, value in state.items()}
    return weights


def _to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the values that are JSON scalars or lists of JSON scalars."""
    scalar = str | int | float | None
    lists = {key: value if isinstance(value, list) else [value] for key, value in values.items()}
    return {k: values[k] for k, v in lists.items() if all(isinstance(item, scalar) for item in v)}


def _load(path: Path) -> Any:
    """Reads a file with `torch.load`; raises ValueError if it is damaged or could run code."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # the errors of torch's readers and of its unpickler have no common base class
        if match := re.search(r"GLOBAL ([\w.]+)", str(error)):
            fault = f"{path} needs the Python object {match[1]} to load, which can run code"
            advice = "if you trust it, save its weights again as plain tensors"
            raise ValueError(f"{fault}; {advice}") from error
        reason = re.split(r"\. |\n", str(error).strip() or type(error).__name__)[0]
        message = f"{path} is not a complete PyTorch checkpoint ({reason}); download it again"
        raise ValueError(message) from error


def find_checkpoint(address: str) -> Repo:
    """Finds the one checkpoint at `owner/name/FILE_OR_FOLDER[@REVISION]`, or raises HubError."""
    path, separator, revision = address.partition("@")
    owner, name, *inner_path = [*filter(None, path.split("/")), "", ""]
    repository, prefix = f"{owner}/{name}{separator}{revision}", "/".join(filter(None, inner_path))
    if not is_hub_id(repository):
        raise HubError(f'--hub takes owner/name/FOLDER_OR_FILE[@REVISION], not "{address}"')
    repo = inspect_repo(repository)
    checkpoints = sorted(name for name in repo.files if name.endswith(_SUFFIXES))
    candidates = [file for file in checkpoints if f"{file}/".startswith(prefix and f"{prefix}/")]
    matches = [file for file in candidates if Path(file).name.startswith(_BEST)] or candidates
    if len(matches) != 1:
        fault = f"{len(matches) or 'no'} checkpoints under {prefix or repository}"
        names = ", ".join(matches or checkpoints) or "another repository"
        raise HubError(f"there are {fault}; name one of {names}")
    return repo.select(matches)
