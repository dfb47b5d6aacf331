"""Foils: sentences that are true of a scene, and sentences that are not, read by themselves."""

import re
from collections import Counter
from pathlib import Path

import pytest

from polyview.export.pack.gallery import GalleryImage, GalleryInfo, load_gallery
from polyview.training.data.open_split import from_pack
from polyview.training.scenes.captions import SENTENCES
from polyview.training.scenes.classes import CLASSES
from polyview.training.scenes.foils import KINDS, Foil

BUNDLED = Path(__file__).parents[3] / "app" / "bundled" / "scenes"
NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5}
NOUNS = {form: kind.name for kind in CLASSES for form in kind.nouns[0]}
PART = re.compile(rf"(\w+)(?: (\w+))? ({'|'.join(NOUNS)})")
SIDES = {
    " to the left of ": lambda a, b: a[0] + a[2] < b[0] + b[2],
    " to the right of ": lambda a, b: a[0] + a[2] > b[0] + b[2],
    " above ": lambda a, b: a[1] + a[3] < b[1] + b[3],
    " below ": lambda a, b: a[1] + a[3] > b[1] + b[3],
}


@pytest.fixture(scope="module")
def gallery() -> GalleryInfo:
    return load_gallery(BUNDLED)


@pytest.fixture(scope="module")
def foils() -> list[Foil]:
    data = from_pack(BUNDLED, "test")
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


def test_one_sentence_is_true_and_the_other_false(gallery: GalleryInfo, foils: list[Foil]) -> None:
    for foil in foils:
        image = gallery.images[foil.image]
        assert is_true(image, foil.true), foil
        assert not is_true(image, foil.false), foil


def test_every_kind_is_asked_often_and_once_an_image(foils: list[Foil]) -> None:
    counts = Counter(foil.kind for foil in foils)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 150
    assert len({(foil.image, foil.kind) for foil in foils}) == len(foils)


def test_what_is_swapped_keeps_its_words_and_what_is_added_all_of_them(foils: list[Foil]) -> None:
    for foil in foils:
        true, false = (re.findall(r"\w+", text) for text in (foil.true, foil.false))
        if foil.kind == "swapped_objects":
            assert sorted(true) == sorted(false)
        if foil.kind.startswith("added"):
            assert not Counter(true) - Counter(false) - Counter(["and", "a", "an"])
