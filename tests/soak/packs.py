"""Packs made to do harm: each takes a whole pack and breaks it in its own way.

Run as a program, it attacks copies of a pack one after the other and prints what each cost:

    python -m tests.soak.packs PACK WORK
"""

import json
import resource
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from app.gallery.collection import from_pack
from app.gallery.images import open_image
from export.runtime import Runtime
from tests.export.editing import edited, relist

HEAD, IMAGES, TEXTS = "vsepp/head.safetensors", "image_encoder.onnx", "vsepp/text_encoder.onnx"
_FLOAT, _WHOLE = TensorProto.FLOAT, TensorProto.INT64
_FEATURES = helper.make_tensor_value_info("features", _FLOAT, None)
_PIXELS = helper.make_tensor_value_info("pixels", _FLOAT, ["B", 3, "S", "S"])
_IDS = helper.make_tensor_value_info("ids", _WHOLE, ["B", "L"])
_LENGTHS = helper.make_tensor_value_info("lengths", _WHOLE, ["B"])

Attack = Callable[[Path], object]


def use(pack: Path) -> None:
    """Everything the app does with a pack: load it, read its pictures, encode one of each kind."""
    runtime = Runtime.load(pack, "cpu", 1)
    from_pack(pack)
    features = runtime.image_features([Image.new("RGB", (48, 48))])
    runtime.image_views(features, "vsepp")
    runtime.text_views(["a red circle"], "vsepp")


def write_head(pack: Path, header: Any, body: bytes = b"") -> None:
    """A weights file of a header, JSON or bytes, and a body."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    (pack / HEAD).write_bytes(struct.pack("<Q", len(content)) + content + body)
    relist(pack, HEAD)


def change(pack: Path, edit: Callable[[dict[str, Any]], object], name: str = "pack.json") -> None:
    """Edits a JSON file of a pack."""
    with edited(pack / name) as values:
        edit(values)
    if name != "pack.json":
        relist(pack, name)


def write_graph(
    pack: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    output: onnx.ValueInfoProto = _FEATURES,
) -> None:
    """Puts a network of these nodes in the place of an encoder."""
    inputs = [_PIXELS] if name == IMAGES else [_IDS, _LENGTHS]
    held = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (pack / name).write_bytes(model.SerializeToString())
    relist(pack, name)


def _tensor(kind: str, shape: list[Any], size: int = 4) -> Attack:
    entry = {"dtype": kind, "shape": shape, "data_offsets": [0, size]}
    return lambda pack: write_head(pack, {"a": entry}, b"\xff" * size)


def _said(*keys: str, value: Any, name: str = "pack.json") -> Attack:
    """Puts a value at a place of a JSON file; a key of digits is an index."""

    def edit(values: Any) -> None:
        *path, last = (int(key) if key.isdigit() else key for key in keys)
        for key in path:
            values = values[key]
        values[last] = value

    return lambda pack: change(pack, edit, name)


def _constant(shape: list[int], raw: bytes = b"", kind: int = _FLOAT, where: str = "") -> Attack:
    """Adds a tensor that nothing reads to the image encoder."""

    def attack(pack: Path) -> None:
        model = onnx.load(pack / IMAGES)
        tensor = TensorProto(name="bomb", data_type=kind, dims=shape, raw_data=raw)
        if where == "function":
            node = helper.make_node("Constant", [], ["y"], value=tensor)
            usual = [helper.make_opsetid("", 17)]
            model.functions.append(helper.make_function("own", "F", [], ["y"], [node], usual))
            model.opset_import.append(helper.make_opsetid("own", 1))
            model.graph.node.append(helper.make_node("F", [], ["unused"], domain="own"))
        elif where == "outside":
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="../../../etc/passwd")
            model.graph.initializer.append(tensor)
        else:
            model.graph.initializer.append(tensor)
        (pack / IMAGES).write_bytes(model.SerializeToString())
        relist(pack, IMAGES)

    return attack


def _fill(shape: list[int]) -> Attack:
    """An image encoder of a hundred bytes that answers with this many numbers."""
    node = helper.make_node("ConstantOfShape", ["shape"], ["features"])
    return lambda pack: write_graph(pack, IMAGES, [node], {"shape": np.array(shape, np.int64)})


def _texts() -> Attack:
    """An image encoder that doubles a text 31 times, to two gigabytes."""
    nodes = [helper.make_node("Cast", ["pixels"], ["s0"], to=TensorProto.STRING)]
    nodes += [helper.make_node("StringConcat", [f"s{i}"] * 2, [f"s{i + 1}"]) for i in range(31)]
    nodes.append(helper.make_node("Cast", ["s31"], ["features"], to=_FLOAT))
    return lambda pack: write_graph(pack, IMAGES, nodes, {})


def _repeat_for_ever(pack: Path) -> None:
    go_on = [helper.make_node("Identity", [f"{name}0"], [f"{name}1"]) for name in ("go", "x")]
    kinds = {"i": _WHOLE, "go0": TensorProto.BOOL, "x0": _FLOAT, "go1": TensorProto.BOOL}
    kinds["x1"] = _FLOAT
    ports = {name: helper.make_tensor_value_info(name, kind, []) for name, kind in kinds.items()}
    body = helper.make_graph(
        go_on, "b", [ports["i"], ports["go0"], ports["x0"]], [ports["go1"], ports["x1"]]
    )
    loop = helper.make_node("Loop", ["most", "go", "x"], ["features"], body=body)
    start = {"most": np.array(2**62), "go": np.array(True), "x": np.array(0, np.float32)}
    write_graph(pack, IMAGES, [loop], start)


def _calls(depth: int, last: str = "Neg") -> Attack:
    """An image encoder of functions, each of which calls the next one twice."""

    def attack(pack: Path) -> None:
        model = onnx.load(pack / IMAGES)
        uses = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        for i in range(depth):
            name = f"F{i + 1}" if i + 1 < depth else last
            domain = "" if name == "Neg" else "own"
            nodes = [
                helper.make_node(name, ["a"], ["b"], domain=domain),
                helper.make_node(name, ["b"], ["c"], domain=domain),
            ]
            model.functions.append(helper.make_function("own", f"F{i}", ["a"], ["c"], nodes, uses))
        model.opset_import.append(uses[1])
        first = model.graph.input[0].name
        model.graph.node.append(helper.make_node("F0", [first], ["unused"], domain="own"))
        (pack / IMAGES).write_bytes(model.SerializeToString())
        relist(pack, IMAGES)

    return attack


def _sparse(name: str, size: int) -> Attack:
    """Makes a file long by holes, which take no room on the disk."""

    def attack(pack: Path) -> None:
        with (pack / name).open("r+b") as file:
            file.truncate(size)
        if name != "pack.json":
            change(pack, lambda p: p["files"][name].update(bytes=size))

    return attack


def _tokenizer(section: str, value: Any) -> Attack:
    return _said(section, value=value, name="tokenizer.json")


def _normalizers(step: Any, count: int) -> Attack:
    return _tokenizer("normalizer", {"type": "Sequence", "normalizers": [step] * count})


def _replace(kind: str, pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _split(pattern: str) -> dict[str, Any]:
    how = {"behavior": "Isolated", "invert": False}
    return {"type": "Split", "pattern": {"Regex": pattern}, **how}


def _pieces(piece: list[Any], unknown: int = 0) -> dict[str, Any]:
    return {"type": "Unigram", "vocab": [["<unk>", 0.0], piece], "unk_id": unknown}


def _marking_tokenizer(pack: Path) -> None:
    mark = {"id": "X", "ids": [1] * 1000, "tokens": ["X"] * 1000}
    marks = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "X", "type_id": 0}}] * 100_000,
        "pair": [],
        "special_tokens": {"X": mark},
    }
    change(pack, lambda t: t.update(post_processor=marks), "tokenizer.json")


def _card_outside(pack: Path) -> None:
    (pack / "gallery").rename(pack.with_name("elsewhere"))
    (pack / "gallery").symlink_to(pack.with_name("elsewhere"))


def _cast(node_type: str, output: onnx.ValueInfoProto = _FEATURES, **more: Any) -> Attack:
    node = helper.make_node(node_type, ["ids"], ["features"], **more)
    return lambda pack: write_graph(pack, TEXTS, [node], {}, output)


_WHOLE_OUT = helper.make_tensor_value_info("features", _WHOLE, None)
_METHOD = ("methods", "vsepp")
_CAPTION = ("images", "0", "captions", "0")
_GALLERY = "gallery/gallery.json"

# name -> the attack, and a part of the sentence that refuses it
ATTACKS: dict[str, tuple[Attack, str]] = {
    "header of 2**63 bytes": (
        lambda p: ((p / HEAD).write_bytes(struct.pack("<Q", 2**63) + b"{}"), relist(p, HEAD)),
        "its header has 9,223,372,036,854,775,808 bytes",
    ),
    "header of 200,000 tensors": (
        lambda p: write_head(
            p,
            {
                f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                for i in range(200_000)
            },
        ),
        "more than 8,388,608",
    ),
    "tensor of 100,000 axes": (_tensor("F32", [1] * 100_000), "no shape of at most 8 axes"),
    "tensor of negative size": (_tensor("F32", [-1]), r"has the shape \[-1\]"),
    "tensor of 2**124 values": (_tensor("F32", [2**62, 2**62]), "which none can have"),
    "tensor of no values, 2**125 wide": (_tensor("F32", [0, 2**63, 2**62], 0), "none can have"),
    "tensor of 8 bits": (_tensor("F8_E4M3", [1], 1), "is of type 'F8_E4M3'"),
    "tensor of complex NaN": (_tensor("C64", [1], 8), "is of type 'C64'"),
    "deep words about weights": (
        lambda p: write_head(p, {"__metadata__": {"about": "[" * 200_000}}),
        "not a readable safetensors file",
    ),
    "pack.json of 3 GB": (_sparse("pack.json", 3 * 2**30), r"pack\.json has 3,221,225,472 bytes"),
    "weights of 8 GB": (_sparse(HEAD, 8 * 2**30), "bytes must be at most 2,147,483,647"),
    "number of 400 digits": (_said("preprocess", "mean", value=[10**400, 0, 0]), "mean.* must be"),
    "80,000 unknown keys": (
        lambda p: change(p, lambda v: v.update(dict.fromkeys(map(str, range(80_000)), 1))),
        "unknown key '0'; known: name, title",
    ),
    "half a character": (_said("title", value="\ud800"), "surrogates not allowed"),
    "title of a million letters": (_said("title", value="x" * 10**6), "at most 200 charac"),
    "features 10**9 wide": (_said("image_encoder", "dim", value=10**9), "must be at most 65,536"),
    "texts of 10**300 tokens": (_said("tokenizer", "max_length", value=10**300), "at most 1,024"),
    "pictures of 4096 pixels": (_said("preprocess", "size", value=4096), "must be 16 to 1024"),
    "pixels divided by nothing": (_said("preprocess", "std", value=[1e-300, 1, 1]), "std > 0"),
    "embedding 2 * 10**8 wide": (
        _said(*_METHOD, "arguments", "embed_dim", value=2 * 10**8),
        "embed_dim must be a whole number from 0 to 65536, not 200000000",
    ),
    "embedding 65,536 wide": (
        _said(*_METHOD, "arguments", value={"embed_dim": 65536, "mlp_dim": 65536}),
        "but VSEPP needs",
    ),
    "embedding of negative width": (
        _said(*_METHOD, "arguments", "embed_dim", value=-5),
        "whole number from 0 to 65536, not -5",
    ),
    "embedding of words": (_said(*_METHOD, "arguments", "embed_dim", value=["x"]), "embed_dim m"),
    "tokenizer that grows texts": (
        _normalizers(_replace("String", "a", "a" * 100), 5),
        "can make a text .* times as long",
    ),
    "tokenizer that tries for ever": (
        _tokenizer("pre_tokenizer", _split(r"(\w|\w\w|\s)+$#")),
        r"its Split has the pattern .* only those of CLIP",
    ),
    "tokenizer that replaces for ever": (
        _normalizers(_replace("Regex", "((a{1,99}){1,99}){1,99}$", ""), 1),
        "its Replace has the pattern",
    ),
    "tokenizer of 100,000 steps": (_normalizers({"type": "NFKC"}, 10**5), "more than 16 parts"),
    "tokenizer with a map of its own": (
        _normalizers({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, 1),
        "its normalizer is 'Precompiled', not of NFC, ",
    ),
    "tokenizer that decodes for ever": (
        _tokenizer("decoder", _replace("Regex", "(a+)+$", "")),
        "its decoder is 'Replace'",
    ),
    "tokenizer of words without end": (
        _tokenizer("model", {"type": "WordPiece", "max_input_chars_per_word": 10**9}),
        "max_input_chars_per_word must be at most 1000",
    ),
    "tokenizer of long prefixes": (
        _tokenizer("model", {"type": "WordPiece", "continuing_subword_prefix": "#" * 10**6}),
        "continuing_subword_prefix has more than 64 characters",
    ),
    "tokenizer of pieces as long as texts": (
        _tokenizer("model", _pieces(["a" * 10**4, -1.0])),
        "a piece must be a text of 1 to 64 characters",
    ),
    "tokenizer of pieces of nothing": (
        _tokenizer("model", _pieces(["", -1.0])),
        "a piece must be a text of 1 to 64 characters",
    ),
    "tokenizer without a piece for what is unknown": (
        _tokenizer("model", _pieces(["a", -1.0], unknown=7)),
        "none of them stands for what is unknown",
    ),
    "tokenizer of bytes of bytes": (
        _tokenizer(
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"} for _ in range(15)]},
        ),
        "can make a text .* times as long",
    ),
    "tokenizer that draws lots": (
        _tokenizer("model", {"type": "BPE", "dropout": 0.5}),
        "would read a text at random",
    ),
    "tokenizer of no model": (_tokenizer("model", {"vocab": {"a": 0}}), "its model is .* not of"),
    "tokenizer that adds tokens": (_marking_tokenizer, "100,000,000 tokens longer"),
    "tokenizer of unknown ids": (
        lambda p: change(
            p,
            lambda t: t["model"].update(vocab=dict.fromkeys(t["model"]["vocab"], 10**6)),
            "tokenizer.json",
        ),
        r"text_encoder\.onnx cannot be computed",
    ),
    "shape without values": (_constant([2**40, 2**20]), "has the shape .* but 2"),
    "shape of negative size": (_constant([-1], b"\0" * 4), r"has the shape \[-1\]"),
    "type that is none": (_constant([1], b"\0" * 4, 777), "tensor bomb is damaged"),
    "NaN of 16 bits": (_constant([1], b"\xff\xff", TensorProto.BFLOAT16), "holds NaN"),
    "NaN in a function": (_constant([1], b"\xff" * 4, where="function"), "holds NaN"),
    "values in another folder": (_constant([1], where="outside"), "keeps tensor bomb in another"),
    "NaN in an attribute": (
        lambda p: write_graph(
            p,
            IMAGES,
            [helper.make_node("Constant", [], ["features"], value_floats=[float("nan")])],
            {},
        ),
        "holds NaN or infinity as value_floats",
    ),
    "functions that call functions": (_calls(14), "functions that call one another"),
    "function that calls itself": (_calls(3, "F0"), "functions that call one another"),
    "network that never ends": (_repeat_for_ever, "no encoder needs"),
    "network of texts": (_texts(), "no encoder needs"),
    "network of constant texts": (
        lambda p: write_graph(
            p, IMAGES, [helper.make_node("Constant", [], ["features"], value_strings=["x"])], {}
        ),
        "no encoder needs",
    ),
    "texts among the weights": (
        lambda p: write_graph(
            p,
            IMAGES,
            [helper.make_node("Identity", ["words"], ["features"])],
            {"words": np.array(["x"], object)},
        ),
        "holds texts",
    ),
    "network of a list": (
        lambda p: write_graph(
            p,
            IMAGES,
            [
                helper.make_node("SplitToSequence", ["pixels"], ["list"]),
                helper.make_node("ConcatFromSequence", ["list"], ["features"], axis=0),
            ],
            {},
        ),
        "no encoder needs",
    ),
    "network of another kind": (_cast("LabelEncoder", domain="ai.onnx.ml"), "no encoder needs"),
    "network of 400 GB": (_fill([10**11]), "asks for more memory than it may have"),
    "network of 10**17 numbers": (_fill([10**12, 10**5]), "cannot be computed"),
    "network of whole numbers": (_cast("Identity", _WHOLE_OUT), "gives int64 instead of float32"),
    "features of another width": (_cast("Cast", to=_FLOAT), r"gives \(1, 3\) features for tokens"),
    "box of 400 digits": (
        _said("images", "0", "objects", "0", "box", value=[0, 0, 10**400, 1], name=_GALLERY),
        r"box\[2\] must be a number",
    ),
    "a thousand objects": (
        lambda p: change(
            p, lambda g: g["images"][0].update(objects=g["images"][0]["objects"] * 500), _GALLERY
        ),
        "objects must .* at most 255",
    ),
    "caption of a million letters": (
        _said(*_CAPTION, "text", value="a " * 10**6, name=_GALLERY),
        "at most 10,000 characters",
    ),
    "a million relevant pictures": (
        _said(*_CAPTION, "relevant", value=[0] * 10**6, name=_GALLERY),
        "relevant must be at most 24 whole numbers, not 1,000,000",
    ),
    "gallery elsewhere": (_card_outside, "is a link to outside the pack"),
}


def deep_png(side: int) -> Iterator[bytes]:
    """A 16-bit greyscale PNG of a few bytes for each row, row by row."""
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    yield b"\x89PNG\r\n\x1a\n"
    yield chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0))
    packer, row = zlib.compressobj(1), b"\0" + b"\x55" * (2 * side)
    yield chunk(b"IDAT", b"".join(packer.compress(row) for _ in range(side)) + packer.flush())
    yield chunk(b"IEND", b"")


def _main(pack: Path, work: Path) -> None:
    """Prints, for each attack, its name, the refusal, the growth of memory in MB and seconds."""
    use(pack)  # whatever is loaded once is loaded by now
    for name, (attack, _) in ATTACKS.items():
        copy = work / "copy"
        for old in (copy, work / "elsewhere"):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(pack, copy)
        attack(copy)
        before, start = _peak(), time.process_time()
        try:
            use(copy)
            sentence = ""
        except (ValueError, FileNotFoundError) as error:
            sentence = str(error)
        except BaseException as error:  # whatever it is, it is to be reported
            sentence = f"{type(error).__name__} escaped: {error}"
        print(
            json.dumps([name, sentence, _peak() - before, time.process_time() - start]), flush=True
        )
    picture = work / "deep.png"
    picture.write_bytes(b"".join(deep_png(6000)))
    before, start = _peak(), time.process_time()
    sentence = str(open_image(picture).size)
    print(json.dumps(["deep.png", sentence, _peak() - before, time.process_time() - start]))


def _peak() -> float:
    """Most memory this process ever had, in MB; 1 kB is its unit on Linux, 1 byte on macOS."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
