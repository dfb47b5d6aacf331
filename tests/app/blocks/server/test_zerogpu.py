"""On ZeroGPU the app computes on the processor, and declares the function that it asks for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from app.blocks.server import zerogpu
from app.server import declare_zerogpu
from export.sessions import DeviceError, choose_device


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """The functions that a stand-in for the package `spaces` was given."""
    functions: list[Callable[..., Any]] = []
    spaces = ModuleType("spaces")

    def lend(function: Callable[..., Any]) -> Callable[..., Any]:
        functions.append(function)
        return function

    spaces.__dict__["GPU"] = lend
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    return functions


@pytest.mark.parametrize("declare", [zerogpu.declare, declare_zerogpu])
@pytest.mark.parametrize(("value", "count"), [("true", 1), ("1", 1), ("false", 0), (None, 0)])
def test_a_function_is_declared_there_and_only_there(
    declared: list[Callable[..., Any]],
    monkeypatch: pytest.MonkeyPatch,
    declare: Callable[[], None],
    value: str | None,
    count: int,
) -> None:
    if value is None:
        monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    else:
        monkeypatch.setenv("SPACES_ZERO_GPU", value)
    declare()
    assert len(declared) == count


def test_a_cuda_that_only_calls_have_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        "onnxruntime.get_available_providers",
        lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    assert choose_device("auto").type == "cpu"
    with pytest.raises(DeviceError, match="ZeroGPU lends its GPUs to single calls"):
        choose_device("cuda")
    monkeypatch.delenv("SPACES_ZERO_GPU")
    assert choose_device("auto").type == "cuda"
