"""Reading JSON that others wrote: every value has its type, or there is a sentence about it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

MAX_JSON = 32 * 2**20  # bytes; parsed, that takes at most 0.7 GB
MAX_TEXT = 100_000  # characters
MAX_WHOLE = 2**53 - 1  # the largest whole number that every reader of JSON reads alike
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class PackError(ValueError):
    """A pack (or a part of one) is not what it must be; the message is a sentence for people."""


def read_json(path: Path, most: int = MAX_JSON) -> Any:
    """Reads a JSON file.

    Args:
        path: the file.
        most: bytes it may have.

    Raises:
        FileNotFoundError: there is no such file.
        PackError: it is too large, not JSON in UTF-8, or holds NaN, Infinity or half a character.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    size = path.stat().st_size
    if size > most:
        raise PackError(
            f"{path} has {size:,} bytes, more than the {most:,} that are read; make it smaller"
        )

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}, which is no JSON number")

    try:
        content = path.read_text(encoding="utf-8")
        values = json.loads(content, parse_constant=refuse)
        if _HALF.search(content):  # an escape such as \ud83d without its other half passes json
            json.dumps(values, ensure_ascii=False).encode()
        return values
    except (ValueError, RecursionError) as error:
        raise PackError(f"{path} is not readable JSON: {error}") from error


def plain_path(value: str, where: str) -> str:
    """Returns `value` if it is a plain relative path, which cannot leave its folder.

    Plain means letters, digits, `.`, `_` and `-`, parts separated by `/`, no part beginning with a
    dot: no `..`, no absolute path, no drive letter, no backslash, no wildcard, no hidden file.

    Raises:
        PackError: anything else.

    >>> plain_path("gallery/images/test-000001.webp", "here")
    'gallery/images/test-000001.webp'
    """
    if len(value) > 255 or not _PLAIN_PATH.fullmatch(value):
        raise PackError(
            f"{where}: {value[:255]!r} is not a plain relative path; use letters, digits, '.', "
            "'_', '-' and '/', with no '..', no leading '/' and no hidden parts"
        )
    return value


class Fields:
    """One JSON object, read key by key.

    Args:
        values: what the JSON holds at this place.
        where: the place, for messages, such as `pack.json: methods.vsepp`.

    Raises:
        PackError: `values` is not an object; each reader raises it for a value of another type.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise PackError(f"{where} must be an object, not {_show(values)}")
        self._values: dict[str, Any] = values
        self.where = where

    def only(self, *known: str) -> None:
        """Refuses keys that are not among `known`."""
        unknown = sorted(set(self._values) - set(known))
        if unknown:
            raise PackError(
                f"{self.where} has an unknown key {unknown[0]!r}; known: {', '.join(known)}"
            )

    def has(self, key: str) -> bool:
        """Whether there is a value that is not null."""
        return self._values.get(key) is not None

    def names(self) -> list[str]:
        """All keys, in the file's order."""
        return list(self._values)

    def items(self) -> Iterator[tuple[str, Fields]]:
        """Every key with the object it holds."""
        for key in self._values:
            yield key, self.child(key)

    def child(self, key: str) -> Fields:
        """The object under `key`."""
        return Fields(self._get(key), f"{self.where}: {key}")

    def children(self, key: str) -> list[Fields]:
        """The list of objects under `key`."""
        return [Fields(v, f"{self.where}: {key}[{i}]") for i, v in enumerate(self.sequence(key))]

    def mapping(self, key: str) -> dict[str, Any]:
        """The object under `key` as it is."""
        value = self._get(key)
        return value if isinstance(value, dict) else self._refuse(key, "an object")

    def sequence(self, key: str) -> list[Any]:
        """The list under `key` as it is."""
        value = self._get(key)
        return value if isinstance(value, list) else self._refuse(key, "a list")

    def text(self, key: str) -> str:
        """The text under `key`; blank text, and text of over 100,000 characters, is refused."""
        value = self._get(key)
        if not isinstance(value, str) or not value.strip():
            self._refuse(key, "a text that is not empty")
        if len(value) > MAX_TEXT:
            self._refuse(key, f"a text of at most {MAX_TEXT:,} characters")
        return value

    def text_or_none(self, key: str) -> str | None:
        """The text under `key`, or None where there is none."""
        return self.text(key) if self.has(key) else None

    def path(self, key: str) -> str:
        """The plain relative path under `key`, see `plain_path`."""
        return plain_path(self.text(key), f"{self.where}: {key}")

    def boolean(self, key: str) -> bool:
        """The true or false under `key`."""
        value = self._get(key)
        return value if isinstance(value, bool) else self._refuse(key, "true or false")

    def integer(self, key: str, least: int = 0, most: int = MAX_WHOLE) -> int:
        """The whole number under `key`, from `least` to `most`."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._refuse(key, f"a whole number of at least {least}")
        if value > most:
            self._refuse(key, f"a whole number of at most {most}")
        return value

    def number(self, key: str) -> float:
        """The number under `key`."""
        return self._number(self._get(key), key)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """The list of `count` numbers under `key`."""
        values = self.sequence(key)
        if len(values) != count:
            self._refuse(key, f"a list of {count} numbers")
        return tuple(self._number(value, key) for value in values)

    def indices(self, key: str, limit: int) -> tuple[int, ...]:
        """The list of whole numbers in 0..limit - 1 under `key`, put in ascending order."""
        values = self.sequence(key)
        if len(values) > limit:
            self._refuse(key, f"a list of at most {limit} whole numbers")
        if any(isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < limit for v in values):
            self._refuse(key, f"a list of whole numbers from 0 to {limit - 1}")
        return tuple(sorted(set(values)))

    def _number(self, value: Any, key: str) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:  # NaN is no number at all
            self._refuse(key, "numbers only" if isinstance(self._values[key], list) else "a number")
        return float(value)

    def _get(self, key: str) -> Any:
        if key not in self._values:
            raise PackError(f"{self.where} lacks {key!r}")
        return self._values[key]

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        raise PackError(f"{self.where}: {key} must be {wanted}, not {_show(self._values[key])}")


def _show(value: Any) -> str:
    """A value for a message, shortened."""
    if isinstance(value, int) and value.bit_length() > 200:  # too long to be written out
        return f"a whole number of {value.bit_length()} bits"
    shown = repr(value[:60] if isinstance(value, str | list) else value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
