"""Paints the inside of houses by daylight.

A painter is given the row where the floor begins, dice, and the view out of its window, and returns
an RGBA image whose glass has alpha `GLOW`.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from training.scenes.brushes import GLOW, Rgb, floor, jitter, shade
from training.scenes.world import SIZE


def _window(
    image: Image.Image, view: Image.Image, box: tuple[int, int, int, int], frame: Rgb
) -> None:
    left, top, right, bottom = box
    draw = ImageDraw.Draw(image)
    draw.rectangle((left - 4, top - 4, right + 4, bottom + 4), fill=frame)
    glass = view.crop((0, 0, right - left, bottom - top)).convert("RGBA")
    glass.putalpha(GLOW)
    image.paste(glass, (left, top))
    middle, level = (left + right) // 2, (top + bottom) // 2
    draw.line((middle, top, middle, bottom), fill=frame, width=3)
    draw.line((left, level, right, level), fill=frame, width=3)


def _room(horizon: int, rng: np.random.Generator, view: Image.Image) -> Image.Image:
    papers = [(214, 190, 160), (186, 204, 190), (200, 184, 212), (226, 202, 150), (214, 176, 170)]
    paper = jitter(papers[int(rng.integers(len(papers)))], rng)
    wood = jitter((150, 100, 60), rng)
    image = floor(0, paper, paper, rng, 2)
    image.paste(
        floor(horizon, wood, shade(wood, 1.1), rng, 5).crop((0, horizon, SIZE, SIZE)), (0, horizon)
    )
    draw = ImageDraw.Draw(image)
    gap = int(rng.integers(14, 26))
    for x in range(int(rng.integers(gap)), SIZE, gap):
        draw.line((x, 0, x, horizon), fill=shade(paper, 0.92), width=3)
    draw.rectangle((0, horizon - 6, SIZE, horizon), fill=(244, 238, 226))
    for row, y in enumerate(range(horizon + 14, SIZE + 14, 14)):
        draw.line((0, y, SIZE, y), fill=shade(wood, 0.72))
        for x in range(row % 2 * 30 + 12, SIZE, 60):
            draw.line((x, y - 14, x, y), fill=shade(wood, 0.72))
    rug = jitter([(150, 50, 56), (52, 84, 140), (70, 110, 84)][int(rng.integers(3))], rng)
    center, level = float(rng.uniform(80, 144)), float(rng.uniform(horizon + 42, SIZE - 30))
    for wide, high, color in ((76, 22, shade(rug, 1.4)), (68, 18, rug)):
        draw.ellipse((center - wide, level - high, center + wide, level + high), fill=color)
    left, wide = int(rng.integers(14, 120)), int(rng.integers(62, 86))
    _window(image, view, (left, 12, left + wide, 12 + int(rng.integers(54, 70))), (246, 242, 232))
    return image


def _kitchen(horizon: int, rng: np.random.Generator, view: Image.Image) -> Image.Image:
    tints = [(222, 236, 238), (236, 232, 214), (208, 230, 216), (206, 220, 240)]
    tile = jitter(tints[int(rng.integers(len(tints)))], rng, 5)
    image = floor(0, tile, tile, rng, 2)
    draw = ImageDraw.Draw(image)
    for x in range(int(rng.integers(13)), SIZE, 13):
        draw.line((x, 0, x, horizon), fill=shade(tile, 0.84))
    for y in range(0, horizon, 13):
        draw.line((0, y, SIZE, y), fill=shade(tile, 0.84))
    left, wide = int(rng.integers(14, 120)), int(rng.integers(58, 80))
    _window(image, view, (left, 10, left + wide, 10 + int(rng.integers(44, 56))), (250, 250, 250))
    dark = jitter((70, 90, 112), rng)
    for row in range(9):  # a chequered floor in perspective
        near, far = (horizon + (SIZE - horizon) * (t / 9) ** 1.5 for t in (row + 1, row))
        for column in range(-8, 17):
            xs = [
                SIZE / 2 + (column + side - 4.5) * 42 * (0.55 + 0.75 * depth / 9)
                for side, depth in ((0, row), (1, row), (1, row + 1), (0, row + 1))
            ]
            corners = list(zip(xs, (far, far, near, near), strict=True))
            draw.polygon(corners, fill=dark if (row + column) % 2 else (236, 234, 228))
    doors = [(120, 160, 150), (196, 120, 90), (222, 206, 176), (98, 128, 168)]
    wood, top = jitter(doors[int(rng.integers(len(doors)))], rng), horizon - 36
    draw.rectangle((0, top, SIZE, horizon), fill=wood)  # cupboards below a worktop
    for x in range(int(rng.integers(30)), SIZE, 37):
        draw.rectangle((x, top + 8, x + 33, horizon - 4), outline=shade(wood, 0.72), width=2)
        draw.ellipse((x + 26, top + 17, x + 29, top + 20), fill=(60, 60, 60))
    draw.rectangle((0, top - 4, SIZE, top + 3), fill=jitter((92, 78, 70), rng))
    return image


INDOOR_PAINTERS: dict[str, Callable[[int, np.random.Generator, Image.Image], Image.Image]] = {
    "room": _room,
    "kitchen": _kitchen,
}
