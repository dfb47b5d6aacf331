"""Turns a layout into pixels, and measures what can be seen of each object."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from training.scenes.glyphs import sprite
from training.scenes.layout import Layout, Placement, sample_layout
from training.scenes.paint import backdrop, sprite_light, weather_front
from training.scenes.world import FLOATING, SIZE, Scene, SceneObject, Split, scene_generator

MIN_VISIBLE = 0.6
"""No object of a scene is covered by more than the rest of this share."""

_MAX_ATTEMPTS = 200


@dataclass(frozen=True)
class Rendered:
    """Pixels of a scene.

    Attributes:
        scene: its ground truth, without captions.
        image: (SIZE, SIZE, 3) uint8 RGB.
        instances: (SIZE, SIZE) uint8; 0 is background, i + 1 is ``scene.objects[i]``.
    """

    scene: Scene
    image: NDArray[np.uint8]
    instances: NDArray[np.uint8]


def render_scene(seed: int, split: Split, index: int) -> Rendered:
    """Draws and renders scene `index` of a split; the same arguments give the same pixels."""
    for attempt in range(_MAX_ATTEMPTS):
        rng = scene_generator(seed, split, index, attempt)
        layout = sample_layout(rng)
        if layout is None:
            continue
        rendered = render(layout, f"{split}-{index:06d}")
        if all(item.visible >= MIN_VISIBLE for item in rendered.scene.objects):
            return rendered
    message = f"scene {split}-{index} of seed {seed} found no layout in {_MAX_ATTEMPTS} attempts"
    raise RuntimeError(message)


def render(layout: Layout, scene_id: str) -> Rendered:
    """Renders a layout and measures its objects."""
    rng = np.random.default_rng(layout.seed)
    canvas = backdrop(layout, rng)
    instances, outlines = compose(canvas, layout)
    canvas = weather_front(canvas, layout, rng)
    seen = np.bincount(instances.ravel(), minlength=len(outlines) + 1)[1:]
    objects = tuple(
        _measured(place, outline, float(count / outline.area))
        for place, outline, count in zip(layout.placements, outlines, seen.tolist(), strict=True)
    )
    scene = Scene(scene_id, layout.setting, layout.time, layout.weather, objects)
    return Rendered(scene, np.asarray(canvas, dtype=np.uint8), instances)


@dataclass(frozen=True)
class Outline:
    """What of an object lies within the image, whatever covers it.

    Attributes:
        box: (x0, y0, x1, y1) in pixels; all 0 where nothing does.
        area: how many solid pixels it has, those beyond the image left out.
        whole: how many it has with those beyond the image.
    """

    box: tuple[int, int, int, int]
    area: int
    whole: int


def compose(canvas: Image.Image, layout: Layout) -> tuple[NDArray[np.uint8], list[Outline]]:
    """Draws a layout's objects and their shadows on a background, from back to front.

    Returns:
        (SIZE, SIZE) instances as in `Rendered`, and an outline an object.
    """
    instances = np.zeros((SIZE, SIZE), dtype=np.uint8)
    light, veil, share = sprite_light(layout)
    sprites = [_pose(*_looks(placement)) for placement in layout.placements]
    corners = [
        (round(place.x - image.width / 2), round(place.y - image.height / 2))
        for place, image in zip(layout.placements, sprites, strict=True)
    ]
    _cast_shadows(canvas, layout, sprites, corners)
    outlines = []
    for index, (image, corner) in enumerate(zip(sprites, corners, strict=True)):
        pixels = np.asarray(image).astype(np.float32)
        colors = pixels[..., :3] * light
        colors += share * (veil - colors)
        lit = Image.fromarray(colors.clip(0, 255).astype(np.uint8))
        alpha = image.getchannel("A")
        canvas.paste(lit, corner, alpha)
        solid = np.asarray(alpha) > 127
        rows, columns = _clip_solid(solid, corner)
        instances[rows, columns] = index + 1
        box = (0, 0, 0, 0)
        if len(rows):
            box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        outlines.append(Outline(box, len(rows), int(solid.sum())))
    return instances, outlines


def _looks(place: Placement) -> tuple[str, float | None, int, bool, float]:
    """What a sprite's pixels depend on."""
    side = max(8, round(place.size))
    return place.look.glyph, place.look.hue, side, place.mirrored, place.tilt


@lru_cache(maxsize=256)
def _pose(glyph: str, hue: float | None, side: int, mirrored: bool, tilt: float) -> Image.Image:
    """Returns a sprite scaled, mirrored, tilted, cropped."""
    image = sprite(glyph, hue).resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.rotate(tilt, Image.Resampling.BILINEAR, expand=True)


def _clip_solid(
    solid: NDArray[np.bool_], corner: tuple[int, int]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the rows and columns of a sprite's solid pixels that lie within the image."""
    rows, columns = np.nonzero(solid)
    rows, columns = rows + corner[1], columns + corner[0]
    inside = (rows >= 0) & (rows < SIZE) & (columns >= 0) & (columns < SIZE)
    return rows[inside], columns[inside]


def _cast_shadows(
    canvas: Image.Image, layout: Layout, sprites: list[Image.Image], corners: list[tuple[int, int]]
) -> None:
    """Darkens the ground beneath what stands on it."""
    if layout.setting in FLOATING:
        return
    mask = Image.new("L", (SIZE // 2, SIZE // 2), 0)
    draw = ImageDraw.Draw(mask)
    for place, image, (left, top) in zip(layout.placements, sprites, corners, strict=True):
        if place.aloft:
            continue
        x, foot = (left + image.width / 2) / 2, (top + image.height * 0.93) / 2
        wide = place.size * 0.2
        draw.ellipse((x - wide, foot - wide * 0.28, x + wide, foot + wide * 0.28), fill=120)
    soft = mask.filter(ImageFilter.BoxBlur(1)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    canvas.paste((10, 14, 24), (0, 0, SIZE, SIZE), soft)


def _measured(place: Placement, outline: Outline, visible: float) -> SceneObject:
    x0, y0, x1, y1 = (round(int(value) / SIZE, 4) for value in outline.box)
    return SceneObject(
        name=place.kind.name,
        group=place.kind.group,
        color=place.look.color,
        box=(x0, y0, x1, y1),
        visible=round(visible, 4),
        glyph=place.look.glyph,
        mirrored=place.mirrored,
        tilt=place.tilt,
    )
