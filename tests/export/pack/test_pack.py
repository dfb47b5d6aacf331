"""Packs that are whole load; packs that are damaged or hostile are refused, each by a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from export.hub.resolve import resolve
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.pack.validation import PackError
from export.pack.writing import update_metrics
from models import METHODS
from models.checkpoint import load_tensors, save_tensors
from tests.export.editing import edited, relist

NAME = next(iter(METHODS))
METRICS = {
    "split": "test",
    "command": "python -m training.evaluate --pack PACK",
    "hardware": "2 CPU cores",
    "values": {"rsum": 431.25, "i2t_r1": 40.0},
}
Edit = Callable[[Callable[[dict[str, Any]], object]], Path]


def test_a_whole_pack_says_what_it_holds(pack: Path) -> None:
    info = load_info(pack)
    assert info.folder == pack
    assert list(info.methods) == list(METHODS)
    assert info.image_encoder.grid == (4, 4)
    assert info.image_encoder.dim == 12
    assert info.preprocess.size == 64
    assert info.gallery is not None
    assert (info.gallery.images, info.gallery.captions, info.gallery.split) == (6, 6, "test")
    assert info.methods[NAME].config["seed"] == 7
    assert info.methods[NAME].metrics is None


def test_json_round_trip_changes_nothing(pack: Path) -> None:
    assert load_info(pack).to_json() == json.loads((pack / "pack.json").read_text())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: p.update(format=2), "is of format 2; .* update Polyview"),
        (lambda p: p.update(format="1"), "format must be a whole number"),
        (lambda p: p.pop("format"), "lacks 'format'"),
        (lambda p: p.pop("licence"), "lacks 'licence'"),
        (lambda p: p.update(title=""), "title must be a text"),
        (lambda p: p.update(name="Not A Name"), "is not a name"),
        (lambda p: p.update(extra=1), "unknown key 'extra'"),
        (lambda p: p.update(methods={}), "names no method"),
        (lambda p: p.update(methods=[]), "methods must be an object"),
        (lambda p: p["methods"].update({"../x": p["methods"][NAME]}), "is not a name"),
        (lambda p: p["methods"][NAME].update(image_dim=13), "image_dim is 13, but"),
        (lambda p: p["methods"][NAME].update(text_dim=0), "text_dim must be at least 1, not 0"),
        (lambda p: p["methods"][NAME].update(head="../h.safetensors"), "plain relative path"),
        (lambda p: p["methods"][NAME].update(head="/h.safetensors"), "plain relative path"),
        (lambda p: p["methods"][NAME].update(head="h.safetensors"), "no checksum of it"),
        (lambda p: p["methods"][NAME]["parity"].pop("ranking"), "lacks 'ranking'"),
        (lambda p: p["methods"][NAME].update(metrics={"split": "test"}), "metrics lacks 'command'"),
        (lambda p: p["files"].update({"../x": p["files"]["tokenizer.json"]}), "plain relative"),
        (lambda p: p["files"].update({"x": p["files"]["tokenizer.json"]}), "lacks x; fetch"),
        (lambda p: p["files"]["tokenizer.json"].update(bytes=-1), "bytes must be at least 0"),
        (lambda p: p["files"]["tokenizer.json"].update(bytes=5), "bytes, but pack.json says 5"),
        (lambda p: p["files"]["tokenizer.json"].update(sha256="A" * 64), "64 lower-case hexadec"),
        (lambda p: p["files"]["tokenizer.json"].update(sha256="0" * 64), "is not the file whose"),
        (lambda p: p["image_encoder"].update(grid=[4]), "grid lacks value 2"),
        (lambda p: p["image_encoder"].update(grid=[0, 4]), r"grid\[0\] must be at least 1"),
        (lambda p: p["preprocess"].update(size=1), "preprocess size must be 16 to 1024"),
        (lambda p: p["preprocess"].update(std=[0, 1, 1]), "std > 0"),
        (lambda p: p["preprocess"].update(fit="squeeze"), "fit must be .stretch. or .crop."),
        (lambda p: p["tokenizer"].update(max_length=0), "max_length must be at least 1"),
        (lambda p: p["gallery"].update(images=7), "but pack.json says"),
        (lambda p: p["gallery"].update(images_sha256="0" * 64), "gallery images of"),
        (lambda p: p["gallery"].update(file="../gallery.json"), "file must be 'gallery/gallery"),
        (lambda p: p["gallery"].update(file="tokenizer.json"), "file must be 'gallery/gallery"),
    ],
)
def test_nonsense_in_pack_json_is_refused(
    edit: Edit, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises((PackError, FileNotFoundError), match=sentence):
        load_info(edit(change))


def test_no_folder_no_pack_no_file(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no pack folder"):
        load_info(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"is not a pack: it has no pack\.json"):
        load_info(tmp_path)
    (copied / NAME / "head.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks .*head\.safetensors"):
        load_info(copied)


def test_one_flipped_bit_is_seen_only_with_verify(copied: Path) -> None:
    path = copied / "image_encoder.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    load_info(copied, verify=False)
    with pytest.raises(PackError, match=r"image_encoder\.onnx is not the file whose SHA-256"):
        load_info(copied)


def test_links_out_of_the_pack_are_refused(copied: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    shutil.move(copied / "tokenizer.json", outside)
    (copied / "tokenizer.json").symlink_to(outside)
    with pytest.raises(PackError, match=r"tokenizer\.json is a link to outside the pack"):
        load_info(copied)


def test_gallery_pictures_may_not_be_links_out(copied: Path, tmp_path: Path) -> None:
    picture = copied / "gallery" / "images" / "test-000001.webp"
    shutil.move(picture, tmp_path / "outside.webp")
    picture.symlink_to(tmp_path / "outside.webp")
    with pytest.raises(PackError, match="is a link to outside the pack"):
        load_info(copied)


def test_links_of_the_hub_cache_are_followed(copied: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--tiny"
    snapshot = cache / "snapshots" / "abc"
    shutil.copytree(copied, snapshot)
    (cache / "blobs").mkdir()
    shutil.move(snapshot / "tokenizer.json", cache / "blobs" / "123")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/123")
    assert load_info(snapshot).name == "tiny"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(copied: Path, value: float) -> None:
    head = f"{NAME}/head.safetensors"
    tensors, about = load_tensors(copied / head)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name] = torch.full_like(tensors[name], value)
    save_tensors(copied / head, tensors, about)
    relist(copied, head)
    with pytest.raises(PackError, match="NaN or infinity"):
        load_info(copied)


def test_onnx_weights_that_are_not_finite_are_refused(copied: Path) -> None:
    file = f"{NAME}/text_encoder.onnx"
    model = onnx.load(copied / file)
    tensor = max(model.graph.initializer, key=lambda t: np.prod(t.dims))
    assert tensor.data_type == onnx.TensorProto.FLOAT16
    values = np.full(tuple(tensor.dims), np.nan, np.float16)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, copied / file)
    relist(copied, file)
    with pytest.raises(PackError, match="holds NaN"):
        load_info(copied)


def test_onnx_weights_in_a_second_file_are_refused(copied: Path) -> None:
    model = onnx.load(copied / "image_encoder.onnx")
    onnx.save(
        model,
        copied / "image_encoder.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    relist(copied, "image_encoder.onnx")
    with pytest.raises(PackError, match="in another file"):
        load_info(copied)


@pytest.mark.parametrize("file", ["image_encoder.onnx", f"{NAME}/head.safetensors"])
def test_weights_files_that_are_something_else_are_refused(copied: Path, file: str) -> None:
    (copied / file).write_bytes(b"\x80\x04pickled or worse")
    relist(copied, file)
    with pytest.raises(PackError, match="is not a readable"):
        load_info(copied)


def test_metrics_are_written_and_the_card_with_them(copied: Path) -> None:
    before = load_info(copied)
    info = update_metrics(copied, NAME, METRICS)
    assert load_info(copied) == info
    metrics = info.methods[NAME].metrics
    assert metrics is not None
    assert metrics.values == METRICS["values"]
    assert metrics.seed == 7
    assert info.checksum == before.checksum
    assert "431.2" in (copied / "README.md").read_text()
    assert not list(copied.glob("*.partial"))


@pytest.mark.parametrize(
    ("method", "change", "sentence"),
    [
        ("nonsense", {}, 'has no method "nonsense"'),
        (NAME, {"values": {"rsum": "high"}}, "rsum must be a number"),
        (NAME, {"command": ""}, "command must be a text"),
        (NAME, {"note": "x"}, "unknown key 'note'"),
    ],
)
def test_wrong_metrics(copied: Path, method: str, change: dict[str, Any], sentence: str) -> None:
    before = (copied / "pack.json").read_bytes()
    with pytest.raises(PackError, match=sentence):
        update_metrics(copied, method, METRICS | change)
    assert (copied / "pack.json").read_bytes() == before


def test_checksum_follows_weights_and_gallery(edit: Edit) -> None:
    def other_weights(values: dict[str, Any]) -> None:
        values["files"]["tokenizer.json"]["sha256"] = "0" * 64

    pack = edit(lambda values: values.update(title="Another title"))
    before = load_info(pack, verify=False).checksum
    edit(other_weights)
    assert load_info(pack, verify=False).checksum != before


def test_gallery_comes_with_its_truth(pack: Path) -> None:
    gallery = load_gallery(pack)
    first, second = gallery.images[:2]
    assert load_gallery(pack / "gallery") == gallery
    assert first.objects[0].name == "dog"
    assert first.objects[0].box == (0.1, 0.2, 0.5, 0.6)
    assert first.captions[0].mentions == (0,)
    assert first.captions[0].relevant == (0, 3)
    assert second.captions[0].relevant == (1,)
    assert len(gallery.captions) == 6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda g: g.pop("split"), "lacks 'split'"),
        (lambda g: g.update(images=[]), "images must have at least 1 item"),
        (lambda g: g["images"][0].update(file="../../x.webp"), "plain relative path"),
        (lambda g: g["images"][0].update(file="images/none.webp"), "lacks images/none.webp"),
        (lambda g: g["images"][0].update(mask="/x.png"), "plain relative path"),
        (lambda g: g["images"][0]["captions"][0].update(mentions=[1]), "whole numbers from 0 to 0"),
        (lambda g: g["images"][0]["captions"][0].update(relevant=[6]), "whole numbers from 0 to 5"),
        (lambda g: g["images"][0]["captions"][0].update(relevant=[1]), "own image, 0"),
        (lambda g: g["images"][0]["captions"][0].update(text=" "), "text must be a text"),
        (lambda g: g["images"][0]["objects"][0].update(box=[0.5, 0, 0.1, 1]), "relative xyxy"),
        (lambda g: g["images"][0]["objects"][0].update(box=[0, 0, 1]), "box lacks value 4"),
    ],
)
def test_nonsense_in_a_gallery_is_refused(
    copied: Path, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    path = copied / "gallery" / "gallery.json"
    with edited(path) as values:
        change(values)
    with pytest.raises((PackError, FileNotFoundError), match=sentence):
        load_gallery(copied)


def test_only_the_checked_gallery_of_a_pack_is_read(copied: Path) -> None:
    (copied / "gallery.json").write_text('{"split": "hostile", "images": []}')
    assert load_gallery(copied).split == "test"
    (copied / "gallery" / "gallery.json").unlink()
    with pytest.raises(FileNotFoundError, match="there is no gallery in"):
        load_gallery(copied)


def test_resolve_finds_folders_and_explains_the_rest(pack: Path, tmp_path: Path) -> None:
    assert resolve(str(pack)) == pack
    with pytest.raises(FileNotFoundError, match="not a Hub repository such as owner/name"):
        resolve(str(tmp_path / "nowhere"))
