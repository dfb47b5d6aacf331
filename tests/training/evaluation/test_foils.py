"""True captions beside false ones: what they say, and their scores, against one at a time."""

import re
from collections import Counter
from pathlib import Path

import pytest

from polyview.export.pack.gallery import GalleryImage, load_gallery
from polyview.export.runtime import Runtime
from polyview.training.data.open_split import from_pack
from polyview.training.evaluation.kinds import foil_metrics
from polyview.training.scenes.captions import SENTENCES
from polyview.training.scenes.classes import CLASSES
from polyview.training.scenes.foils import KINDS, Foil
from tests.training.sample import BUNDLED, write_sample

METHODS = ("vsepp", "avse")
NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5}
NOUNS = {form: kind.name for kind in CLASSES for form in kind.nouns[0]}
PART = re.compile(rf"(\w+)(?: (\w+))? ({'|'.join(NOUNS)})")
SIDES = {
    " to the left of ": lambda a, b: a[0] + a[2] < b[0] + b[2],
    " to the right of ": lambda a, b: a[0] + a[2] > b[0] + b[2],
    " above ": lambda a, b: a[1] + a[3] < b[1] + b[3],
    " below ": lambda a, b: a[1] + a[3] > b[1] + b[3],
}


def foils_of(pack: Path) -> list[Foil]:
    data = from_pack(pack, "test")
    assert data.foils is not None
    return data.foils()


def is_true(image: GalleryImage, text: str) -> bool:
    """Reads a sentence without the module's help."""
    for setting, phrases in SENTENCES["places"].items():
        if text.endswith(f" {phrases[0]}"):
            text = text.removesuffix(f" {phrases[0]}")
            if setting != image.setting:
                return False
    side = next((words for words in SIDES if words in text), " and ")
    counts = Counter(entry.name for entry in image.objects)
    boxes = {entry.name: entry.box for entry in image.objects}
    places = []
    for part in re.split(f"{side}|, ", text):
        read = PART.fullmatch(part)
        assert read, part
        number, color, noun = read.groups()
        name = NOUNS[noun]
        colors = {entry.color for entry in image.objects if entry.name == name}
        enough = counts[name] == NUMBERS[number] if NUMBERS[number] > 1 else counts[name] >= 1
        if not enough or (color and color not in colors):
            return False
        places.append(boxes[name])
    return side not in SIDES or SIDES[side](*places)


def test_one_sentence_is_true_and_the_other_false() -> None:
    gallery, foils = load_gallery(BUNDLED), foils_of(BUNDLED)
    counts = Counter(foil.kind for foil in foils)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 150
    assert len({(foil.image, foil.kind) for foil in foils}) == len(foils)
    for foil in foils:
        image = gallery.images[foil.image]
        assert is_true(image, foil.true), foil
        assert not is_true(image, foil.false), foil
        true, false = (re.findall(r"\w+", text) for text in (foil.true, foil.false))
        if foil.kind == "swapped_objects":
            assert sorted(true) == sorted(false)
        if foil.kind.startswith("added"):
            assert not Counter(true) - Counter(false) - Counter(["and", "a", "an"])


def test_a_share_is_what_single_scores_say_and_half_for_ties(tmp_path: Path) -> None:
    pack = write_sample(tmp_path / "scenes", 6, METHODS)
    runtime, foils = Runtime.load(pack, "cpu"), foils_of(pack)
    images = from_pack(pack, "test").images
    features = runtime.image_features([images[row] for row in range(6)])
    for name, method in runtime.methods.items():
        together = runtime.image_views(features, name)
        views = [runtime.image_views(features[row : row + 1], name) for row in range(6)]
        right: dict[str, list[bool]] = {}
        for foil in foils:
            texts = runtime.text_views([foil.true, foil.false], name)
            true, false = method.score(views[foil.image], texts)[0].tolist()
            right.setdefault(foil.kind, []).append(true > false)
        results = foil_metrics(runtime, name, together, foils)
        for kind, each in right.items():
            assert results[f"foil_{kind}"] == pytest.approx(100 * sum(each) / len(each))
            assert results[f"foil_{kind}_pairs"] == len(each)
    same = [foil._replace(false=foil.true) for foil in foils if foil.image == 0]
    results = foil_metrics(runtime, "vsepp", runtime.image_views(features, "vsepp"), same)
    assert {results[key] for key in results if key.removeprefix("foil_") in KINDS} == {50.0}
