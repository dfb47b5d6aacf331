"""Complete packs are loaded; damaged and invalid packs are refused; the model card."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import TAG, load_info, render_card, update_metrics
from polyview.export.pack.validation import PackError
from polyview.models import METHODS
from tests.export.conftest import NAME, TRAINED, edited

BUNDLED = Path(__file__).parents[3] / "app" / "bundled"
METRICS: dict[str, Any] = {
    "split": "te|st",
    "command": "python -m polyview evaluate --pack PACK",
    "hardware": "2 CPU cores (somebody's)",
    "seed": 11,
    "values": {"rsum": 431.25, "t2i_r1": 41.26, "t2i_map_at_r": 37.0, "side_rsum_low": 390.0},
}
Change = Callable[[dict[str, Any]], object]
REFUSED: list[tuple[Change, str]] = [
    (lambda p: p.update(format=2), "is of format 2, but .* update Polyview"),
    (lambda p: p.pop("format"), "is of format None"),
    (lambda p: p.update(name="Not A Name"), "is not a name"),
    (lambda p: p.update(extra=1), "unknown key 'extra'"),
    (lambda p: p.update(methods={}), "methods must have at least 1 item"),
    (lambda p: p["image_encoder"].update(grid=[4]), "grid lacks value 2"),
    (lambda p: p["methods"][NAME].update(image_dim=13), "image_dim is 13, but"),
    (lambda p: p["methods"][NAME].update(head="h.safetensors"), "has no entry in"),
    (lambda p: p["files"].update({"../x": p["files"]["tokenizer.json"]}), "plain relative"),
    (lambda p: p["files"].update({"x": p["files"]["tokenizer.json"]}), "lacks x; fetch"),
    (lambda p: p["files"]["tokenizer.json"].update(bytes=5), "bytes, but pack.json says 5"),
    (lambda p: p["files"]["tokenizer.json"].update(sha256="A" * 64), "64 lower-case hexadec"),
    (lambda p: p["preprocess"].update(size=1), "preprocess size must be 16 to 1024"),
    (lambda p: p["gallery"].update(images=7), "pack.json describes, with 7 images and 6"),
    (lambda p: p["gallery"].update(images_sha256="0" * 64), "not the one that pack.json describes"),
    (lambda p: p["gallery"].update(file="../gallery.json"), "file must be 'gallery/gallery"),
]
REFUSED_GALLERIES: list[tuple[Change, str]] = [
    (lambda g: g.update(images=[]), "images must have at least 1 item"),
    (lambda g: g["images"][0].update(file="../../x.webp"), "plain relative path"),
    (lambda g: g["images"][0].update(file="images/none.webp"), "lacks images/none.webp"),
    (lambda g: g["images"][0]["captions"][0].update(mentions=[1]), "mentions must be 0 to 0"),
    (lambda g: g["images"][1]["captions"][0].update(mentions=[0]), "must be empty for an image"),
    (lambda g: g["images"][0]["captions"][0].update(relevant=[6]), "relevant must be 0 to 5"),
    (lambda g: g["images"][0]["captions"][0].update(relevant=[1]), "own image, 0"),
    (lambda g: g["images"][0]["objects"][0].update(box=[0.5, 0, 0.1, 1]), "relative xyxy"),
]

PLAIN = ["a", "vse_infty/text_2.onnx", "a-b/c.d/e_f.webp", "a..b"]
NOT_PLAIN = ["../secret", "a/../../secret", "/etc/passwd", "C:/windows", "C:\\windows", "a\\b"]
NOT_PLAIN += ["./a", ".hidden", "a/.hidden", "a//b", "a/", "", "a b", "a*", "a[0]", "a\n", "a\0"]
NOT_PLAIN += ["ä", "x" * 300]
UNREADABLE = [b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe", b"[" * 100_000, b'"\\ud83d"']


@pytest.mark.parametrize(
    ("name", "rows", "load"),
    [("pack.json", REFUSED, load_info), ("gallery/gallery.json", REFUSED_GALLERIES, load_gallery)],
)
def test_wrong_values_are_refused(
    name: str, rows: list[tuple[Change, str]], load: Callable[[Path], object], copied: Path
) -> None:
    content = (copied / name).read_bytes()
    for change, sentence in rows:
        (copied / name).write_bytes(content)
        with edited(copied / name) as values:
            change(values)
        with pytest.raises((PackError, FileNotFoundError), match=sentence):
            load(copied)


def test_unreadable_json_and_paths_that_are_not_plain(copied: Path) -> None:
    path, content = copied / "pack.json", json.loads((copied / "pack.json").read_text())
    for names, sentence in ((PLAIN, "has no entry in"), (NOT_PLAIN, "not a plain relative path")):
        for name in names:
            content["methods"][NAME]["head"] = name
            path.write_text(json.dumps(content))
            with pytest.raises(PackError, match=sentence):
                load_info(copied)
    for unreadable in UNREADABLE:
        path.write_bytes(unreadable)
        with pytest.raises(PackError, match="is not readable JSON"):
            load_info(copied)


def test_missing_and_damaged_files(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no pack folder"):
        load_info(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"is not a pack: it has no pack\.json"):
        load_info(tmp_path)
    path = copied / "image_encoder.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    load_info(copied, verify=False)
    with pytest.raises(PackError, match=r"image_encoder\.onnx does not match its SHA-256"):
        load_info(copied)
    (copied / NAME / "head.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks .*head\.safetensors"):
        load_info(copied, verify=False)


def test_words_make_another_pack_of_the_same_embeddings(copied: Path) -> None:
    changes: list[Change] = [
        lambda values: values.update(title="Another"),
        lambda values: values["methods"][NAME].update(config={"seed": 1}),
        lambda values: values["methods"][NAME].update(metrics=METRICS),
        lambda values: values["methods"][NAME].update(head=values["methods"][TRAINED[1]]["head"]),
    ]
    infos = [load_info(copied, verify=False)]
    for change in changes:
        with edited(copied / "pack.json") as values:
            change(values)
        infos.append(load_info(copied, verify=False))
    assert len({info.checksum for info in infos[:-1]}) == 1
    assert infos[-1].checksum != infos[0].checksum
    assert len({info.identity for info in infos}) == len(infos)


def test_metrics_are_written_and_the_card_with_them(copied: Path) -> None:
    before, manifest = load_info(copied), (copied / "pack.json").read_bytes()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("nonsense", {}, 'has no method "nonsense"'),
        (NAME, {"values": {"rsum": "high"}}, "rsum must be a valid number"),
        (NAME, {"command": ""}, "command must be a non-empty string"),
    ]
    for method, change, sentence in wrong:
        with pytest.raises(PackError, match=sentence):
            update_metrics(copied, method, METRICS | change)
        assert (copied / "pack.json").read_bytes() == manifest
    info = update_metrics(copied, NAME, METRICS)
    assert load_info(copied) == info
    assert info.to_json()["methods"][NAME]["metrics"] == METRICS
    assert info.checksum == before.checksum
    assert not list(copied.glob("*.partial"))
    results = (copied / "README.md").read_text("utf-8").split("## Results")[1].split("##")[0]
    for line in (
        f"|  | `{NAME}` |",
        "| split | te\\|st |",
        "| text to image R@1 | 41.3 |",
        "| text to image mAP@R | 37.0 |",
        "| rsum, the sum of the six recalls | 431.2 |",
        f"- `{NAME}`: `{METRICS['command']}`; {METRICS['hardware']}; training seed 11",
    ):
        assert f"\n{line}" in results, line
    assert f"`{NAME}`" not in results.split("Not measured yet")[1]


def test_the_cards_of_bundled_packs_are_current() -> None:
    for card in sorted(BUNDLED.glob("*/README.md")):
        assert card.read_text("utf-8") == render_card(load_info(card.parent, verify=False)), card


def test_the_card_says_what_pack_json_says(pack: Path) -> None:
    info, text = load_info(pack), (pack / "README.md").read_text("utf-8")
    assert text == render_card(info)
    assert "Not measured yet" in text.split("## Results")[1].split("##")[0]
    papers = [f"{METHODS[name].title} | {METHODS[name].paper}" for name in TRAINED]
    parts = (info.title, info.description, info.credits, "## Intended use and limits", *papers)
    assert not [part for part in parts if part not in text]
    front = ModelCard(text).data.to_dict()  # as the Hub reads it
    assert (front["license"], front["pipeline_tag"]) == ("apache-2.0", "feature-extraction")
    assert (front["library_name"], front["language"]) == ("polyview", "en")
    assert {TAG, *TRAINED} <= set(front["tags"])
    other = ModelCard(render_card(replace(info, licence='My "own": licence'))).data.to_dict()
    assert (other["license"], other["license_name"]) == ("other", "my-own-licence")
