"""Exports torch encoders to ONNX with dynamic batch size and length, weights in half precision.

Computation stays in float32: each half-precision weight is followed by a Cast, which onnxruntime
folds when it loads the file.
"""

import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

OPSET = 17
_WORTH_CASTING = 16  # minimum number of values for which half precision and a Cast save space


def export_image_encoder(encoder: nn.Module, size: int, path: Path) -> None:
    """Writes an image encoder: `pixels` (B, 3, size, size) -> `features` (B, N, d)."""
    axes = {"pixels": ["B"], "features": ["B"]}
    _export(encoder, {"pixels": torch.zeros(2, 3, size, size)}, axes, path)


def export_text_encoder(encoder: nn.Module, path: Path) -> None:
    """Writes a text encoder: `ids` (B, L), `lengths` (B,), int64 -> `features` (B, L, d)."""
    inputs = {"ids": torch.ones(2, 5, dtype=torch.int64), "lengths": torch.tensor([5, 3])}
    axes = {"ids": ["B", "L"], "lengths": ["B"], "features": ["B", "L"]}
    _export(encoder, inputs, axes, path)


def _export(
    encoder: nn.Module, inputs: dict[str, Tensor], axes: dict[str, list[str]], path: Path
) -> None:
    """Traces an encoder in eval mode; `axes` names the dynamic axes of each input and output.

    The dynamo exporter gives only the first recurrent network of a process a dynamic length, so
    tracing is used. Constants are not folded, because half precision cannot represent convolutions
    merged with batch norms exactly; onnxruntime folds constants when it loads the file.
    """
    for part in encoder.modules():
        # A trace of torch's fused attention masks with infinity, which packs must not contain.
        if callable(choose := getattr(part, "set_attn_implementation", None)):
            choose("eager")
    traced = io.BytesIO()
    with warnings.catch_warnings():
        # The exporter warns that it is deprecated, and that the trace may be wrong for other batch
        # sizes and lengths; export/build/pack.py checks several sizes.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            encoder.eval(),
            tuple(inputs.values()),
            traced,  # type: ignore[arg-type]  # tracing also accepts files in memory
            input_names=list(inputs),
            output_names=["features"],
            dynamic_axes={name: dict(enumerate(names)) for name, names in axes.items()},
            opset_version=OPSET,
            do_constant_folding=False,
            dynamo=False,
        )
    model = onnx.load_from_string(traced.getvalue())
    _store_in_half(model.graph)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _store_in_half(graph: onnx.GraphProto) -> None:
    """Converts, in place, every weight that half precision represents exactly."""
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values, name = numpy_helper.to_array(tensor), tensor.name
        half = values.astype(np.float16)
        if values.size < _WORTH_CASTING or not np.array_equal(half.astype(np.float32), values):
            continue
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
