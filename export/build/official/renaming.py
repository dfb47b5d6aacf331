"""Strict renaming of released weights: nothing is dropped and nothing is missing in silence.

A table maps beginnings of the release's keys to beginnings of our names, or to None for weights
that the published forward pass never reads. A "*" stands for a number and is carried over. The
first beginning that fits counts; the rest of a key stays as it is. Two keys may have one name where
a release stores a weight twice.
"""

import re
from collections.abc import Mapping

from torch import Tensor, nn

from export.build.official.checkpoint import Checkpoint, OfficialError, State

Table = Mapping[str, str | None]
# Counters that batch-norms keep for training alone; releases differ in whether they are stored.
_COUNTER = "num_batches_tracked"


def load_renamed(modules: Mapping[str, nn.Module], checkpoint: Checkpoint, table: Table) -> None:
    """Fills modules with released weights and switches them to evaluation.

    Args:
        modules: by the name that begins the names of their weights in the table ("method", ...).
        checkpoint: the released weights.
        table: what their keys are called here.

    Raises:
        OfficialError: names the first key that is unknown, missing, of another shape, or unlike its
            second copy.
    """
    source = checkpoint.path
    needed = {
        f"{name}.{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }
    loaded: State = {}
    for key, tensor in checkpoint.state.items():
        name = _our_name(key, table, source)
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
        value: Tensor = tensor.float() if tensor.is_floating_point() else tensor
        if name in loaded and not loaded[name].equal(value):
            raise OfficialError(f"{source}: {key} and another copy of {name} differ")
        loaded[name] = value
    for name, tensor in needed.items():
        if name.endswith(_COUNTER):
            loaded[name] = tensor
        elif name not in loaded:
            raise OfficialError(f"{source} lacks {_their_name(name, table)}")
    for name, module in modules.items():
        start = f"{name}."
        own = {k.removeprefix(start): v for k, v in loaded.items() if k.startswith(start)}
        module.load_state_dict(own, strict=True)
        module.eval().requires_grad_(False)


def _our_name(key: str, table: Table, source: object) -> str | None:
    for theirs, ours in table.items():
        if (rest := _exchange(key, theirs, ours or "")) is not None:
            return rest if ours is not None else None
    raise OfficialError(
        f"{source} holds {key}, which this release is not known to have; nothing was converted"
    )


def _their_name(name: str, table: Table) -> str:
    """What the release calls a name of ours, for messages."""
    for theirs, ours in table.items():
        if ours is not None and (key := _exchange(name, ours, theirs)) is not None:
            return key
    return name


def _exchange(name: str, start: str, other: str) -> str | None:
    """A name with another beginning; None where it does not begin with `start`.

    >>> _exchange("layer.11.out.bias", "layer.*.out.", "blocks.*.")
    'blocks.11.bias'
    """
    match = re.match(re.escape(start).replace(r"\*", r"(\d+)"), name)
    if match is None:
        return None
    return other.replace("*", "".join(match.groups())) + name[match.end() :]
