"""Validates values from JSON, TOML and command lines; an error message is one sentence.

Pydantic dataclasses declare types and ranges, and `check` applies them. Example of a message:

    recipe.toml: decay must be a valid number, not '0.5'
"""

import re
import reprlib
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

MAX_JSON = 32 * 2**20  # bytes of a file; parsed, it takes at most 0.7 GB
MAX_WHOLE = 2**53 - 1  # the largest integer that every JSON reader represents exactly

# Rejects "no" for a bool, "0.5" for a number, unknown keys and NaN. OPEN ignores unknown keys.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
OPEN = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
T = TypeVar("T")


class PackError(ValueError):
    """A pack, or a value of pack.json or settings, is not valid; the message is one sentence."""


def _like(pattern: str, requirement: str) -> AfterValidator:
    """Returns a pydantic validator for strings that a regular expression matches as a whole."""

    def validate(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{_SHORT.repr(text)} is not {requirement}")
        return text

    return AfterValidator(validate)


# Strings that are not blank; their lengths are limited, because packs may be untrusted.
Line = Annotated[str, Field(max_length=200, pattern=r"\S")]
Note = Annotated[str, Field(max_length=1000, pattern=r"\S")]
Command = Annotated[str, Field(max_length=5000, pattern=r"\S")]
Page = Annotated[str, Field(max_length=10_000, pattern=r"\S")]
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Name = Annotated[str, _like("[a-z0-9_]{1,64}", "a name of 1 to 64 characters of a-z, 0-9 and '_'")]
Sha256 = Annotated[str, _like("[0-9a-f]{64}", "64 lower-case hexadecimal digits")]
# A relative path that stays inside its folder on every system.
_PART = "[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PLAIN_PATH = "a plain relative path of letters, digits and '._-/', without '..' or hidden parts"
PlainPath = Annotated[str, _like(rf"(?=.{{1,255}}\Z){_PART}(/{_PART})*", _PLAIN_PATH)]


def read_json(path: Path, max_bytes: int = MAX_JSON) -> Any:
    """Reads a JSON file of at most `max_bytes`.

    Raises FileNotFoundError if the file does not exist, PackError if it is too large, is not JSON
    in UTF-8, or has NaN, Infinity or a lone surrogate.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if (size := path.stat().st_size) > max_bytes:
        raise PackError(f"{path} has {size:,} bytes, more than the {max_bytes:,} allowed")
    try:
        return from_json(path.read_bytes(), allow_inf_nan=False)
    except ValueError as error:
        raise PackError(f"{path} is not readable JSON: {error}") from error


def check(kind: type[T], values: Any, where: str = "") -> T:
    """Builds a value of a type, usually a pydantic dataclass, from values of JSON or TOML.

    The type is configured as `STRICT` or `OPEN`. Raises PackError for the first value that is not
    valid, with `where` (such as "pack.json"), the dotted key of the value, and the requirement.
    """
    # in JSON, strict types accept a list for a tuple and an object for a dataclass
    try:
        content = to_json(values, inf_nan_mode="constants")
        return _adapter(cast(Hashable, kind)).validate_json(content)
    except ValidationError as error:
        raise PackError(_format_error(error, kind, where)) from error
    except PydanticSerializationError as error:  # such as for a lone surrogate
        raise PackError(f"{where or 'a value'} cannot be written as JSON: {error}") from error


def _format_error(error: ValidationError, kind: Any, where: str) -> str:
    """Formats pydantic's first error about a value of the type `kind` as a sentence."""
    first = error.errors(include_url=False)[0]
    keys, category = list(first["loc"]), first["type"]
    if keys and keys[-1] == "[key]":  # the dictionary's key, not its value, is not valid
        del keys[-2:]
    if category in ("missing", "unexpected_keyword_argument", "extra_forbidden"):
        label, key = _location(where, keys[:-1]) or "it", keys[-1]
        key = f"value {key + 1}" if isinstance(key, int) else _SHORT.repr(key)
        if category == "missing":
            return f"{label} lacks {key}"
        return f"{label} has an unknown key {key}; known: {', '.join(_known_keys(kind, keys[:-1]))}"
    label = _location(where, keys)
    if category == "value_error":
        return ": ".join(filter(None, (label, str(first["ctx"]["error"]))))
    if category == "string_pattern_mismatch":
        requirement = "be a non-empty string"
    else:  # from "Input should be a valid integer", "Tuple should have at most 2 items after ..."
        requirement = first["msg"].partition(" should ")[2].partition(" after validation")[0]
    return f"{label or 'it'} must {requirement}, not {_SHORT.repr(first['input'])}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _location(where: str, keys: list[int | str]) -> str:
    """Formats a location, such as `gallery.json: images[0].file`."""
    dotted = "".join(f"[{key}]" if isinstance(key, int) else f".{key:.80}" for key in keys)
    return ": ".join(filter(None, (where, dotted.removeprefix("."))))


def _known_keys(kind: Any, keys: list[int | str]) -> list[str]:
    """Returns the valid keys of the object at the path `keys` in a value of the type `kind`."""
    schema = _adapter(kind).json_schema()
    node: Any = schema
    for key in [*keys, None]:  # None stands for the object itself
        node = next((n for n in node.get("anyOf", ()) if n.get("type") != "null"), node)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        if key is not None:
            inner = node.get("items") or node.get("additionalProperties")
            node = inner if isinstance(key, int) else node.get("properties", {}).get(key, inner)
    return list(node["properties"])
