"""Hostile packs are refused quickly, with a message of one sentence."""

import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from polyview.export.pack.validation import PackError
from polyview.export.runtime import Runtime
from tests.export.conftest import edited, relist

HEAD, IMAGES, TOKENIZER = "vsepp/head.safetensors", "image_encoder.onnx", "tokenizer.json"
SECONDS = 5.0  # maximum duration of a refusal
Attack = Callable[[Path], object]


def use(pack: Path) -> None:
    """Loads a pack and encodes an image and a text, as the app does."""
    runtime = Runtime.load(pack, "cpu")
    runtime.image_views(runtime.image_features([Image.new("RGB", (48, 48))]), "vsepp")
    runtime.text_views(["a red dog"], "vsepp")


def attack(change: Callable[..., object]) -> Callable[..., Attack]:
    """Converts `change(pack, *arguments)` to a function of the arguments that returns an attack."""
    return lambda *values, **options: lambda pack: change(pack, *values, **options)


@attack
def put(pack: Path, *keys: str, value: Any, file: str = "pack.json") -> None:
    with edited(pack / file) as values:
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value
    if file != "pack.json":
        relist(pack, file)


@attack
def content(pack: Path, file: str, data: bytes) -> None:
    """Replaces a file, and its checksum."""
    (pack / file).write_bytes(data)
    relist(pack, file)


def tensors(header: dict[str, Any], body: bytes = b"", size: int | None = None) -> Attack:
    """Replaces a head by a safetensors header, with the stated `size` if given, and a body."""
    text = json.dumps(header).encode()
    return content(HEAD, struct.pack("<Q", len(text) if size is None else size) + text + body)


def tensor(dtype: str, shape: Sequence[int], body: bytes = b"\xff" * 4) -> Attack:
    return tensors({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(body)]}}, body)


def network(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, **constants: Any) -> Attack:
    """Replaces the image encoder by a graph of nodes, with an output of the type `kind`."""
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["B", 3, "S", "S"])
    output = helper.make_tensor_value_info("features", kind, None)
    weights = [numpy_helper.from_array(np.array(v), key) for key, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [pixels], [output], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return content(IMAGES, model.SerializeToString())


def constant(**fields: Any) -> Attack:
    """Replaces the image encoder by a graph with a tensor in the branch of an If node."""
    inner = helper.make_node("Constant", [], ["y"], value=TensorProto(name="bomb", **fields))
    branch = helper.make_graph([inner], "b", [], [])
    both = {"then_branch": branch, "else_branch": branch}
    return network(helper.make_node("If", ["c"], ["features"], **both))


@attack
def link(pack: Path, name: str) -> None:
    """Moves a file out of the pack, and replaces the file by a link."""
    outside = pack.with_name("outside")
    shutil.move(pack / name, outside)
    (pack / name).symlink_to(outside)


@attack
def sparse(pack: Path, name: str, size: int) -> None:
    """Extends a file by a hole, which takes no space on the disk."""
    os.truncate(pack / name, size)
    if name != "pack.json":
        put("files", name, "bytes", value=size)(pack)


def swap_encoders(pack: Path) -> None:
    shutil.copy(pack / "vsepp/text_encoder.onnx", pack / IMAGES)
    relist(pack, IMAGES)


def section(name: str, value: Any) -> Attack:
    return put(name, value=value, file=TOKENIZER)


def step(value: Any) -> Attack:
    """Replaces the normalizer by a sequence of one step."""
    return section("normalizer", {"type": "Sequence", "normalizers": [value]})


BOMB = r"(\w|\w\w|\s)+$#"  # takes exponential time
SPLIT = {"type": "Split", "pattern": {"Regex": BOMB}, "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "pattern": {"Regex": BOMB}, "content": ""}
# of these lists, `tokenizers` reads the second, and skips the first
DECOY = {"type": "Sequence", "normalizers": [{"type": "Whitespace"}], "pretokenizers": [SPLIT]}
ARGUMENTS = ("methods", "vsepp", "arguments")
FILL = helper.make_node("ConstantOfShape", ["shape"], ["features"])
OWN = helper.make_node("Run", ["pixels"], ["features"], domain="own")
INTEGERS = helper.make_node("Cast", ["pixels"], ["features"], to=TensorProto.INT64)
LOG = helper.make_node("Log", ["pixels"], ["features"])
GONE = helper.make_node("Neg", ["nowhere"], ["features"])
EXTERNAL = {"data_location": TensorProto.EXTERNAL, "dims": [1], "data_type": TensorProto.FLOAT}

# name -> attack, and a pattern of the error message
ATTACKS: dict[str, tuple[Attack, str]] = {
    "pack.json of 3 GB": (sparse("pack.json", 3 * 2**30), r"has 3,221,225,472 bytes, more than"),
    "weights of 8 GB": (sparse(HEAD, 2**33), "bytes must be less than or equal to 2147483647"),
    "link of a file": (link(TOKENIZER), r"tokenizer\.json is a link to outside the pack"),
    "link of pack.json": (link("pack.json"), "is a link to outside the pack"),
    "number of 400 digits": (put("image_encoder", "dim", value=10**400), "dim must be"),
    "embedding too wide": (put(*ARGUMENTS, value={"embed_dim": 10**8}), "from 0 to 65536"),
    "embedding beyond its weights": (put(*ARGUMENTS, value={"embed_dim": 65536}), "VSEPP needs"),
    "pickle as weights": (content(HEAD, b"\x80\x04pickle"), "not a readable safetensors file"),
    "header of 2**63 bytes": (tensors({}, size=2**63), "header too large"),
    "tensor of 2**124 values": (tensor("F32", [2**62, 2**62]), "overflow computing buffer size"),
    "tensor of NaN": (tensor("F32", [1]), "a holds NaN or infinity"),
    "external data": (constant(**EXTERNAL), "bomb is in another file"),
    "custom domain": (network(OWN), "operator Run of the domain own"),
    "network of 400 GB": (network(FILL, shape=[10**11]), "needs more memory than allowed"),
    "network of whole numbers": (network(INTEGERS, kind=TensorProto.INT64), "gives torch.int64"),
    "unknown method": (put("methods", "vsepp", "method", value="later"), 'no method "later"'),
    "network without its input": (network(GONE), "onnxruntime cannot load"),
    "network of other inputs": (swap_encoders, r"has the inputs \['ids', 'lengths'\] instead of"),
    "network that gives NaN": (network(LOG), "gives NaN or infinity"),
    "tokenizer with a regex bomb": (section("pre_tokenizer", SPLIT), "has the regular expression"),
    "regex bomb behind a decoy": (section("pre_tokenizer", DECOY), "has the regular expression"),
    "replacement with a regex bomb": (step(REPLACE), "the regular expression"),
    "tokenizer with a map": (step({"type": "Precompiled"}), "contains 'Precompiled'"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_pack_is_refused(name: str, small_pack: Path, tmp_path: Path) -> None:
    change, sentence = ATTACKS[name]
    pack = Path(shutil.copytree(small_pack, tmp_path / "pack"))
    change(pack)
    start = time.process_time()
    with pytest.raises(PackError, match=sentence) as refusal:
        use(pack)
    assert time.process_time() - start < SECONDS
    assert len(str(refusal.value)) < 1000
    assert "\n" not in str(refusal.value)


def test_links_of_the_hub_cache_are_followed(small_pack: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--tiny"
    snapshot = Path(shutil.copytree(small_pack, cache / "snapshots" / "abc"))
    for folder in (tmp_path, cache):
        (folder / "blobs").mkdir()
    shutil.move(snapshot / TOKENIZER, tmp_path / "blobs" / "123")
    (cache / "blobs" / "456").symlink_to("../../blobs/123")
    (snapshot / TOKENIZER).symlink_to("../../blobs/456")
    use(snapshot)
