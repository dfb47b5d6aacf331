"""Renders layouts and clips, and measures the visible part of each object.

Objects are emoji of Noto Color Emoji (Debian package ``fonts-noto-color-emoji``, OFL 1.1).
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from polyview.training.scenes import world
from polyview.training.scenes.backdrop import paint_backdrop, paint_weather, sprite_light
from polyview.training.scenes.classes import Look
from polyview.training.scenes.layout import Layout, sample_layout
from polyview.training.scenes.motion import FRAMES, Clip
from polyview.training.scenes.world import SIZE, Scene, SceneObject, Split, scene_generator

FONT_ENV = "POLYVIEW_EMOJI_FONT"
FONT_FILE = "NotoColorEmoji.ttf"
STRIKE = 109  # the size of the font's bitmaps in pixels
MIN_VISIBLE = 0.6  # minimum visible share of an object in a scene
MIN_SEEN = 0.3  # minimum visible share of an object in a frame that counts as showing it
_MAX_ATTEMPTS = 200
_CHANGE_FRAMES = 4  # duration of a change of the whole image


@dataclass(frozen=True)
class RenderedScene:
    """A rendered scene."""

    scene: Scene
    image: NDArray[np.uint8]  # (SIZE, SIZE, 3) RGB
    instances: NDArray[np.uint8]  # (SIZE, SIZE), 0 for background, i + 1 for `scene.objects[i]`


@dataclass(frozen=True)
class Frame:
    """A frame of a clip."""

    image: Image.Image  # SIZE x SIZE RGB
    instances: NDArray[np.uint8]  # (SIZE, SIZE), 0 for background, i + 1 for the clip's object i
    visible: tuple[float, ...]  # visible share of each object in 0..1


class Outline(NamedTuple):
    """The extent of an object in the image."""

    box: tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels, including covered pixels
    opaque: int  # number of opaque pixels of the object
    inside: int  # number of opaque pixels inside the image
    visible: int  # number of opaque pixels inside the image that no other object covers


def render_scene(seed: int, split: Split, index: int) -> RenderedScene:
    """Draws and renders scene `index` of a split; the same arguments give the same pixels."""
    for attempt in range(_MAX_ATTEMPTS):
        if layout := sample_layout(scene_generator(seed, split, index, attempt)):
            rendered = _render(layout, f"{split}-{index:06d}")
            if all(item.visible >= MIN_VISIBLE for item in rendered.scene.objects):
                return rendered
    raise RuntimeError(f"no layout fits scene {split}-{index} of seed {seed}; choose another seed")


def _render(layout: Layout, scene_id: str) -> RenderedScene:
    """Renders a layout and measures its objects."""
    rng = np.random.default_rng(layout.seed)
    canvas = paint_backdrop(layout, rng)
    instances, outlines = compose(canvas, layout)
    canvas = paint_weather(canvas, layout, rng)
    objects = []
    for place, outline in zip(layout.placements, outlines, strict=True):
        x0, y0, x1, y1 = (round(value / SIZE, 4) for value in outline.box)
        name, group, color = place.kind.name, place.kind.group, place.look.color
        visible = round(outline.visible / outline.inside, 4)
        pose = place.look.glyph, place.mirrored, place.tilt
        objects.append(SceneObject(name, group, color, (x0, y0, x1, y1), visible, *pose))
    scene = Scene(scene_id, layout.setting, layout.time, layout.weather, tuple(objects))
    return RenderedScene(scene, np.asarray(canvas, dtype=np.uint8), instances)


def clip_frames(clip: Clip) -> Iterator[Frame]:
    """Renders the frames of a clip in time order."""
    layouts = clip.layouts
    first, last = (paint_backdrop(layout, np.random.default_rng(clip.seed)) for layout in layouts)
    for number in range(FRAMES):
        progress = 0.0  # of the change
        if clip.change is not None:
            progress = min(max((number - clip.change_start + 1) / _CHANGE_FRAMES, 0.0), 1.0)
        canvas = Image.blend(first, last, progress) if progress else first.copy()
        indices, placements = zip(*clip.placements(number), strict=True)
        layout = replace(layouts[progress >= 0.5], placements=placements)  # switch light halfway
        instances, outlines = compose(canvas, layout)
        image = paint_weather(canvas, layout, np.random.default_rng((clip.seed, number)))
        visible = [0.0] * len(clip.objects)
        for index, outline in zip(indices, outlines, strict=True):
            visible[index] = round(outline.visible / outline.opaque, 3)
        values = np.array([0, *(index + 1 for index in indices)], np.uint8)  # placement -> object
        yield Frame(image, values[instances], tuple(visible))


def compose(canvas: Image.Image, layout: Layout) -> tuple[NDArray[np.uint8], list[Outline]]:
    """Paints a layout's objects and their shadows on `canvas` in place, from back to front.

    Returns a map (SIZE, SIZE) and the outlines of the placements. The map is i + 1 where placement
    i is visible, and 0 elsewhere.
    """
    instances = np.zeros((SIZE, SIZE), dtype=np.uint8)
    light, fog, opacity = sprite_light(layout)
    sprites = [
        _pose_sprite(place.look, max(8, round(place.size)), place.mirrored, place.tilt)
        for place in layout.placements
    ]
    corners = [
        (round(place.x - image.width / 2), round(place.y - image.height / 2))
        for place, image in zip(layout.placements, sprites, strict=True)
    ]
    _cast_shadows(canvas, layout, sprites, corners)
    extents = []
    for index, (image, corner) in enumerate(zip(sprites, corners, strict=True), 1):
        pixels = np.asarray(image).astype(np.float32)
        colors = pixels[..., :3] * light
        colors += opacity * (fog - colors)
        alpha = image.getchannel("A")
        canvas.paste(Image.fromarray(colors.clip(0, 255).astype(np.uint8)), corner, alpha)
        solid = np.asarray(alpha) > 127
        points = np.argwhere(solid) + corner[::-1]
        rows, columns = points[((points >= 0) & (points < SIZE)).all(axis=1)].T
        instances[rows, columns] = index
        box = (0, 0, 0, 0)
        if len(rows):
            left, top = int(columns.min()), int(rows.min())
            box = (left, top, int(columns.max()) + 1, int(rows.max()) + 1)
        extents.append((box, int(solid.sum()), len(rows)))
    counts = np.bincount(instances.ravel(), minlength=len(extents) + 1)[1:].tolist()
    return instances, [Outline(*extent, n) for extent, n in zip(extents, counts, strict=True)]


@lru_cache(maxsize=256)
def _pose_sprite(look: Look, side: int, mirrored: bool, tilt: float) -> Image.Image:
    """Returns a sprite of `side` pixels, mirrored if requested, and tilted by `tilt` degrees."""
    image = sprite(look.glyph, look.hue)
    image = image.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.rotate(tilt, Image.Resampling.BILINEAR, expand=True)


def _cast_shadows(
    canvas: Image.Image, layout: Layout, sprites: list[Image.Image], corners: list[tuple[int, int]]
) -> None:
    """Darkens the ground below standing objects; `corners` has the top left of each sprite."""
    if layout.setting in world.FLOATING:
        return
    mask = Image.new("L", (SIZE // 2, SIZE // 2), 0)  # half the size of the image
    draw = ImageDraw.Draw(mask)
    for place, image, (left, top) in zip(layout.placements, sprites, corners, strict=True):
        if place.aloft:
            continue
        x, foot = (left + image.width / 2) / 2, (top + image.height * 0.93) / 2
        radius = place.size * 0.2
        draw.ellipse((x - radius, foot - radius * 0.28, x + radius, foot + radius * 0.28), fill=120)
    shadows = mask.filter(ImageFilter.BoxBlur(1)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    canvas.paste((10, 14, 24), (0, 0, SIZE, SIZE), shadows)


def find_font() -> Path:
    """Finds the emoji font by `FONT_ENV` or in font folders; raises ValueError if it is missing."""
    advice = f"install fonts-noto-color-emoji (apt), or set {FONT_ENV} to the path of {FONT_FILE}"
    if font_path := os.environ.get(FONT_ENV):
        if Path(font_path).is_file():
            return Path(font_path)
        raise ValueError(f"{FONT_ENV} is {font_path!r}, which is not a file; {advice}")
    roots = (sys.prefix, "/usr", "/usr/local", Path.home() / ".local")
    for folder in (*(Path(root, "share/fonts") for root in roots), Path.home() / ".fonts"):
        if files := sorted(folder.rglob(FONT_FILE)):
            return files[0]
    raise ValueError(f"{FONT_FILE} was not found; {advice}")


@lru_cache(maxsize=1)
def _load_font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(find_font()), STRIKE, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=1024)
def sprite(glyph: str, hue: float | None = None) -> Image.Image:
    """Draws an emoji as a square RGBA image, cropped to its visible part and centred.

    `hue`, in degrees, replaces the dominant hue. Raises ValueError if the font lacks the glyph.
    """
    canvas = Image.new("RGBA", (STRIKE * 2, STRIKE * 2), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((20, 20), glyph, font=_load_font(), embedded_color=True)
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
    """Replaces the dominant hue of an image by `hue` in degrees; keeps greys and other hues."""
    hsv = np.asarray(image.convert("RGB").convert("HSV")).astype(np.int32)
    alpha = np.asarray(image.getchannel("A"))
    weight = hsv[..., 1] * hsv[..., 2] * (alpha > 128)
    histogram = np.bincount(hsv[..., 0].ravel(), weights=weight.ravel(), minlength=256)
    wrapped = np.concatenate([histogram[-8:], histogram, histogram[:8]])  # hues are circular
    dominant_hue = int(np.convolve(wrapped, np.ones(17), mode="valid").argmax())
    distance = (hsv[..., 0] - dominant_hue + 128) % 256 - 128
    is_dominant = (np.abs(distance) < 26) & (hsv[..., 1] > 40)
    hsv[is_dominant, 0] = (round(hue / 360 * 256) + distance[is_dominant] // 2) % 256
    if 90 <= hue <= 150:  # greens look brighter than reds and blues
        hsv[is_dominant, 2] = hsv[is_dominant, 2] * 3 // 4
    rgb = Image.fromarray(hsv.astype(np.uint8), "HSV").convert("RGB")
    rgb.putalpha(image.getchannel("A"))
    return rgb
