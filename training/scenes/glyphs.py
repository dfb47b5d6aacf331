"""Finds the emoji font and turns its glyphs into sprites.

The font is Noto Color Emoji (Debian package ``fonts-noto-color-emoji``, OFL 1.1). It is needed only
to render scenes.
"""

import hashlib
import os
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FONT_ENV = "POLYVIEW_EMOJI_FONT"
FONT_FILE = "NotoColorEmoji.ttf"
STRIKE = 109
"""The pixel size of the font's bitmaps."""


class FontMissingError(RuntimeError):
    """No usable colour emoji font was found."""


def find_font() -> Path:
    """The path of the emoji font: from `FONT_ENV`, or in a font folder of system or user.

    Raises:
        FontMissingError: the message names the package and the variable.
    """
    advice = (
        "install the Debian package fonts-noto-color-emoji, "
        f"or set {FONT_ENV} to the path of {FONT_FILE}."
    )
    named = os.environ.get(FONT_ENV)
    if named is not None:
        if Path(named).is_file():
            return Path(named)
        raise FontMissingError(f"{FONT_ENV} names {named!r}, which is no file: {advice}")
    prefixes = (Path(sys.prefix), Path(os.sep, "usr"), Path(os.sep, "usr", "local"))
    user = (Path.home() / ".local/share/fonts", Path.home() / ".fonts")
    for folder in (*(prefix / "share/fonts" for prefix in prefixes), *user):
        if files := sorted(folder.rglob(FONT_FILE)):
            return files[0]
    raise FontMissingError(f"{FONT_FILE} was not found: {advice}")


def font_sha256() -> str:
    """The checksum of the font file, on which pixels depend."""
    return hashlib.sha256(find_font().read_bytes()).hexdigest()


@lru_cache(maxsize=1)
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(find_font()), STRIKE, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=1024)
def sprite(glyph: str, hue: float | None = None) -> Image.Image:
    """An emoji as a square RGBA image, cropped to its visible part and centred.

    Its dominant hue is turned to `hue`, in degrees.

    Raises:
        ValueError: the font has no image for the glyph.
    """
    canvas = Image.new("RGBA", (STRIKE * 2, STRIKE * 2), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((20, 20), glyph, font=_font(), embedded_color=True)
    box = canvas.getchannel("A").point(lambda alpha: 255 * (alpha > 8)).getbbox()
    if box is None or not np.asarray(canvas.crop(box))[..., :3].any():
        raise ValueError(f"the emoji font has no image for {glyph!r} (U+{ord(glyph[0]):X})")
    left, top, right, bottom = box
    side = max(right - left, bottom - top)
    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    corner = ((side - right + left) // 2, (side - bottom + top) // 2)
    square.paste(canvas.crop(box), corner)
    return square if hue is None else _repaint(square, hue)


def _repaint(image: Image.Image, hue: float) -> Image.Image:
    """Turns the dominant hue of an image to another one, keeping greys and other hues."""
    hsv = np.asarray(image.convert("RGB").convert("HSV")).astype(np.int32)
    alpha = np.asarray(image.getchannel("A"))
    weight = hsv[..., 1] * hsv[..., 2] * (alpha > 128)
    histogram = np.bincount(hsv[..., 0].ravel(), weights=weight.ravel(), minlength=256)
    wrapped = np.concatenate([histogram[-8:], histogram, histogram[:8]])
    dominant = int(np.convolve(wrapped, np.ones(17), mode="valid").argmax())
    target = round(hue / 360 * 256)
    distance = (hsv[..., 0] - dominant + 128) % 256 - 128
    chosen = (np.abs(distance) < 26) & (hsv[..., 1] > 40)
    turned: NDArray[np.int32] = hsv.copy()
    turned[..., 0] = np.where(chosen, (target + distance // 2) % 256, hsv[..., 0])
    if 90 <= hue <= 150:  # greens look brighter than reds and blues
        turned[..., 2] = np.where(chosen, hsv[..., 2] * 3 // 4, hsv[..., 2])
    rgb = Image.fromarray(turned.astype(np.uint8), "HSV").convert("RGB")
    rgb.putalpha(image.getchannel("A"))
    return rgb
