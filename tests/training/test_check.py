"""`polyview check` names the wrong preprocessing step of a pack, and accepts bundled packs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from polyview.app.settings import BUNDLED
from polyview.export.check import _token_variants
from polyview.export.runtime import Runtime
from polyview.training import check
from tests.export.conftest import edited, relist

PACK = BUNDLED / "clip_tiny"
TOKENIZER = "tokenizer.json"
PROMPT = "a picture of three dogs and a red car on a beach at night with"
SPACES = {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Removed", "invert": False}
Break = Callable[[Path], object]


def preprocessing(**values: Any) -> Break:
    def change(pack: Path) -> None:
        with edited(pack / "pack.json") as manifest:
            manifest["preprocess"] |= values

    return change


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Break:
    def changed(pack: Path) -> None:
        with edited(pack / TOKENIZER) as values:
            change(values)
        relist(pack, TOKENIZER)

    return changed


def around(*before: str, after: tuple[str, ...]) -> Break:
    """Puts special tokens around each text."""

    def change(values: dict[str, Any]) -> None:
        vocabulary, names = values["model"]["vocab"], dict.fromkeys([*before, *after])
        special = [{"SpecialToken": {"id": name, "type_id": 0}} for name in (*before, *after)]
        text = {"Sequence": {"id": "A", "type_id": 0}}
        values["post_processor"] |= {
            "single": [*special[: len(before)], text, *special[len(before) :]],
            "special_tokens": {
                name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in names
            },
        }

    return tokenizer(change)


def blue_first(pack: Path) -> None:
    """Swaps the red and blue channels of the image encoder's input."""
    path = pack / "image_encoder.onnx"
    model = onnx.load(path)
    weight = next(t for t in model.graph.initializer if "patch_embedding" in t.name)
    turned = numpy_helper.to_array(weight)[:, ::-1].copy()
    weight.CopyFrom(numpy_helper.from_array(turned, weight.name))
    onnx.save(model, path)
    relist(pack, path.name)


# damage -> the step to fix, the number of images that reveal it, and the change to the pack
BREAKS: dict[str, tuple[str, int, Break]] = {
    "pixels of 0 to 1": ("normalisation", 50, preprocessing(mean=[0.0] * 3, std=[1.0] * 3)),
    "blue for red": ("channels", 24, blue_first),
    "cropped": ("crop", 50, preprocessing(fit="crop", resize=192)),
    "no end mark": ("special tokens and padding", 24, around("<start>", after=())),
    "a prompt": ("prompt", 50, around("<start>", *PROMPT.split(), after=("<end>",))),
    "upper case": ("lower case", 24, tokenizer(lambda v: v.update(normalizer={"type": "NFKC"}))),
    "commas": ("punctuation", 24, tokenizer(lambda values: values.update(pre_tokenizer=SPACES))),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first 50 images of the bundled scenes and their captions."""
    folder, gallery = tmp_path_factory.mktemp("pairs"), BUNDLED / "scenes/gallery"
    listed = json.loads((gallery / "gallery.json").read_text("utf-8"))["images"][:50]
    with (folder / "captions.jsonl").open("w", encoding="utf-8") as file:
        for image in listed:
            path, captions = gallery / image["file"], [c["text"] for c in image["captions"]]
            shutil.copy(path, folder)
            row = {"file": path.name, "split": "val", "captions": captions}
            file.write(json.dumps(row) + "\n")
    return folder


Printed = pytest.CaptureFixture[str]


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKS)
def test_a_wrong_step_is_named(name: str, pairs: Path, tmp_path: Path, capsys: Printed) -> None:
    step, images, damage = BREAKS[name]
    pack = Path(shutil.copytree(PACK, tmp_path / "pack"))
    damage(pack)
    assert check.main([str(pack), "--data", str(pairs), "--pairs", str(images)]) == 1
    assert f"fix the {step} first: " in capsys.readouterr().out


def test_a_text_of_only_special_tokens_keeps_them() -> None:
    runtime = Runtime.load(PACK, "cpu")
    start, *words, end = runtime.reader.read("a dog").ids
    variants = _token_variants(runtime, ["a dog", "<end>"], [[start, *words, end], [start, end]])
    assert [words, [start, end]] in [
        ids for _, variant, ids, _ in variants if variant == "TEXT alone"
    ]


@pytest.mark.parametrize("pack", ["clip_tiny", pytest.param("scenes", marks=pytest.mark.slow)])
def test_a_bundled_pack_passes(pack: str, pairs: Path, capsys: Printed) -> None:
    assert check.main([str(BUNDLED / pack), "--data", str(pairs), "--pairs", "24"]) == 0
    assert "WRONG" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="needs 20 images with captions, not -1"):
        check.main([str(BUNDLED / pack), "--data", str(pairs), "--pairs", "-1"])
