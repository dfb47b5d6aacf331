"""What must be true of a pack's weight files before anything computes with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from export.fields import PackError
from models.checkpoint import load_tensors

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


def check_weights(path: Path) -> None:
    """Checks an ONNX or safetensors file: readable, whole in itself, and free of NaN and infinity.

    Args:
        path: a file ending in `.onnx` or `.safetensors`; others hold no weights and pass.

    Raises:
        PackError: the file is damaged, or an ONNX file keeps tensors in a second file.
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
    except Exception as error:
        # onnx lets protobuf's own error through, which onnx does not name.
        raise PackError(f"{path} is not a readable ONNX file: {error}") from error
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise PackError(
                f"{path} keeps tensor {tensor.name} in another file; "
                "export it again with all weights inside"
            )
        if tensor.data_type in _FLOATS and not np.isfinite(numpy_helper.to_array(tensor)).all():
            raise PackError(f"{path}: tensor {tensor.name} holds NaN; the file is damaged")


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All tensors a graph holds, those of nodes and of inner graphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
            for inner in attribute.graphs:
                yield from _tensors(inner)
