"""The Python API: `polyview.load`, `Model`, `register`, docs/library.md."""

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image

import polyview
from polyview.__main__ import COMMANDS
from polyview.__main__ import main as command_line
from polyview.core import Model
from polyview.export.runtime import Runtime
from polyview.models import METHODS, Views
from polyview.models.vse_infty import VSEInfinity

ROOT = Path(__file__).parents[1]
TEXTS = ["a panda", "two red cars beside a green sofa", "a dog"]
PACKS = ("scenes_moving", "photos", "clip_tiny")


@pytest.fixture(scope="module")
def model() -> Model:
    return polyview.load("scenes", "mvam")


@pytest.mark.parametrize("pack", PACKS)
def test_evidence_adds_up_for_every_method(pack: str) -> None:
    """With random features (5, N, d), and with two masked features at the end of each set."""
    runtime = Runtime.load(polyview.bundled() / pack)
    count, dim = max(1, len(runtime.boxes)), runtime.info.image_encoder.dim
    padded = np.random.default_rng(1).normal(size=(5, count + 2, dim)).astype(np.float32)
    for name in runtime.methods:
        model = Model(runtime, name)
        images = model.encode_images(padded[:, :count])
        longer = model.encode_images(padded, mask=np.arange(count + 2) < [[count]] * 5)
        texts = model.encode_texts(TEXTS)
        scores = model.similarity(images, texts)
        torch.testing.assert_close(model.similarity(longer, texts), scores)
        assert scores.shape == (5, 3)
        assert model.view_scores(images, texts).shape == (images.embeddings.shape[1], 5, 3)
        assert images.attention is not None
        maps = images.attention[..., int(runtime.info.image_encoder.summary_token) :]
        assert model.attention(images).flatten(2).shape == maps.shape
        assert torch.equal(model.attention(images[[3]]), model.attention(images)[[3]])
        for row in range(3):
            evidence = model.evidence(longer, texts[[row]])
            assert len(model.words(TEXTS[row])) <= evidence.cells.shape[2]
            torch.testing.assert_close(evidence.score, scores[:, row], atol=1e-4, rtol=1e-4)


def test_long_lists_are_encoded_in_parts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted((polyview.bundled() / "scenes/gallery/images").iterdir())[:5]
    images, texts = model.encode_images(files), model.encode_texts(TEXTS)
    expected = model.similarity(images, texts)
    monkeypatch.setattr("polyview.core._BATCH", 2)
    with Image.open(files[0]) as image:
        mixed = model.encode_images([image, str(files[1]), *files[2:]])
    single = [model.similarity(mixed, model.encode_texts(text)) for text in TEXTS]
    torch.testing.assert_close(torch.cat(single, dim=1), expected)
    evidence = model.evidence(mixed, texts[[0]])
    torch.testing.assert_close(evidence.score, expected[:, 0])


VIEW = Views(torch.zeros(1, 1, 64))  # no attention, no features
NARROW = Views(torch.zeros(1, 1, 3))
MISTAKES: dict[type[Exception], list[tuple[Callable[[Any], object], str]]] = {
    TypeError: [
        (lambda m: m.encode_images([3]), "int"),
        (lambda m: m.encode_images(3), "an image is a path or a PIL image, not int 3"),
        (lambda m: m.encode_texts([3]), "a text is a string, not int 3"),
        (lambda _: polyview.register("x", cast(Any, dict)), "subclass of polyview"),
    ],
    ValueError: [
        (lambda m: m.encode_images([]), "no image to encode"),
        (lambda m: m.encode_images(__file__), "cannot be read as an image"),
        (lambda m: m.encode_images(np.zeros((2, 49, 7))), r"reads features \(B, N, "),
        (lambda m: m.encode_images(np.zeros((2, 7))), r"reads features \(B, N, "),
        (lambda m: m.encode_texts(["a dog", " "]), "text 2 of 2 is empty"),
        (lambda m: m.encode_texts([]), "no text to encode"),
        (lambda m: m.encode_images(np.zeros((1, 2, 256)), np.ones((1, 3))), "the mask is"),
        (lambda m: m.similarity(NARROW, m.encode_texts("a")), "have 3 dimensions and text .* 64"),
        (lambda m: m.attention(VIEW), "have no attention"),
        (lambda m: m.evidence(VIEW, m.encode_texts("a")), "use views from encode_images"),
        (
            lambda m: m.evidence(m.encode_texts("a"), m.encode_texts(["a", "b"])),
            "one text, or one for each of the 1 images, not 2",
        ),
        (lambda m: m.runtime.text_features("dog", "mvam"), r'write \["dog"\]'),
        (lambda _: polyview.load("scenes", "mvan"), 'no method "mvan"'),
        (lambda _: polyview.register("pvse", VSEInfinity), "belongs to PVSE"),
    ],
    FileNotFoundError: [
        (lambda m: m.encode_images("no.jpg"), "no image file no.jpg"),
        (lambda _: polyview.load("scenez"), "scenez"),
    ],
}


@pytest.mark.parametrize("error", MISTAKES)
def test_wrong_arguments_are_refused(model: Model, error: type[Exception]) -> None:
    for call, sentence in MISTAKES[error]:
        with pytest.raises(error, match=sentence) as caught:
            call(model)
        assert "\n" not in str(caught.value)


def test_commands_have_a_help_text_and_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS.keys() - {"app"}:
        with pytest.raises(SystemExit, match="0"):
            command_line([name, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: python -m polyview {name} [-h]")
    assert command_line(["--help"]) == 0
    assert "\n  search\n" in capsys.readouterr().out
    assert command_line(["serach"]) == 2
    assert "\n  search\n" in capsys.readouterr().err
    assert command_line(["--pack", "nowhere"]) == 1
    assert "polyview: there is no folder nowhere" in capsys.readouterr().err


def test_the_examples_of_the_library_page() -> None:
    mpl.use("agg")
    result = doctest.testfile(str(ROOT / "docs/library.md"), module_relative=False)
    METHODS.pop("doubled")
    assert result.attempted > 20
    assert not result.failed
