"""Paints the skies, rooms and weather of scenes. All colours are RGB in 0..255."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from polyview.training.scenes.grounds import GLOW, GROUND_PAINTERS, Rgb, jitter, paint_area, shade
from polyview.training.scenes.layout import Layout
from polyview.training.scenes.world import SIZE

Array = NDArray[np.float32]
_LIGHT: dict[str, Any] = tomllib.loads(Path(__file__).with_name("light.toml").read_text("utf-8"))


def _light_values(time: str, name: str) -> Array:
    """Returns an entry of `light.toml`: RGB values or factors (3,), or two colours (2, 3)."""
    return np.array(_LIGHT[time][name], dtype=np.float32)


def sprite_light(layout: Layout) -> tuple[Array, Array, float]:
    """Returns the light factor of objects (3,), fog colour (3,) and fog opacity, 0 to 1."""
    time = layout.time or "day"
    light = _light_values(time, "objects") * (0.93 if layout.weather in {"rain", "snow"} else 1)
    opacity = (0.14 if time == "night" else 0.22) if layout.weather == "fog" else 0.0
    return light, _light_values(time, "fog"), opacity


def paint_backdrop(layout: Layout, rng: np.random.Generator) -> Image.Image:
    """Paints everything behind the objects; returns an RGB image of SIZE x SIZE."""
    weather, time, horizon = layout.weather or "clear", layout.time or "day", layout.horizon
    is_indoors = layout.setting in _ROOM_PAINTERS
    light = _light_values(time, "room" if is_indoors else "ground")
    if is_indoors:
        sky = _paint_sky(time, "clear", SIZE // 2, rng)  # seen through the window
        surface = _ROOM_PAINTERS[layout.setting](horizon, rng, sky)
    else:
        surface = GROUND_PAINTERS[layout.setting](horizon, rng, time)
        sky = _paint_sky(time, weather, horizon, rng)
        if weather in {"rain", "snow"} and time == "day":
            light = light * np.float32(0.84)
    pixels = np.asarray(surface)
    colors, alpha = pixels[..., :3], pixels[..., 3:]
    scene = np.where(alpha == GLOW, colors, colors * light)  # windows stay bright
    scene = np.where(alpha > 0, scene, np.asarray(sky))
    if weather == "fog":
        scene = _add_fog(scene, _light_values(time, "fog"), horizon, rng)
    return Image.fromarray(scene.clip(0, 255).astype(np.uint8))


def _paint_sky(time: str, weather: str, horizon: int, rng: np.random.Generator) -> Image.Image:
    """Paints the sky with clouds. A clear sky also has the sun, or the moon and stars."""
    rows = min(SIZE, horizon + 12)
    ramp = (np.arange(rows, dtype=np.float32) / max(horizon, 60)).clip(0, 1) ** 1.2
    colors = _light_values(time, "clear" if weather == "clear" else "overcast")  # top and horizon
    colors = colors + rng.normal(0, 7, 3).astype(np.float32)
    canvas = (colors[0] + ramp[:, None] * (colors[1] - colors[0]))[:, None, :]
    cloudiness = rng.uniform(0.0, 0.5) if weather == "clear" else rng.uniform(0.5, 0.9)
    if time == "night" and weather == "clear":
        cloudiness *= 0.3
    brightness = _LIGHT[time]["clouds"] * (0.62 if weather in {"rain", "snow"} else 1)
    noise = _cloud_noise(rng)[:rows, :, None]
    opacity = ((noise - np.float32(0.92 - 0.5 * cloudiness)) * 3.2).clip(0, 0.8)
    cloud_color = _light_values(time, "tint") * np.float32(brightness)
    canvas = canvas + opacity * (cloud_color - canvas)
    image = Image.new("RGB", (SIZE, SIZE))  # black below the sky
    image.paste(Image.fromarray(canvas.clip(0, 255).astype(np.uint8)))
    if weather == "clear":
        _draw_lights(image, time, horizon, rng)
    return image


def _cloud_noise(rng: np.random.Generator) -> Array:
    """Returns smooth noise (SIZE, SIZE), mostly in 0..1."""
    noise = [Image.fromarray(rng.random(cells).astype(np.float32)) for cells in ((7, 4), (22, 12))]
    coarse, fine = (image.resize((SIZE, SIZE), Image.Resampling.BICUBIC) for image in noise)
    return np.asarray(0.7 * np.asarray(coarse) + 0.3 * np.asarray(fine), dtype=np.float32)


def _draw_lights(image: Image.Image, time: str, horizon: int, rng: np.random.Generator) -> None:
    """Draws the sun, or the moon and the stars."""
    draw = ImageDraw.Draw(image, "RGBA")
    x = float(rng.uniform(20, SIZE - 20))
    if time == "sunset":
        y, radius = horizon - float(rng.uniform(2, 12)), float(rng.uniform(15, 22))
        rings, color = [(2.4, 40), (1.7, 60), (1.0, 255)], (255, 214, 110)
    elif time == "day":
        y, radius = float(rng.uniform(14, max(16, horizon * 0.5))), float(rng.uniform(9, 14))
        rings, color = [(1.8, 60), (1.0, 255)], (255, 240, 150)
    else:
        for _ in range(int(rng.integers(40, 90))):
            sx, sy = rng.uniform(0, SIZE), rng.uniform(0, max(horizon, 40))
            draw.point((sx, sy), fill=(255, 255, 255, int(rng.integers(120, 256))))
            if rng.random() < 0.15:
                draw.circle((sx, sy), 1, fill=(255, 255, 235, 220))
        y, radius = float(rng.uniform(14, max(16, horizon * 0.5))), float(rng.uniform(8, 13))
        rings, color = [(1.6, 36), (1.0, 255)], (240, 240, 220)
    for scale, alpha in rings:
        draw.circle((x, y), radius * scale, fill=(*color, alpha))
    if time == "night" and rng.random() < 0.6:  # a crescent
        sky = image.getpixel((0, int(max(y, 0))))
        assert isinstance(sky, tuple)
        shift = radius * float(rng.choice([-0.5, 0.5]))
        draw.circle((x + shift, y), radius * 0.9, fill=sky)


def _add_fog(scene: Array, color: Array, horizon: int, rng: np.random.Generator) -> Array:
    """Adds fog, which is densest at the horizon."""
    distance = np.abs(np.arange(SIZE, dtype=np.float32) - horizon) / SIZE
    opacity = (0.82 - 0.75 * distance).clip(0.38, 0.82)[:, None, None]
    wisps = (_cloud_noise(rng)[..., None] - 0.5) * 0.24
    return np.asarray(scene + (opacity + wisps).clip(0, 0.95) * (color - scene), dtype=np.float32)


def paint_weather(image: Image.Image, layout: Layout, rng: np.random.Generator) -> Image.Image:
    """Paints rain or snow in front of the objects, in place; returns the image."""
    draw = ImageDraw.Draw(image, "RGBA")
    if layout.weather == "rain":
        slant = float(rng.uniform(-5, 5))
        for x, y, length in rng.uniform((-5, -10, 9), (SIZE + 5, SIZE, 18), (150, 3)).tolist():
            end = (x + slant * length / 14, y + length)
            draw.line((x, y, *end), fill=(205, 222, 245, 135), width=1)
    elif layout.weather == "snow":
        for x, y, radius in rng.uniform((0, 0, 0.7), (SIZE, SIZE, 2.3), (130, 3)).tolist():
            draw.circle((x, y), radius, fill=(255, 255, 255, 225))
    return image


def _draw_window(
    image: Image.Image, sky: Image.Image, box: tuple[int, int, int, int], frame: Rgb
) -> None:
    """Draws a window that shows the sky in `box`, with a frame of the colour `frame`."""
    left, top, right, bottom = box
    draw = ImageDraw.Draw(image)
    draw.rectangle((left - 4, top - 4, right + 4, bottom + 4), fill=frame)
    glass = sky.crop((0, 0, right - left, bottom - top)).convert("RGBA")
    glass.putalpha(GLOW)
    image.paste(glass, (left, top))
    middle, level = (left + right) // 2, (top + bottom) // 2
    draw.line((middle, top, middle, bottom), fill=frame, width=3)
    draw.line((left, level, right, level), fill=frame, width=3)


def _paint_room(horizon: int, rng: np.random.Generator, sky: Image.Image) -> Image.Image:
    colors = [(214, 190, 160), (186, 204, 190), (200, 184, 212), (226, 202, 150), (214, 176, 170)]
    wallpaper = jitter(colors[int(rng.integers(len(colors)))], rng)
    wood = jitter((150, 100, 60), rng)
    image, draw = paint_area(0, wallpaper, wallpaper, rng, 2)
    boards, _ = paint_area(horizon, wood, shade(wood, 1.1), rng, 5)
    image.paste(boards.crop((0, horizon, SIZE, SIZE)), (0, horizon))
    gap = int(rng.integers(14, 26))
    for x in range(int(rng.integers(gap)), SIZE, gap):
        draw.line((x, 0, x, horizon), fill=shade(wallpaper, 0.92), width=3)
    draw.rectangle((0, horizon - 6, SIZE, horizon), fill=(244, 238, 226))
    for row, y in enumerate(range(horizon + 14, SIZE + 14, 14)):
        draw.line((0, y, SIZE, y), fill=shade(wood, 0.72))
        for x in range(row % 2 * 30 + 12, SIZE, 60):
            draw.line((x, y - 14, x, y), fill=shade(wood, 0.72))
    rug = jitter([(150, 50, 56), (52, 84, 140), (70, 110, 84)][int(rng.integers(3))], rng)
    center, level = float(rng.uniform(80, 144)), float(rng.uniform(horizon + 42, SIZE - 30))
    for reach, height, color in ((76, 22, shade(rug, 1.4)), (68, 18, rug)):
        draw.ellipse((center - reach, level - height, center + reach, level + height), fill=color)
    left, width = int(rng.integers(14, 120)), int(rng.integers(62, 86))
    box = (left, 12, left + width, 12 + int(rng.integers(54, 70)))
    _draw_window(image, sky, box, (246, 242, 232))
    return image


def _paint_kitchen(horizon: int, rng: np.random.Generator, sky: Image.Image) -> Image.Image:
    tints = [(222, 236, 238), (236, 232, 214), (208, 230, 216), (206, 220, 240)]
    tile = jitter(tints[int(rng.integers(len(tints)))], rng, 5)
    image, draw = paint_area(0, tile, tile, rng, 2)
    for x in range(int(rng.integers(13)), SIZE, 13):
        draw.line((x, 0, x, horizon), fill=shade(tile, 0.84))
    for y in range(0, horizon, 13):
        draw.line((0, y, SIZE, y), fill=shade(tile, 0.84))
    left, width = int(rng.integers(14, 120)), int(rng.integers(58, 80))
    box = (left, 10, left + width, 10 + int(rng.integers(44, 56)))
    _draw_window(image, sky, box, (250, 250, 250))
    slate = jitter((70, 90, 112), rng)
    for row in range(9):  # a chequered floor in perspective
        for column in range(-8, 17):
            corners = []
            for side, depth in ((0, row), (1, row), (1, row + 1), (0, row + 1)):
                corner_x = SIZE / 2 + (column + side - 4.5) * 42 * (0.55 + 0.75 * depth / 9)
                corners.append((corner_x, horizon + (SIZE - horizon) * (depth / 9) ** 1.5))
            draw.polygon(corners, fill=slate if (row + column) % 2 else (236, 234, 228))
    doors = [(120, 160, 150), (196, 120, 90), (222, 206, 176), (98, 128, 168)]
    wood, top = jitter(doors[int(rng.integers(len(doors)))], rng), horizon - 36
    draw.rectangle((0, top, SIZE, horizon), fill=wood)  # cupboards below a worktop
    for x in range(int(rng.integers(30)), SIZE, 37):
        draw.rectangle((x, top + 8, x + 33, horizon - 4), outline=shade(wood, 0.72), width=2)
        draw.ellipse((x + 26, top + 17, x + 29, top + 20), fill=(60, 60, 60))
    draw.rectangle((0, top - 4, SIZE, top + 3), fill=jitter((92, 78, 70), rng))
    return image


_ROOM_PAINTERS = {"room": _paint_room, "kitchen": _paint_kitchen}
