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
    epochs: tuple[int, ...] = ()
    size: tuple[int, int] = (1, 2)
    hardest: bool = False
    schedule: Literal["step", "cosine"] = "step"
    name: Name = "a"

    def __post_init__(self) -> None:
        if self.hardest and not self.epochs:
            raise ValueError("epochs must be named where hardest is true")


@dataclass(frozen=True, config=STRICT)
class Outer:
    """A file."""

    title: Line
    inner: Inner | None = None
    files: dict[PlainPath, Inner] = Field(default_factory=dict)
    several: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({}, ["f.json lacks 'title'"]),
        ({"title": " "}, ["title must be a text that is not empty", "' '"]),
        ({"title": "x", "z": 1}, ["unknown key 'z'", "title, inner, files, several"]),
        ({"inner": {"decay": "0.5"}}, ["f.json: inner.decay must be a valid number", "'0.5'"]),
        ({"inner": {"decay": float("nan")}}, ["decay must be a finite number", "nan"]),
        ({"inner": {"decay": 2}}, ["decay must be less than or equal to 1", "2"]),
        ({"inner": {"epochs": ["a"]}}, ["epochs[0] must be a valid integer", "'a'"]),
        ({"inner": {"size": [1]}}, ["size lacks value 2"]),
        ({"inner": {"hardest": "no"}}, ["hardest must be a valid boolean", "'no'"]),
        ({"inner": {"hardest": True}}, ["f.json: inner: epochs must be named"]),
        ({"inner": {"schedule": "z"}}, ["schedule must be 'step' or 'cosine'", "'z'"]),
        ({"inner": {"name": "A b"}}, ["name: 'A b' is not a name"]),
        ({"several": [{}, {"y": 1}]}, ["several[1] has an unknown key 'y'", "decay, epochs"]),
    ],
)
def test_wrong_values_are_named(values: Any, parts: list[str]) -> None:
    if isinstance(values, dict) and values and "title" not in values:
        values = {"title": "x", **values}
    with pytest.raises(PackError) as caught:
        check(Outer, values, "f.json")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert len(str(caught.value)) < 300


def test_paths_that_are_not_plain_are_refused() -> None:
    climbing = ["../secret", "a/../../secret", "/etc/passwd", "C:/windows", "C:\\windows", "a\\b"]
    hidden = ["./a", ".hidden", "a/.hidden", "a//b", "a/", ""]
    odd = ["a b", "a*", "a[0]", "a\n", "a\0", "ä", "x" * 300]
    for path in ("a", "vse_infty/text_encoder.onnx", "a-b/c.d/e_f.webp", "a..b"):
        assert list(check(Outer, {"title": "x", "files": {path: {}}}).files) == [path]
    for path in climbing + hidden + odd:
        with pytest.raises(PackError, match="is not a plain relative path"):
            check(Outer, {"title": "x", "files": {path: {}}}, "here")


@pytest.mark.parametrize(
    "content", [b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe", b"[" * 100_000, b'"\\ud83d"']
)
def test_unreadable_json_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(PackError, match="is not readable JSON"):
        read_json(tmp_path / "x.json")
