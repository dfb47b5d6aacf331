"""Packs that are whole load; packs that are damaged or hostile are refused, each by a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import load_info, update_metrics
from polyview.export.pack.validation import PackError
from tests.export.conftest import NAME, TRAINED
from tests.export.editing import edited

METRICS = {
    "split": "test",
    "command": "python -m polyview evaluate --pack PACK",
    "hardware": "2 CPU cores",
    "values": {"rsum": 431.25, "i2t_r1": 40.0},
}
Edit = Callable[[Callable[[dict[str, Any]], object]], Path]


def first(values: dict[str, Any]) -> dict[str, Any]:
    """The first method of a pack.json."""
    return next(iter(values["methods"].values()))


def test_a_whole_pack_says_what_it_holds(pack: Path) -> None:
    info = load_info(pack)
    assert info.folder == pack
    assert list(info.methods) == list(TRAINED)
    assert info.image_encoder.grid == (4, 4)
    assert info.image_encoder.dim == 12
    assert info.preprocess.size == 64
    assert info.gallery is not None
    assert (info.gallery.images, info.gallery.captions, info.gallery.split) == (6, 6, "test")
    assert info.methods[NAME].config["seed"] == 7
    assert info.methods[NAME].metrics is None
    assert info.to_json() == json.loads((pack / "pack.json").read_text())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: p.update(format=2), "is of format 2, but .* update Polyview"),
        (lambda p: p.pop("format"), "is of format None"),
        (lambda p: p.update(name="Not A Name"), "is not a name"),
        (lambda p: p.update(extra=1), "unknown key 'extra'"),
        (lambda p: p.update(methods={}), "methods must have at least 1 item"),
        (lambda p: p["methods"][NAME].update(image_dim=13), "image_dim is 13, but"),
        (lambda p: p["methods"][NAME].update(head="h.safetensors"), "no checksum of it"),
        (lambda p: p["files"].update({"../x": p["files"]["tokenizer.json"]}), "plain relative"),
        (lambda p: p["files"].update({"x": p["files"]["tokenizer.json"]}), "lacks x; fetch"),
        (lambda p: p["files"]["tokenizer.json"].update(bytes=5), "bytes, but pack.json says 5"),
        (lambda p: p["files"]["tokenizer.json"].update(sha256="A" * 64), "64 lower-case hexadec"),
        (lambda p: p["preprocess"].update(size=1), "preprocess size must be 16 to 1024"),
        (lambda p: p["gallery"].update(images=7), "pack.json describes, 7 images with 6"),
        (lambda p: p["gallery"].update(images_sha256="0" * 64), "and their SHA-256; fetch"),
        (lambda p: p["gallery"].update(file="../gallery.json"), "file must be 'gallery/gallery"),
    ],
)
def test_nonsense_in_pack_json_is_refused(
    edit: Edit, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises((PackError, FileNotFoundError), match=sentence):
        load_info(edit(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(title="Another"),
        lambda values: values.update(credits="A thief"),
        lambda values: first(values).update(config={"seed": 1}),
        lambda values: first(values).update(metrics={**METRICS, "seed": 1}),
    ],
)
def test_words_and_numbers_make_another_pack_of_the_same_embeddings(
    copied: Path, edit: Edit, change: Callable[[dict[str, Any]], object]
) -> None:
    before, after = load_info(copied, verify=False), load_info(edit(change), verify=False)
    assert after.checksum == before.checksum
    assert after.identity != before.identity


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
    with pytest.raises(PackError, match=r"image_encoder\.onnx does not match its SHA-256"):
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
        (NAME, {"values": {"rsum": "high"}}, "rsum must be a valid number"),
        (NAME, {"command": ""}, "command must be a text"),
    ],
)
def test_wrong_metrics(copied: Path, method: str, change: dict[str, Any], sentence: str) -> None:
    before = (copied / "pack.json").read_bytes()
    with pytest.raises(PackError, match=sentence):
        update_metrics(copied, method, METRICS | change)
    assert (copied / "pack.json").read_bytes() == before


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
        (lambda g: g.update(images=[]), "images must have at least 1 item"),
        (lambda g: g["images"][0].update(file="../../x.webp"), "plain relative path"),
        (lambda g: g["images"][0].update(file="images/none.webp"), "lacks images/none.webp"),
        (lambda g: g["images"][0]["captions"][0].update(mentions=[1]), "mentions must be 0 to 0"),
        (
            lambda g: g["images"][0]["captions"][0].update(relevant=[6]),
            "relevant must be 0 to 5, not 6",
        ),
        (lambda g: g["images"][0]["captions"][0].update(relevant=[1]), "own image, 0"),
        (lambda g: g["images"][0]["objects"][0].update(box=[0.5, 0, 0.1, 1]), "relative xyxy"),
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
