"""Weights files: whole or not at all, and strictly fitting."""

from pathlib import Path

import pytest
import torch
from torch import nn

from polyview.models.checkpoint import load_strict, load_tensors, save_tensors


def test_round_trip(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    save_tensors(tmp_path / "w.safetensors", tensors, {"kind": "run", "seed": 1})
    loaded, about = load_tensors(tmp_path / "w.safetensors")
    assert about == {"kind": "run", "seed": 1}
    assert all(torch.equal(loaded[k], tensors[k]) for k in tensors)
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("content", [b"", b"no tensors here", b"\xff" * 64])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_tensors(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no weights file"):
        load_tensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("bias"), "lacks bias"),
        (lambda t: t.update(extra=torch.ones(1)), "unknown tensor extra"),
        (lambda t: t.update(bias=torch.ones(9)), "bias has shape"),
    ],
)
def test_loading_is_strict(change: object, message: str) -> None:
    tensors = dict(nn.Linear(3, 2).state_dict())
    change(tensors)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        load_strict(nn.Linear(3, 2), tensors, "w.safetensors")
