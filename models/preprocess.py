"""Image preprocessing, shared by training, export and the app.

A pack stores the settings (`pack.json`, key `preprocess`), so that a model receives the same pixels
as in its training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from PIL import ExifTags, Image

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in 0..1
MAX_SIZE = 1024  # pixels; a batch of 32 images takes 400 MB as float32
# EXIF orientation -> transpose; Pillow's `exif_transpose` would also rewrite the other tags
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_KEYS = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
Filter = Literal["bicubic", "bilinear", "lanczos", "box", "hamming", "nearest"]


@dataclass(frozen=True)
class Preprocess:
    """Converts images to the pixels that an image encoder reads.

    Attributes:
        size: side of the square that the encoder sees, in pixels.
        mean: per-channel mean of pixels in 0..1 (RGB).
        std: per-channel standard deviation of pixels in 0..1 (RGB).
        fit: "stretch" shows the whole image without keeping its aspect ratio; "crop" scales the
            shorter side to `resize` and keeps the centre.
        resize: length of the shorter side before the crop, at least `size`; 0 for `size` itself.
            Only with "crop".
        filter: Pillow's resampling filter.
    """

    size: int = 224
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    fit: Literal["stretch", "crop"] = "stretch"
    resize: int = 0
    filter: Filter = "bicubic"

    def __post_init__(self) -> None:
        if not 16 <= self.size <= MAX_SIZE:
            raise ValueError(f"preprocess size must be 16 to {MAX_SIZE} pixels, not {self.size}")
        if not all(abs(m) <= 10 for m in self.mean) or not all(1e-4 <= s <= 10 for s in self.std):
            raise ValueError(
                f"preprocess mean {self.mean} and std {self.std} must be of pixels in 0..1: "
                "mean from -10 to 10, std from 0.0001 to 10"
            )
        if self.resize and (self.fit != "crop" or not self.size <= self.resize <= 4 * self.size):
            raise ValueError(
                f'preprocess resize must be 0 or, with fit "crop", {self.size} to '
                f"{4 * self.size} pixels, not {self.resize}"
            )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Preprocess:
        """Reads a dictionary from `to_json`; raises ValueError for unknown keys."""
        unknown = set(values) - set(cls.__dataclass_fields__)
        if unknown:
            valid = ", ".join(cls.__dataclass_fields__)
            raise ValueError(f"unknown preprocess keys: {', '.join(sorted(unknown))}; use {valid}")
        tuples: dict[str, Any] = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **tuples})

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary; omits `resize` and `filter` at their defaults."""
        defaults = {"resize": 0, "filter": "bicubic"}
        settings = {k: v for k, v in asdict(self).items() if v != defaults.get(k)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}

    def visible_box(self, width: int, height: int) -> Box:
        """Returns the part of an image that the encoder sees: x0, y0, x1, y1 in 0..1."""
        if self.fit == "stretch":
            return (0.0, 0.0, 1.0, 1.0)
        shorter_side = min(width, height)
        if not self.resize:
            x, y = (1 - shorter_side / width) / 2, (1 - shorter_side / height) / 2
            return (x, y, 1 - x, 1 - y)
        # round down to whole pixels of the scaled image, as published processors do
        scaled_width = int(self.resize * width / shorter_side)
        scaled_height = int(self.resize * height / shorter_side)
        x0 = (scaled_width - self.size) // 2 / scaled_width
        y0 = (scaled_height - self.size) // 2 / scaled_height
        return (x0, y0, x0 + self.size / scaled_width, y0 + self.size / scaled_height)

    def square(self, image: Image.Image) -> Image.Image:
        """Scales the `visible_box` of a PIL image to an RGB image of `size` x `size` pixels."""
        rgb = to_rgb(image)
        width, height = rgb.size
        x0, y0, x1, y1 = self.visible_box(width, height)
        if rgb.size == (self.size, self.size) and not self.resize:
            return rgb
        box = (x0 * width, y0 * height, x1 * width, y1 * height)
        resampling = Image.Resampling[self.filter.upper()]
        return rgb.resize((self.size, self.size), resampling, box, reducing_gap=3.0)

    def planes(self, squares: np.ndarray | Sequence[Image.Image]) -> np.ndarray:
        """Converts images from `square`, or uint8 pixels (B, H, W, 3), to encoder input.

        Returns (B, 3, H, W) float32, contiguous: (pixels / 255 - mean) / std.
        """
        height = width = self.size
        if isinstance(squares, np.ndarray):
            height, width = squares.shape[1:3]
        out = np.empty((len(squares), 3, height, width), np.float32)
        # convert one image at a time, because its planes fit in the cache
        for planes, square in zip(out, squares, strict=True):
            image = Image.fromarray(square) if isinstance(square, np.ndarray) else square
            for channel, band in enumerate(image.split()):  # faster than a transpose in NumPy
                plane = planes[channel]  # (H, W)
                plane[...] = np.asarray(band)
                plane -= np.float32(self.mean[channel]) * np.float32(255.0)
                plane /= np.float32(self.std[channel]) * np.float32(255.0)
        return out

    def __call__(self, images: Iterable[Image.Image]) -> np.ndarray:
        """Converts PIL images to (B, 3, size, size) float32, contiguous."""
        return self.planes([self.square(image) for image in images])


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any PIL image to upright 8-bit RGB.

    EXIF orientation is applied, transparency is blended with white, 16-bit and float greyscale are
    scaled to 8 bits, CMYK and palettes are converted, and an animation is reduced to its first
    frame. An upright 8-bit RGB image is returned unchanged.
    """
    image.seek(0)
    image.load()
    transpose = _TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    if transpose is not None:
        image = image.transpose(transpose)
        for name in _ORIENTATION_KEYS:  # so that no reader rotates the image again
            image.info.pop(name, None)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    return flat_rgb(image)


def flat_rgb(image: Image.Image, peak: float | None = None) -> Image.Image:
    """Converts an upright image, or a crop of an upright image, to 8-bit RGB as `to_rgb` does.

    `peak` is the largest value of the whole image. It is needed for crops of 16-bit and float
    greyscale images. If it is None, the largest value of `image` is used.
    """
    if is_deep(image):
        values = np.asarray(image, np.float64)
        peak = float(values.max(initial=0.0)) if peak is None else peak
        # 16-bit files hold 0..65535; values that fit into a byte are not scaled
        white = 65535.0 if peak > 255.0 else 255.0
        image = Image.fromarray(np.clip(values / white * 255.0, 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, image).convert("RGB")
    return image.convert("RGB")


def is_deep(image: Image.Image) -> bool:
    """Returns whether an image is greyscale with more than 8 bits per pixel."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")
