"""Torch encoders to ONNX files: dynamic batch and length, weights stored in half precision.

Computation stays in float32: a half-precision weight is followed by a Cast, which onnxruntime
folds when it loads the file.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

OPSET = 17
# Below this many values a half-precision copy and its Cast save nothing.
_WORTH_CASTING = 16


def round_to_half(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Rounds floating-point tensors to what half precision can hold; they stay float32.

    Args:
        tensors: name -> tensor; integers pass unchanged.
        source: where they are from, for the message.

    Raises:
        ValueError: a value is beyond half precision's range.
    """
    rounded = {}
    for name, tensor in tensors.items():
        rounded[name] = tensor.half().float() if tensor.is_floating_point() else tensor
        if not bool(torch.isfinite(rounded[name]).all()):
            raise ValueError(
                f"{source}: {name} holds {float(tensor.abs().max()):.3g}, more than half precision "
                "can store (65504); train with more weight decay"
            )
    return rounded


def export_image_encoder(encoder: nn.Module, size: int, path: Path) -> None:
    """Writes an image encoder: `pixels` (B, 3, size, size) -> `features` (B, N, d)."""
    _export(encoder, {"pixels": torch.zeros(2, 3, size, size)}, {"pixels": ["B"]}, ["B"], path)


def export_text_encoder(encoder: nn.Module, path: Path) -> None:
    """Writes a text encoder: `ids` (B, L), `lengths` (B,), int64 -> `features` (B, L, d)."""
    inputs = {"ids": torch.ones(2, 5, dtype=torch.int64), "lengths": torch.tensor([5, 3])}
    _export(encoder, inputs, {"ids": ["B", "L"], "lengths": ["B"]}, ["B", "L"], path)


def _export(
    encoder: nn.Module,
    inputs: dict[str, Tensor],
    axes: dict[str, list[str]],
    output_axes: list[str],
    path: Path,
) -> None:
    """Traces an encoder in eval mode.

    The tracing exporter is used because the other one exports only the first recurrent network of
    a process with a dynamic length. Constants are left unfolded: merged with their batch-norms,
    convolutions would have weights that half precision cannot hold; onnxruntime folds at load.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _attend_plainly(encoder)
    dynamic = {**axes, "features": output_axes}
    with warnings.catch_warnings():
        # It says that it is deprecated, and doubts that the trace holds for other batch sizes and
        # lengths than the example's; that it does is what export/build/parity.py measures.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", "Exporting a model to ONNX with a batch_size other")
        warnings.filterwarnings("ignore", "Exporting aten::index operator")
        warnings.filterwarnings("ignore", "Constant folding")
        torch.onnx.export(
            encoder.eval(),
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=["features"],
            dynamic_axes={name: dict(enumerate(names)) for name, names in dynamic.items()},
            opset_version=OPSET,
            do_constant_folding=False,
            dynamo=False,
        )
    model = onnx.load(path)
    _store_in_half(model.graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _attend_plainly(encoder: nn.Module) -> None:
    """Has networks of `transformers` spell attention out.

    Traced, torch's fused attention masks with infinity, which no weight file of a pack may hold.
    """
    for part in encoder.modules():
        choose = getattr(part, "set_attn_implementation", None)
        if callable(choose):
            choose("eager")


def _store_in_half(graph: onnx.GraphProto) -> None:
    """Stores in half precision, in place, whatever loses nothing by it."""
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
