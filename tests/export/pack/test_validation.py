"""Values of the wrong type or range, unknown keys and unreadable JSON get one sentence each."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from pydantic.dataclasses import dataclass

from polyview.export.pack.validation import STRICT, PackError, PlainPath, check, read_json


@dataclass(frozen=True, config=STRICT)
class Values:
    """The object of a file."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    size: tuple[int, int] = (1, 2)
    hardest: bool = False
    schedule: Literal["step", "cosine"] = "step"
    several: tuple["Values", ...] = ()
    files: dict[PlainPath, str] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hardest and self.schedule == "step":
            raise ValueError("schedule must be named where hardest is true")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"z": 1}, "^f.json has an unknown key 'z'.*decay, size, hardest, schedule, several, files"),
    ({"decay": "0.5"}, "decay must be a valid number.*'0.5'"),
    ({"decay": float("nan")}, "must be a finite number.*nan"),
    ({"decay": 2}, "decay must be less than or equal to 1.*2"),
    ({"size": [1]}, "size lacks value 2"),
    ({"hardest": "no"}, "must be a valid boolean.*'no'"),
    ({"schedule": "z"}, "must be 'step' or 'cosine'.*'z'"),
    ({"several": [{}, {"decay": 0}]}, r"several\[1\].decay must be greater than 0"),
    ({"several": [{"hardest": True}]}, r"^f.json: several\[0\]: schedule must be named"),
]
NOT_PLAIN = ["../secret", "a/../../secret", "/etc/passwd", "C:/windows", "C:\\windows", "a\\b"]
NOT_PLAIN += ["./a", ".hidden", "a/.hidden", "a//b", "a/", "", "a b", "a*", "a[0]", "a\n", "a\0"]
NOT_PLAIN += ["ä", "x" * 300]
UNREADABLE = [b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe", b"[" * 100_000, b'"\\ud83d"']


def test_wrong_values_are_named() -> None:
    for values, sentence in WRONG:
        with pytest.raises(PackError, match=sentence) as caught:
            check(Values, values, "f.json")
        assert len(str(caught.value)) < 300


def test_paths_that_are_not_plain_are_refused() -> None:
    for path in ("a", "vse_infty/text_encoder.onnx", "a-b/c.d/e_f.webp", "a..b"):
        assert check(Values, {"files": {path: ""}}).files == {path: ""}
    for path in NOT_PLAIN:
        with pytest.raises(PackError, match="is not a plain relative path"):
            check(Values, {"files": {path: ""}}, "here")


def test_unreadable_json_is_a_sentence(tmp_path: Path) -> None:
    for content in UNREADABLE:
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(PackError, match="is not readable JSON"):
            read_json(tmp_path / "x.json")
