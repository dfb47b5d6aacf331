"""What a minus is worth, to a bag of words whose answers are known, and to the bundled methods."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from app.settings import BUNDLED
from export.pack.gallery import GalleryImage, load_gallery
from export.runtime import Runtime
from models.views import Views
from training.evaluation.minus import Absence, absences, main, minus_metrics

PACK = BUNDLED / "scenes_twins"


def names(image: GalleryImage) -> set[str]:
    return {thing.name for thing in image.objects}


def bare(noun: str) -> str:
    """Without its article."""
    return noun.split(" ", 1)[1]


def test_what_is_gone_is_in_the_twin_alone() -> None:
    images = load_gallery(PACK).images
    found = absences(images)
    assert len(found) == len(images)
    for row, (sentence, there, gone) in enumerate(found):
        name = bare(gone)
        assert name in names(images[row ^ 1]) - names(images[row])
        assert name[:3] in sentence
        assert {bare(name) for name in there.split(" and ")} <= names(images[row])


def test_images_that_are_no_twins_are_refused() -> None:
    images = load_gallery(PACK).images
    silent = replace(images[1], captions=())
    for wrong in (images[1:3], images[:1], (images[0], silent)):
        with pytest.raises(ValueError, match=r"webp has no twin, or no caption of what is not"):
            absences(wrong)


def test_a_bag_of_words_finds_the_twin_until_it_is_taken_away() -> None:
    """It reads "no lizard" as a lizard, which the twin has."""
    words = ["rose", "lizard", "horse"]

    def text_views(texts: list[str], method: str) -> Views:
        assert method == "bag"
        return Views(torch.tensor([[[float(word in text) for word in words]] for text in texts]))

    def score(images: Views, texts: Views) -> torch.Tensor:
        return images.embeddings[:, 0] @ texts.embeddings[:, 0].T

    runtime = SimpleNamespace(methods={"bag": SimpleNamespace(score=score)}, text_views=text_views)
    images = Views(torch.tensor([[[1.0, 0.0, 1.0]], [[1.0, 1.0, 0.0]]]))
    captions = [
        Absence("a rose but no lizard", "a rose", "a lizard"),
        Absence("a rose but no horse", "a rose", "a horse"),
    ]
    found = minus_metrics(cast(Runtime, runtime), "bag", images, captions)
    assert {name: above for name, (above, _) in found.items()} == {
        "the sentence": 0.0,
        "minus 0": 50.0,  # the twins are one to it
        "minus 0.25": 100.0,
        "minus 0.5": 100.0,
        "minus 1": 100.0,
    }
    assert found["the sentence"][1] == 0.0
    assert found["minus 1"][1] == 100.0


def test_a_minus_helps_every_bundled_method(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/results.md says so."""
    assert main(["--pack", str(PACK)]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    found = {(method.strip(), asked.strip()): float(above) for method, asked, above, _ in rows}
    methods = {method for method, _ in found}
    assert methods == {"vse_infty", "mvam", "pvse"}
    for method in methods:
        assert found[method, "the sentence"] < 60
        assert found[method, "minus 0.5"] > 70


def test_a_pack_without_twins_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pack", str(BUNDLED / "scenes")]) == 2
    assert "test-000000.webp has no twin" in capsys.readouterr().err
    assert main(["--pack", str(BUNDLED / "photos")]) == 2
    assert "there is no gallery in" in capsys.readouterr().err
