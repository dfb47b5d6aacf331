"""Strict renaming of released weights: nothing is dropped and nothing is missing in silence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from export.build.official.checkpoint import OfficialError, State


@dataclass(frozen=True)
class Table:
    """What each stored key is called here.

    Attributes:
        names: beginnings of their keys -> beginnings of our names; a "*" stands for a number and is
            carried over. The first that fits counts. The rest of a key stays as it is, and strict
            loading then finds what does not exist.
        unused: keys that the published forward pass never reads, whole or, ending in ".", as
            beginnings; "*" stands for a number.
    """

    names: Mapping[str, str]
    unused: tuple[str, ...] = ()

    def under(self, theirs: str, ours: str = "") -> Table:
        """The same table for keys behind a prefix of theirs, and names behind one of ours."""
        return Table(
            {theirs + key: ours + name for key, name in self.names.items()},
            tuple(theirs + key for key in self.unused),
        )

    def __or__(self, other: Table) -> Table:
        """Both tables."""
        return Table({**self.names, **other.names}, (*self.unused, *other.unused))

    def rename(self, key: str) -> str | None:
        """Our name of a key; None for one that is never read.

        Raises:
            KeyError: the table does not know it.
        """
        for pattern in self.unused:
            end = "" if pattern.endswith(".") else r"\Z"
            if re.match(_expression(pattern) + end, key):
                return None
        for theirs, ours in self.names.items():
            match = re.match(_expression(theirs), key)
            if match is not None:
                return _filled(ours, match.groups()) + key[match.end() :]
        raise KeyError(key)

    def original(self, name: str) -> str:
        """What the release calls a name of ours, for messages."""
        for theirs, ours in self.names.items():
            match = re.match(_expression(ours), name)
            if match is not None:
                return _filled(theirs, match.groups()) + name[match.end() :]
        return name


# Counters that batch-norms keep for training alone; releases differ in whether they are stored.
COUNTER = "num_batches_tracked"


def load_renamed(modules: Mapping[str, nn.Module], state: State, table: Table, source: str) -> None:
    """Fills modules with released weights.

    Args:
        modules: by the name that begins the names of their weights in the table ("method.", ...).
        state: the released weights.
        table: what their keys are called here.
        source: where they are from, for messages.

    Raises:
        OfficialError: names the first key that is unknown, missing or of another shape.
    """
    needed = {
        f"{name}{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }
    given = _renamed(state, table, needed, source)
    for name in needed:
        if name not in given and not name.endswith(COUNTER):
            raise OfficialError(f"{source} lacks {table.original(name)}")
    for name, module in modules.items():
        own = {k.removeprefix(name): v for k, v in given.items() if k.startswith(name)}
        counters = {k: v for k, v in module.state_dict().items() if k.endswith(COUNTER)}
        module.load_state_dict({**counters, **own}, strict=True)
        module.eval().requires_grad_(False)


def _renamed(state: State, table: Table, needed: State, source: str) -> State:
    given: State = {}
    for key, tensor in state.items():
        try:
            name = table.rename(key)
        except KeyError:
            raise OfficialError(
                f"{source} holds {key}, which this release is not known to have; nothing was "
                "converted"
            ) from None
        if name is None or name.endswith(COUNTER):
            continue
        if name not in needed:
            raise OfficialError(f"{source} holds {key}, but the model it describes has no {name}")
        if name in given:
            raise OfficialError(f"{source} holds {name} twice, once as {key}")
        if tensor.shape != needed[name].shape:
            raise OfficialError(
                f"{source}: {key} has shape {tuple(tensor.shape)}, but the model that its other "
                f"weights describe needs {tuple(needed[name].shape)}"
            )
        given[name] = tensor.float() if tensor.is_floating_point() else tensor
    return given


def shape_of(state: State, key: str, source: str, dims: int = 2) -> tuple[int, ...]:
    """The shape of a weight that sizes are read from.

    Raises:
        OfficialError: it is missing, or has another number of dimensions.
    """
    if key not in state:
        raise OfficialError(f"{source} lacks {key}")
    shape = tuple(state[key].shape)
    if len(shape) != dims:
        raise OfficialError(f"{source}: {key} has shape {shape} instead of {dims} dimensions")
    return shape


def drop_copy(state: State, copies: Mapping[str, str], source: str) -> State:
    """Takes away the second copies of weights that are stored twice.

    Args:
        state: the released weights.
        copies: beginnings of the copies' keys -> beginnings of the originals'.
        source: where they are from, for messages.

    Raises:
        OfficialError: one of the two is missing, or they differ.
    """
    for start, original in copies.items():
        for key in state:
            copy = start + key.removeprefix(original)
            if key.startswith(original) and copy not in state:
                raise OfficialError(f"{source} holds {key}, but lacks {copy}, its other copy")
    single: State = {}
    for key, tensor in state.items():
        start = next((start for start in copies if key.startswith(start)), "")
        if not start:
            single[key] = tensor
            continue
        original = copies[start] + key.removeprefix(start)
        if original not in state:
            raise OfficialError(f"{source} holds {key}, but lacks {original}, its other copy")
        if not _equal(tensor, state[original]):
            raise OfficialError(
                f"{source}: {key} and {original} should be two copies of one weight, but differ"
            )
    return single


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _expression(pattern: str) -> str:
    return r"(\d+)".join(re.escape(part) for part in pattern.split("*"))


def _filled(pattern: str, numbers: tuple[str, ...]) -> str:
    parts = pattern.split("*")
    return "".join(a + b for a, b in zip(parts, (*numbers, ""), strict=True))
