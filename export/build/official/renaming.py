"""Strict renaming of released weights: nothing is dropped and nothing is missing in silence.

A table maps beginnings of the release's keys to beginnings of our names, or to None for weights
that the published forward pass never reads. A "*" stands for a number and is carried over. The
first beginning that fits counts; the rest of a key stays as it is. Two keys may have one name where
a release stores a weight twice.
"""

import re
from collections.abc import Mapping

from torch import nn

from export.build.official.checkpoint import Checkpoint, OfficialError, State

Table = Mapping[str, str | None]
# Counters that batch-norms keep for training alone; releases differ in whether they are stored.
_COUNTER = "num_batches_tracked"


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
