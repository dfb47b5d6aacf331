"""Settings: pydantic models, read from TOML and from the command line, strict about every value.

A setting is known by its dotted name, `optimizer.learning_rate`. Names that earlier versions used
go on working: `RENAMED` is the one table of them.
"""

import tomllib
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from export.pack.validation import STRICT, check

RENAMED = {
    "backbone_rate": "backbone_lr_scale",
    "captions_together": "captions_per_image",
    "objective.summed_epochs": "objective.warmup_epochs",
    "text.rate": "text.lr_scale",
}
"""Old dotted name -> new one."""


class Settings(BaseModel):
    """Named values of fixed types and ranges; other names and types are refused."""

    model_config = STRICT | ConfigDict(frozen=True)

    def changed(self, **values: Any) -> Self:
        """The same settings with other values, which are checked as all are."""
        return from_values(type(self), {**to_values(self), **values})


S = TypeVar("S", bound=Settings)


def from_values(kind: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Builds settings from nested dictionaries.

    Args:
        kind: which settings.
        values: as TOML or JSON holds them; old names are understood.
        where: what a refusal begins with, for example the recipe's name.

    Raises:
        ValueError: an unknown name or a value that does not fit; one sentence with name, value and
            what it must be.
    """
    return check(kind, with_new_names(values), where)


def to_values(settings: Settings) -> dict[str, Any]:
    """Settings as nested dictionaries of JSON and TOML types."""
    return settings.model_dump(mode="json")


def with_new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries in which every old name of `RENAMED` is replaced by the new one.

    >>> with_new_names({"backbone_rate": 0.1, "objective": {"summed_epochs": 2}})
    {'backbone_lr_scale': 0.1, 'objective': {'warmup_epochs': 2}}
    """
    return _renamed(values, RENAMED, "")


def with_old_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `with_new_names`, for what earlier versions named after settings."""
    return _renamed(values, {new: old for old, new in RENAMED.items()}, "")


def _renamed(values: Mapping[str, Any], table: Mapping[str, str], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        new = table.get(name, name).removeprefix(prefix)
        if new != key and new in values:
            raise ValueError(f'"{name}" and "{prefix}{new}" are one setting; leave the first out')
        found[new] = _renamed(value, table, f"{name}.") if isinstance(value, dict) else value
    return found


def apply_change(values: dict[str, Any], change: str) -> None:
    """Replaces one value of nested dictionaries, in place.

    Args:
        values: what a recipe holds, with new names.
        change: "dotted.name=value"; the value is read as TOML, else as plain text.

    Raises:
        ValueError: it is not of that form, or goes into a single value.
    """
    name, equals, text = change.partition("=")
    if not equals or not name.strip():
        raise ValueError(f'--set needs name=value, for example "epochs=3", not "{change}"')
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    name = RENAMED.get(name.strip(), name.strip())
    *parents, last = name.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ValueError(f'--set {name}: "{parent}" is a single value, not a group of settings')
    values[last] = value
