"""Loads and saves safetensors files strictly and atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from polyview.models.files import atomic_write, not_found_error

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_TYPES = (*_FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Writes named tensors to one file, atomically, with `metadata` as JSON in the header."""
    cpu_tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    atomic_write(path, save(cpu_tensors, metadata={"about": json.dumps(metadata)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the tensors and the metadata that `save_tensors` wrote.

    Raises FileNotFoundError if the file does not exist. Raises ValueError if it is not a complete
    safetensors file, if a tensor has an unsupported type, or if a value is not finite.
    """
    if not path.is_file():
        raise not_found_error("weights file", path, "name a folder that training wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("about", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(metadata, dict):
            raise ValueError(f"its metadata is a {type(metadata).__name__}, not a JSON object")
        for name, tensor in tensors.items():
            if tensor.dtype not in _TYPES:
                raise ValueError(f"tensor {name:.60} has the unsupported type {tensor.dtype}")
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file: {error}; fetch it again, or save its "
            "weights again"
        ) from error
    thread_count = torch.get_num_threads()
    torch.set_num_threads(1)  # for small tensors, starting threads takes longer than the check
    bad_names = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    torch.set_num_threads(thread_count)
    if bad_names:
        raise ValueError(f"{path}: {bad_names[0]} holds NaN or infinity; fetch the file again")
    return tensors, metadata


def load_strict(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copies the tensors of `source` into a module; raises ValueError for a wrong name or shape."""
    check_fit(module, tensors, source)
    module.load_state_dict(dict(tensors), strict=True)


def check_fit(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raises the errors of `load_strict` without copying; `module` may be on the "meta" device."""
    expected = module.state_dict()
    missing, extra = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or extra:
        mismatch = f"lacks {min(missing)}" if missing else f"holds an unknown tensor {min(extra)}"
        raise ValueError(f"{source} does not fit {type(module).__name__}: it {mismatch}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, "
                f"but {type(module).__name__} needs {tuple(expected[name].shape)}"
            )


def round_to_half(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Rounds floats to half precision, kept as float32; raises ValueError for too large values."""
    rounded = {}
    for name, tensor in tensors.items():
        rounded[name] = tensor.half().float() if tensor.is_floating_point() else tensor
        if not bool(torch.isfinite(rounded[name]).all()):
            raise ValueError(
                f"{source}: {name} holds {float(tensor.abs().max()):.3g}, more than half precision "
                "can store (65504); train with more weight decay"
            )
    return rounded
