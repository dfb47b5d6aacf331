"""Strict safetensors load and save; whole files or none."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Writes tensors and a JSON-ready description to one file, atomically.

    Args:
        path: the file to write; a file already there is replaced only once the new one is whole.
        tensors: name -> tensor.
        about: kept as JSON in the file's header.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    try:
        partial.write_bytes(save(plain, metadata={"about": json.dumps(about)}))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `save_tensors` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a whole safetensors file, or holds values that are not finite.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no weights file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{path}: tensor {name} holds NaN or infinity; the file is damaged")
    return tensors, about


def load_strict(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copies tensors into a module: every name and shape must agree, dtypes are converted.

    Raises:
        ValueError: names the first missing, unexpected or misshapen tensor.
    """
    own = module.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"holds an unknown tensor {extra[0]}"
        raise ValueError(f"{source} does not fit {type(module).__name__}: it {what}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, "
                f"but {type(module).__name__} needs {tuple(own[name].shape)}"
            )
    module.load_state_dict(dict(tensors), strict=True)
