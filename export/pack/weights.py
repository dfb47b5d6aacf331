"""Checks of a pack's weight files before anything computes with them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import numpy_helper

from export.pack.validation import PackError
from models.checkpoint import load_tensors

_DOMAINS = ("", "ai.onnx")  # the two spellings of ONNX's own operators

M = TypeVar("M")


def check_weights(path: Path) -> None:
    """Checks an ONNX or safetensors file: readable, complete in itself, and of finite numbers.

    Args:
        path: a file ending in `.onnx` or `.safetensors`; others hold no weights and pass.

    Raises:
        PackError: the file is damaged or holds NaN or infinity; or an ONNX file uses operators of
            another domain than ONNX's own, or keeps tensors in a second file.
    """
    if path.suffix == ".onnx":
        _check_onnx(path)
    elif path.suffix == ".safetensors":
        try:
            load_tensors(path)
        except (ValueError, RecursionError) as error:
            raise PackError(str(error)) from error


def _check_onnx(path: Path) -> None:
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own errors have no name that onnx exports
        raise PackError(f"{path} is not a readable ONNX file: {error}") from error
    for node in _parts(model, onnx.NodeProto):
        if node.domain not in _DOMAINS:
            raise PackError(
                f"{path} uses the operator {node.op_type!s:.60} of the domain {node.domain!s:.60}; "
                "export it again with ONNX's own operators only"
            )
    for attribute in _parts(model, onnx.AttributeProto):
        if not all(map(math.isfinite, (attribute.f, *attribute.floats))):
            raise PackError(
                f"{path}: the attribute {attribute.name!s:.60} holds NaN or infinity; the file is "
                "damaged"
            )
    for tensor in _parts(model, onnx.TensorProto):
        _check_tensor(path, tensor)


def _check_tensor(path: Path, tensor: onnx.TensorProto) -> None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise PackError(
            f"{path} keeps tensor {tensor.name!s:.60} in another file; "
            "export it again with all weights inside"
        )
    try:
        values = numpy_helper.to_array(tensor)
        if values.dtype.kind not in "fciub":  # a 16-bit or 8-bit type that numpy itself lacks
            values = values.astype(np.float32)
        finite = np.isfinite(values).all()
    except (ValueError, TypeError, KeyError) as error:
        raise PackError(f"{path}: tensor {tensor.name!s:.60} is damaged: {error}") from error
    if not finite:
        raise PackError(
            f"{path}: tensor {tensor.name!s:.60} holds NaN or infinity; the file is damaged"
        )


def _parts(message: Any, kind: type[M]) -> Iterator[M]:
    """All messages of one kind inside a protobuf message, at any depth, itself included."""
    if isinstance(message, kind):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "extend") else (value,):
                yield from _parts(inner, kind)
