"""Values of the wrong type, and paths that are not plain, get a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.fields import Fields, PackError, plain_path, read_json


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "/etc/passwd",
        "C:/windows",
        "C:\\windows",
        "a\\b",
        "a//b",
        "./a",
        ".hidden",
        "a/.hidden",
        "a/",
        "",
        "a b",
        "a*",
        "a[0]",
        "a\n",
        "a\0",
        "ä",
        "x" * 300,
    ],
)
def test_paths_that_are_not_plain_are_refused(path: str) -> None:
    with pytest.raises(PackError, match="is not a plain relative path"):
        plain_path(path, "here")


@pytest.mark.parametrize("path", ["a", "vse_infty/text_encoder.onnx", "a-b/c.d/e_f.webp", "a..b"])
def test_plain_paths_pass(path: str) -> None:
    assert plain_path(path, "here") == path


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda f: f.text("number"), "here: number must be a text that is not empty, not 3"),
        (lambda f: f.text("blank"), "blank must be a text that is not empty, not '  '"),
        (lambda f: f.integer("yes"), "yes must be a whole number of at least 0, not True"),
        (lambda f: f.integer("number", least=4), "number must be a whole number of at least 4"),
        (lambda f: f.integer("half"), "half must be a whole number"),
        (lambda f: f.number("text"), "text must be a number, not 'x'"),
        (lambda f: f.number("huge"), "huge must be a number, not inf"),
        (lambda f: f.number("yes"), "yes must be a number, not True"),
        (lambda f: f.numbers("list", 3), "list must be a list of 3 numbers"),
        (lambda f: f.numbers("mixed", 2), "mixed must be numbers only"),
        (lambda f: f.boolean("number"), "number must be true or false, not 3"),
        (lambda f: f.mapping("list"), "list must be an object"),
        (lambda f: f.sequence("text"), "text must be a list"),
        (lambda f: f.child("text"), "here: text must be an object, not 'x'"),
        (lambda f: f.children("list"), r"here: list\[0\] must be an object, not 1"),
        (lambda f: f.indices("list", 2), "list must be a list of whole numbers from 0 to 1"),
        (lambda f: f.indices("mixed", 9), "mixed must be a list of whole numbers"),
        (lambda f: f.text("missing"), "here lacks 'missing'"),
        (lambda f: f.only("number"), "here has an unknown key 'blank'; known: number"),
        (lambda f: f.text("none"), "none must be a text that is not empty, not None"),
    ],
)
def test_wrong_values_are_named(read: Callable[[Fields], Any], sentence: str) -> None:
    values = {
        "number": 3,
        "half": 0.5,
        "huge": float("inf"),
        "yes": True,
        "text": "x",
        "blank": "  ",
        "list": [1, 2],
        "mixed": [1, "x"],
        "none": None,
    }
    with pytest.raises(PackError, match=sentence):
        read(Fields(values, "here"))


def test_right_values_come_back() -> None:
    fields = Fields({"t": "x", "i": 3, "n": 0.5, "l": [2, 1, 1], "o": {"k": {}}, "z": None}, "here")
    assert fields.text("t") == "x"
    assert fields.integer("i", least=3) == 3
    assert fields.number("n") == 0.5
    assert fields.indices("l", 3) == (1, 2)
    assert [name for name, _ in fields.child("o").items()] == ["k"]
    assert fields.text_or_none("z") is None
    assert not fields.has("z")


@pytest.mark.parametrize(
    "content", [b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe", b"[" * 100_000]
)
def test_unreadable_json_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(PackError, match="is not readable JSON"):
        read_json(tmp_path / "x.json")
