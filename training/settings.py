"""Strict pydantic settings, read from TOML files and the command line.

A setting is addressed by its dotted name, such as `optimizer.learning_rate`.
"""

import argparse
import difflib
import inspect
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict

from polyview.export.pack.validation import STRICT


class Settings(BaseModel):
    """Named settings with types and ranges; rejects unknown names."""

    model_config = STRICT | ConfigDict(frozen=True)


def apply_change(values: dict[str, Any], change: str) -> None:
    """Applies a change "dotted.name=value" to nested dictionaries, in place.

    The value is parsed as TOML; a value that is not TOML is a string. A new `method` also removes
    `arguments` and `objective`, which belong to the previous method. Raises ValueError if the
    change has another form, or a parent in the dotted name is not a table.
    """
    name, equals, text = (part.strip() for part in change.partition("="))
    if not equals or not name:
        raise ValueError(f'--set needs name=value, for example "epochs=3", not "{change}"')
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    if name == "method" and value != values.get("method"):
        values.pop("arguments", None)
        values.pop("objective", None)
    *parents, last = name.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ValueError(f'--set {name}: "{parent}" is a single value, not a group of settings')
    values[last] = value


def unknown_name_message(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns an error message that suggests the closest known name and lists all known names.

    >>> print(unknown_name_message("method", "psve", ["avse", "pvse"]))
    there is no method "psve"; did you mean "pvse"? Choose one of
      avse
      pvse
    """
    names = list(known)
    suggestions = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    hint = f'; did you mean "{suggestions[0]}"? Choose' if suggestions else "; choose"
    return "\n  ".join([f'there is no {kind} "{name}"{hint} one of', *names])


def positive_int(text: str) -> int:
    """Parses a command-line value, as a `type` of argparse; refuses numbers below 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


def describe(settings_class: type[Settings], prefix: str = "") -> Iterator[str]:
    """Yields the docstring of a settings class and the JSON schema of each setting."""
    yield inspect.cleandoc(settings_class.__doc__ or "")
    for name, schema in settings_class.model_json_schema()["properties"].items():
        yield f"{prefix}{name}: {json.dumps(schema)}"


@contextmanager
def exit_on_error(continuation: str = "run the same command again") -> Iterator[None]:
    """Exits with the message of a ValueError or OSError; after Ctrl-C, prints `continuation`."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    except KeyboardInterrupt:
        print(f"\nstopped; {continuation}", file=sys.stderr)
        raise SystemExit(130) from None  # the shell convention for SIGINT
