"""Letters on the sheet: other alphabets where the machine has a font, visible signs elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from app.tabs.compare import letters
from app.tabs.compare.letters import cut, fitted

CYRILLIC, GREEK = "Собака на пляже", "σκύλος στην παραλία"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has no font of its own."""
    monkeypatch.setattr(letters, "_OTHERS", ())


def drawn(words: str) -> np.ndarray:
    written, font = fitted(words, 24)
    picture = Image.new("L", (400, 40))
    ImageDraw.Draw(picture).text((2, 2), written, 255, font)
    return np.asarray(picture)


@pytest.mark.parametrize("words", [CYRILLIC, GREEK])
def test_other_alphabets_are_written_where_a_font_has_them(words: str) -> None:
    there = [name for name in letters._OTHERS if letters._font(name, 24) is not None]
    assert there, f"install one of {letters._OTHERS}; on Debian DejaVu comes with fontconfig"
    assert fitted(words, 24)[0] == words
    assert cut(words, 24, 2000) == words
    # Every letter has a shape of its own, so another text does not look the same.
    shapes = {bytes(drawn(letter)) for letter in set(words) - {" "}}
    assert len(shapes) == len(set(words) - {" "})


@pytest.mark.usefixtures("bare")
def test_without_a_font_letters_are_replaced_visibly() -> None:
    assert fitted(CYRILLIC, 24)[0] == "?????? ?? ?????"
    assert fitted("Ǻé → dog", 24)[0] == "Ae ? dog"
    assert drawn(CYRILLIC).any()


def test_english_looks_the_same_on_every_machine() -> None:
    own = letters._font("", 24)
    words = "VSE∞ \N{EN DASH} it\N{RIGHT SINGLE QUOTATION MARK}s"
    for shown in ("a dog", words, ""):
        assert fitted(shown, 24)[1] is own
    assert fitted(words, 24)[0] == "VSE-infinity - it's"


@pytest.mark.parametrize("words", ["a dog on a beach", CYRILLIC])
def test_what_does_not_fit_is_cut(words: str) -> None:
    shown = cut(words, 24, 100)
    assert shown.endswith("...")
    written, font = fitted(shown, 24)
    assert font.getlength(written) <= 100
    assert shown.startswith(fitted(words, 24)[0][:3])
