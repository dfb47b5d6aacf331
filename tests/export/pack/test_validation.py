"""Values of the wrong type or range, unknown keys and unreadable JSON get one sentence each."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from pydantic.dataclasses import dataclass

from polyview.export.pack.validation import (
    STRICT,
    Line,
    Name,
    PackError,
    PlainPath,
    check,
    read_json,
)


@dataclass(frozen=True, config=STRICT)
class Inner:
    """What `Outer` holds in several places."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    size: tuple[int, int] = (1, 2)
    hardest: bool = False
    schedule: Literal["step", "cosine"] = "step"
    name: Name = "a"

    def __post_init__(self) -> None:
        if self.hardest and self.schedule == "step":
            raise ValueError("schedule must be named where hardest is true")


@dataclass(frozen=True, config=STRICT)
class Outer:
    """A file."""

    title: Line
    inner: Inner | None = None
    files: dict[PlainPath, Inner] = Field(default_factory=dict)
    several: tuple[Inner, ...] = ()


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["f.json lacks 'title'"]),
    ({"title": " "}, ["title must be a non-empty string", "' '"]),
    ({"title": "x", "z": 1}, ["unknown key 'z'", "title, inner, files, several"]),
    ({"title": "x", "inner": {"decay": "0.5"}}, ["inner.decay must be a valid number", "'0.5'"]),
    ({"title": "x", "inner": {"decay": float("nan")}}, ["must be a finite number", "nan"]),
    ({"title": "x", "inner": {"decay": 2}}, ["decay must be less than or equal to 1", "2"]),
    ({"title": "x", "inner": {"size": [1]}}, ["size lacks value 2"]),
    ({"title": "x", "inner": {"hardest": "no"}}, ["must be a valid boolean", "'no'"]),
    ({"title": "x", "inner": {"hardest": True}}, ["f.json: inner: schedule must be named"]),
    ({"title": "x", "inner": {"schedule": "z"}}, ["must be 'step' or 'cosine'", "'z'"]),
    ({"title": "x", "inner": {"name": "A b"}}, ["name: 'A b' is not a name"]),
    ({"title": "x", "several": [{}, {"y": 1}]}, ["several[1] has an unknown key 'y'", "decay, "]),
]
NOT_PLAIN = ["../secret", "a/../../secret", "/etc/passwd", "C:/windows", "C:\\windows", "a\\b"]
NOT_PLAIN += ["./a", ".hidden", "a/.hidden", "a//b", "a/", "", "a b", "a*", "a[0]", "a\n", "a\0"]
NOT_PLAIN += ["ä", "x" * 300]
UNREADABLE = [b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe", b"[" * 100_000, b'"\\ud83d"']


def test_wrong_values_are_named() -> None:
    for values, parts in WRONG:
        with pytest.raises(PackError) as caught:
            check(Outer, values, "f.json")
        assert all(part in str(caught.value) for part in parts), str(caught.value)
        assert len(str(caught.value)) < 300


def test_paths_that_are_not_plain_are_refused() -> None:
    for path in ("a", "vse_infty/text_encoder.onnx", "a-b/c.d/e_f.webp", "a..b"):
        assert list(check(Outer, {"title": "x", "files": {path: {}}}).files) == [path]
    for path in NOT_PLAIN:
        with pytest.raises(PackError, match="is not a plain relative path"):
            check(Outer, {"title": "x", "files": {path: {}}}, "here")


def test_unreadable_json_is_a_sentence(tmp_path: Path) -> None:
    for content in UNREADABLE:
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(PackError, match="is not readable JSON"):
            read_json(tmp_path / "x.json")
