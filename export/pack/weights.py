"""What must be true of a pack's weight files before anything computes with them."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from export.pack.validation import PackError
from models.checkpoint import load_tensors

# What encoders are made of. Others repeat a part as often as a file likes (Loop), or make texts,
# lists and sets, whose memory nothing bounds (SplitToSequence, Unique).
_NAMES = """
    Abs Add And ArgMax ArgMin Attention AveragePool BatchNormalization Cast CastLike Ceil Clip
    Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos CumSum DepthToSpace
    DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand Flatten Floor
    GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity If InstanceNormalization IsInf
    IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization
    MatMul MatMulInteger Max MaxPool Mean Min Mish Mod Mul Neg NonZero Not OneHot Or PRelu Pad Pow
    QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
    Resize Round ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus
    Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose Trilu Unsqueeze Where
    Xor
"""
_OPERATORS = frozenset(_NAMES.split())
_DEEPEST = 32  # functions that call one another
_MOST_CALLED = 10_000  # nodes of functions, counted at every call


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
    nodes = [*_nodes(model.graph.node), *(n for f in model.functions for n in _nodes(f.node))]
    own = {_called(function.domain, function.name) for function in model.functions}
    for node in nodes:
        called = domain, name = _called(node.domain, node.op_type)
        known = called in own or (not domain and name in _OPERATORS)
        if not known or _makes_texts(node):
            raise PackError(
                f"{path} computes in a way that no encoder needs ({node.domain!s:.60} "
                f"{name!s:.60} {node.name!s:.60}); export it again without loops, lists and texts"
            )
        _check_numbers(path, node)
    _check_functions(path, model)
    for tensor in _tensors(model.graph, nodes):
        _check_tensor(path, tensor)


def _makes_texts(node: onnx.NodeProto) -> bool:
    """Whether a node makes texts, whose memory nothing bounds, of what is none."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Constant":
        return not given.keys().isdisjoint({"value_string", "value_strings"})
    to = given.get("to")
    return to is not None and (to.i == onnx.TensorProto.STRING or bool(to.ref_attr_name))


def _check_functions(path: Path, model: onnx.ModelProto) -> None:
    """Refuses functions that call one another so often that putting them in place never ends."""
    left: dict[tuple[str, str], list[onnx.NodeProto]] = {}
    for function in model.functions:
        left.setdefault(_called(function.domain, function.name), []).extend(_nodes(function.node))
    sizes: dict[tuple[str, str], int] = {}
    for _ in range(_DEEPEST):
        calls = {
            name: [_called(n.domain, n.op_type) for n in nodes] for name, nodes in left.items()
        }
        for name in [name for name, called in calls.items() if left.keys().isdisjoint(called)]:
            del left[name]
            sizes[name] = sum(sizes.get(one, 1) for one in calls[name])
    nodes = _nodes(model.graph.node)
    total = sum(sizes.get(_called(node.domain, node.op_type), 0) for node in nodes)
    if left or total > _MOST_CALLED:
        raise PackError(
            f"{path} has functions that call one another more than {_DEEPEST} deep, or hold more "
            f"than {_MOST_CALLED:,} nodes when put in place; export it again without functions"
        )


def _called(domain: str, name: str) -> tuple[str, str]:
    """By what a node finds its function; the usual domain has two spellings."""
    return ("" if domain == "ai.onnx" else domain), name


def _check_tensor(path: Path, tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.STRING:
        raise PackError(
            f"{path}: tensor {tensor.name!s:.60} holds texts; an encoder computes with numbers"
        )
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise PackError(
            f"{path} keeps tensor {tensor.name!s:.60} in another file; "
            "export it again with all weights inside"
        )
    # no value takes less than four bits
    if any(side < 0 for side in tensor.dims) or math.prod(tensor.dims) > 2 * tensor.ByteSize():
        raise PackError(
            f"{path}: tensor {tensor.name!s:.60} has the shape {list(tensor.dims)!s:.120}, but "
            f"{tensor.ByteSize()} bytes; the file is damaged, fetch or export it again"
        )
    try:
        finite = _is_finite(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError) as error:
        raise PackError(f"{path}: tensor {tensor.name!s:.60} is damaged: {error}") from error
    if not finite:
        raise PackError(
            f"{path}: tensor {tensor.name!s:.60} holds NaN or infinity; the file is damaged"
        )


def _is_finite(values: np.ndarray) -> bool:
    if values.dtype.kind in "iub":  # whole numbers
        return True
    if values.dtype.kind not in "fc":  # types that numpy itself does not know, of two bytes at most
        values = values.astype(np.float32)
    return bool(np.isfinite(values).all())


def _check_numbers(path: Path, node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if not all(map(math.isfinite, (attribute.f, *attribute.floats))):
            raise PackError(
                f"{path}: {node.op_type} {node.name!s:.60} holds NaN or infinity as "
                f"{attribute.name!s:.60}; the file is damaged"
            )


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes and those of their inner graphs, however deep."""
    for node in nodes:
        yield node
        for inner in _graphs(node):
            yield from _nodes(inner.node)


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _tensors(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """All tensors that a graph, its nodes and their inner graphs hold."""
    sparse: list[onnx.SparseTensorProto] = []
    for held in (graph, *(inner for node in nodes for inner in _graphs(node))):
        yield from held.initializer
        sparse += held.sparse_initializer
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse += attribute.sparse_tensors
            if attribute.HasField("sparse_tensor"):
                sparse.append(attribute.sparse_tensor)
    for part in sparse:
        yield part.values
        yield part.indices
