"""Letters on the sheet: Pillow's own font, and for what it lacks one of the machine's.

The font that comes with Pillow has the letters of English only. Words that need others are written
in a font of this machine that has them, found by its file's name where the system keeps its fonts.
Letters that no font has become the nearest of English, or else a question mark.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect
from functools import cache

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Of Linux, Windows and macOS; those with the most alphabets first.
_OTHERS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "FreeSans.ttf",
    "arial.ttf",
    "segoeui.ttf",
    "Arial Unicode.ttf",
    "Arial.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "msyh.ttc",
    "YuGothM.ttc",
    "malgun.ttf",
    "PingFang.ttc",
    "Hiragino Sans GB.ttc",
    "AppleSDGothicNeo.ttc",
)
_PROBE = 24  # pixels of the letters that are looked at to see whether a font has them
_SPELLED = {
    "∞": "-infinity",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{MINUS SIGN}": "-",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}


def fitted(words: str, size: int) -> tuple[str, Font]:
    """Words as they can be written, and the font to write them in, of `size` pixels.

    >>> fitted("VSE∞, a dog", 20)[0]
    'VSE-infinity, a dog'
    """
    plain = "".join(_SPELLED.get(letter, letter) for letter in words)
    lacking = {"": _lacking(plain, "")}
    for name in _OTHERS if lacking[""] else ():
        if _font(name, _PROBE) is None:
            continue
        lacking[name] = _lacking(plain, name)
        if not lacking[name]:
            break
    best = min(lacking, key=lambda name: len(lacking[name]))  # the first of equals
    written = "".join(_nearest(x) if x in lacking[best] else x for x in plain)
    font = _font(best, size)
    assert font is not None
    return written, font


def cut(words: str, size: int, width: int) -> str:
    """As much of the words, as they can be written, as fits a width in pixels."""
    shown, font = fitted(" ".join(words.split()), size)
    if font.getlength(shown) <= width:
        return shown
    # Each letter makes it longer, so the most that fits is found by halving.
    fits = bisect(range(len(shown)), width, key=lambda n: int(font.getlength(f"{shown[:n]}...")))
    return f"{shown[: max(0, fits - 1)].rstrip()}..."


def _lacking(words: str, name: str) -> frozenset[str]:
    """The letters that a font draws as its sign for letters it lacks."""
    return frozenset(letter for letter in set(words) if not _has(letter, name))


@cache
def _has(letter: str, name: str) -> bool:
    font = _font(name, _PROBE)
    if font is None:
        return False
    return letter.isascii() or bytes(font.getmask(letter)) != bytes(font.getmask("\uffff"))


def _nearest(letter: str) -> str:
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain if plain.isprintable() and plain else "?"


@cache
def _font(name: str, size: int) -> Font | None:
    """A font of the machine; that of Pillow for an empty name, None where it has none such."""
    if not name:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None
