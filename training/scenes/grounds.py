"""Paints outdoor settings in daylight, and settings without a time of day.

A painter takes the row of the horizon, a random generator and the time of day. It returns an RGBA
image whose sky is transparent. `reach` is half the width of a shape, `foot` is where it stands.
"""

import numpy as np
from PIL import Image, ImageDraw

from polyview.training.scenes.world import SIZE

GLOW = 254  # alpha of lit windows, which the light of the time of day does not change
Rgb = tuple[int, int, int]


def jitter(color: Rgb, rng: np.random.Generator, spread: float = 9.0) -> Rgb:
    """Varies a colour at random; `spread` is the standard deviation of the lightness."""
    channels = np.array(color) + rng.normal(0, spread) + rng.normal(0, spread / 3, 3)
    r, g, b = (int(value) for value in channels.clip(0, 255))
    return r, g, b


def shade(color: Rgb, factor: float) -> Rgb:
    """Makes a colour darker (factor below 1) or lighter (factor above 1)."""
    r, g, b = (int(min(255, value * factor)) for value in color)
    return r, g, b


def paint_area(
    top: int, near: Rgb, far: Rgb, rng: np.random.Generator, grain: float
) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Paints rows from `top` down, from colour `far` to `near`, with noise of deviation `grain`."""
    ramp = np.linspace(0, 1, SIZE - top, dtype=np.float32)[:, None, None]
    rows = np.array(far) + ramp * (np.array(near) - np.array(far))
    noise = rng.normal(0, grain, (SIZE // 2, SIZE // 2)).astype(np.float32)
    texture = np.asarray(Image.fromarray(noise).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    pixels = np.zeros((SIZE, SIZE, 4), dtype=np.uint8)
    pixels[top:, :, :3] = (rows + texture[top:, :, None]).clip(0, 255).astype(np.uint8)
    pixels[top:, :, 3] = 255
    image = Image.fromarray(pixels)
    return image, ImageDraw.Draw(image)


def ridge(
    y: float, height: float, point_count: int, rng: np.random.Generator
) -> list[tuple[float, float]]:
    """Returns the polygon below a random skyline, which rises at most `height` above row `y`."""
    xs = np.linspace(-10, SIZE + 10, point_count)
    ys = y - rng.uniform(0, height, point_count)
    line = list(zip(xs.tolist(), ys.tolist(), strict=True))
    return [*line, (SIZE + 10.0, float(SIZE)), (-10.0, float(SIZE))]


def _paint_meadow(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    green = jitter((112, 190, 72), rng)
    image, draw = paint_area(horizon, shade(green, 0.82), shade(green, 1.12), rng, 9)
    for _ in range(3):  # rolling hills
        x, reach, height = rng.uniform(-20, SIZE + 20), rng.uniform(70, 130), rng.uniform(10, 24)
        box = (x - reach, horizon - height, x + reach, horizon + height * 2)
        draw.chord(box, 180, 360, fill=shade(green, float(rng.uniform(0.78, 0.95))))
    for x, y in rng.uniform((0, horizon + 6), (SIZE, SIZE), (130, 2)).tolist():
        draw.line((x, y, x + 1, y - 5), fill=shade(green, 0.68))
    petals = [(255, 255, 255), (255, 235, 90), (250, 150, 190)]
    for x, y in rng.uniform((0, horizon + 8), (SIZE, SIZE), (34, 2)).tolist():
        draw.ellipse((x - 1.4, y - 1.4, x + 1.4, y + 1.4), fill=petals[int(rng.integers(3))])
    return image


def _draw_waves(
    draw: ImageDraw.ImageDraw, top: float, bottom: float, rng: np.random.Generator
) -> None:
    """Draws the bright crests of waves, wider in the foreground."""
    for x, depth in rng.uniform((0, 0), (SIZE, 1), (int(bottom - top) // 2 + 8, 2)).tolist():
        y, reach = top + depth * (bottom - top), 4 + 16 * depth
        box = (x - reach, y, x + reach, y + 2 + 5 * depth)
        draw.arc(box, 190, 350, fill=(215, 238, 250), width=1)


def _paint_beach(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    water, sand = jitter((38, 140, 200), rng), jitter((240, 214, 150), rng)
    image, draw = paint_area(horizon, shade(water, 1.2), water, rng, 5)
    shore = horizon + float(rng.uniform(26, 46))
    _draw_waves(draw, horizon + 2, shore, rng)
    slope, phase = float(rng.uniform(-18, 18)), float(rng.uniform(0, 6))
    xs = np.linspace(0, SIZE, 40)
    ys = shore + slope * (xs / SIZE - 0.5) + 3 * np.sin(xs / 14 + phase)
    line = list(zip(xs.tolist(), ys.tolist(), strict=True))
    draw.line([(x, y - 2) for x, y in line], fill=(255, 255, 255, 255), width=5)
    draw.polygon([*line, (SIZE, SIZE), (0, SIZE)], fill=sand)
    for x, y in rng.uniform((0, shore + 14), (SIZE, SIZE), (150, 2)).tolist():
        draw.point((x, y), fill=shade(sand, float(rng.choice([0.8, 1.08]))))
    for _ in range(5):
        x, y = rng.uniform(0, SIZE), rng.uniform(shore + 16, SIZE)
        draw.arc((x - 22, y - 3, x + 22, y + 4), 200, 340, fill=shade(sand, 0.86), width=2)
    return image


def _paint_street(horizon: int, rng: np.random.Generator, time: str) -> Image.Image:
    asphalt = jitter((104, 106, 112), rng, 5)
    image, draw = paint_area(horizon, asphalt, shade(asphalt, 1.1), rng, 6)
    facades = [(176, 110, 92), (150, 150, 160), (196, 168, 128), (120, 134, 152), (168, 142, 150)]
    x = float(rng.uniform(-20, 0))
    while x < SIZE:  # a row of houses
        width, top = float(rng.uniform(28, 52)), horizon - float(rng.uniform(34, 92))
        wall = jitter(facades[int(rng.integers(len(facades)))], rng)
        draw.rectangle((x, top, x + width - 1, horizon + 4), fill=wall)
        draw.rectangle((x, top, x + width - 1, top + 3), fill=shade(wall, 0.7))
        column_count = int(width // 11)
        for row in range(int((horizon - top - 10) // 13)):
            for column in range(column_count):
                left, y = x + 4 + column * (width - 4) / column_count, top + 8 + row * 13
                is_lit = time != "day" and rng.random() < (0.6 if time == "night" else 0.3)
                pane = (255, 222, 120, GLOW) if is_lit else (58, 72, 96, 255)
                draw.rectangle((left, y, left + 5, y + 7), fill=pane)
        x += width
    pavement = horizon + 16
    draw.rectangle((0, horizon + 4, SIZE, pavement), fill=jitter((178, 174, 168), rng, 5))
    draw.line((0, pavement, SIZE, pavement), fill=(220, 218, 210), width=2)
    lane, shift = horizon + float(rng.uniform(52, 76)), float(rng.uniform(0, 40))
    for step in range(-1, 6):
        left = step * 46 + shift
        corners = [(left, lane), (left + 26, lane), (left + 22, lane + 6), (left - 5, lane + 6)]
        draw.polygon(corners, fill=(238, 232, 205))
    return image


def _paint_snowfield(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    snow = jitter((238, 244, 252), rng, 4)
    image, draw = paint_area(horizon, snow, shade(snow, 0.93), rng, 3)
    for tone in (0.86, 0.92):
        skyline = ridge(horizon + 5, 26 * (1.9 - tone), 8, rng)
        draw.polygon([(x, min(y, horizon + 8)) for x, y in skyline], fill=shade(snow, tone))
    for _ in range(9):  # drifts
        x, y, reach = rng.uniform(0, SIZE), rng.uniform(horizon + 8, SIZE), rng.uniform(30, 80)
        box = (x - reach, y, x + reach, y + reach * 0.35)
        draw.arc(box, 195, 345, fill=(196, 212, 234), width=3)
    return image


def _paint_sea(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    water = jitter((22, 98, 168), rng)
    image, draw = paint_area(horizon, shade(water, 0.82), shade(water, 1.25), rng, 6)
    _draw_waves(draw, horizon + 3, SIZE, rng)
    for _ in range(9):  # breakers
        x, y = rng.uniform(0, SIZE), rng.uniform(horizon + 20, SIZE)
        reach = 10 + 18 * (y - horizon) / SIZE
        for left in (x - reach * 1.6, x, x + reach * 1.6):
            box = (left - reach, y, left + reach, y + reach * 0.7)
            draw.arc(box, 200, 340, fill=(190, 226, 246), width=2)
    return image


def _paint_desert(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    sand = jitter((226, 154, 78), rng)
    image, draw = paint_area(horizon, sand, shade(sand, 1.08), rng, 5)
    for _ in range(2):  # mesas far away
        x, reach, height = rng.uniform(0, SIZE), rng.uniform(16, 40), rng.uniform(14, 32)
        foot, top = horizon + 3, horizon - height
        corners = [(x - reach - 9, foot), (x - reach, top), (x + reach, top), (x + reach + 9, foot)]
        draw.polygon(corners, fill=jitter((176, 92, 60), rng))
    for depth in (0.0, 0.22, 0.48, 0.75):  # dunes with a lit and a shaded flank
        y = horizon + depth * (SIZE - horizon)
        x, reach = float(rng.uniform(20, SIZE - 20)), float(rng.uniform(90, 150))
        crest = y - float(rng.uniform(8, 22))
        draw.polygon([(x - reach, y + 16), (x, crest), (x + reach, y + 16)], fill=shade(sand, 1.06))
        corners = [(x, crest), (x + reach, y + 16), (x + reach * 0.25, y + 16)]
        draw.polygon(corners, fill=shade(sand, 0.82))
    return image


def _paint_forest(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    leaf = jitter((62, 124, 60), rng)
    earth = shade(jitter((96, 92, 48), rng), 0.9)
    image, draw = paint_area(horizon, shade(earth, 0.9), shade(leaf, 0.9), rng, 9)
    draw.rectangle((0, horizon * 0.8, SIZE, horizon), fill=shade(leaf, 0.72))
    for layer, thickness in ((0.55, 5.0), (0.8, 8.0), (1.0, 12.0)):
        bark = shade(jitter((116, 82, 54), rng), 0.5 + 0.5 * layer)
        for x in rng.uniform(-4, SIZE + 4, 7 if layer < 1 else 4).tolist():
            root, radius = horizon + 14 * layer - 4, thickness * float(rng.uniform(0.8, 1.2)) / 2
            corners = [(x - radius * 0.8, 0), (x + radius * 0.8, 0), (x + radius * 1.3, root)]
            draw.polygon([*corners, (x - radius * 1.3, root)], fill=bark)
    for x, y in rng.uniform((-8, -10), (SIZE + 8, horizon * 0.52), (46, 2)).tolist():
        reach, green = float(rng.uniform(9, 19)), shade(leaf, float(rng.uniform(0.7, 1.35)))
        draw.ellipse((x - reach, y - reach * 0.8, x + reach, y + reach * 0.8), fill=green)
    for x, y in rng.uniform((0, horizon + 6), (SIZE, SIZE), (60, 2)).tolist():
        green = shade(leaf, float(rng.uniform(0.8, 1.4)))
        draw.line((x - 3, y, x, y - 6, x + 3, y), fill=green, width=1)
    return image


def _paint_mountains(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    rock, grass = jitter((112, 118, 136), rng), jitter((120, 138, 104), rng)
    image, draw = paint_area(horizon, shade(grass, 0.86), grass, rng, 8)
    for tone in (1.25, 1.0, 0.85):
        peak = float(rng.uniform(10, SIZE - 10))
        for x in (peak, peak + float(rng.uniform(70, 130)), peak - float(rng.uniform(70, 130))):
            top = horizon - float(rng.uniform(38, 84)) * (1.5 - 0.5 * tone)
            reach, base = (horizon - top) * float(rng.uniform(0.75, 1.0)), horizon + 6
            draw.polygon([(x - reach, base), (x, top), (x + reach, base)], fill=shade(rock, tone))
            flank = [(x, top), (x + reach, base), (x + reach * 0.2, base)]
            draw.polygon(flank, fill=shade(rock, tone * 0.8))
            cap = (horizon - top) * 0.32  # height of the snow
            side = reach * cap / (base - top)
            edge = [(x + side * 0.4, top + cap * 0.75), (x, top + cap * 1.1)]
            edge += [(x - side * 0.5, top + cap * 0.8), (x - side, top + cap)]
            draw.polygon([(x, top), (x + side, top + cap), *edge], fill=(244, 248, 252))
    for x, y in rng.uniform((0, horizon + 10), (SIZE, SIZE), (26, 2)).tolist():
        reach = 2 + 5 * (y - horizon) / SIZE
        box = (x - reach, y - reach * 0.7, x + reach, y + reach * 0.7)
        draw.ellipse(box, fill=shade(rock, float(rng.uniform(0.8, 1.2))))
    return image


def _paint_farm(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    soil, crop = jitter((134, 92, 58), rng), jitter((214, 184, 74), rng)
    image, draw = paint_area(horizon, soil, shade(soil, 1.1), rng, 7)
    vanishing_x, step = float(rng.uniform(60, 164)), float(rng.uniform(38, 54))
    for row in range(-9, 15):  # crops in rows that meet at the horizon
        foot = row * step
        corners = [(vanishing_x + (foot - vanishing_x) * 0.12, horizon), (foot, SIZE)]
        far_x = vanishing_x + (foot + step * 0.5 - vanishing_x) * 0.12
        corners += [(foot + step * 0.52, SIZE), (far_x, horizon)]
        draw.polygon(corners, fill=shade(crop, 1.0 if row % 2 else 0.92))
    draw.rectangle((0, horizon - 6, SIZE, horizon), fill=jitter((96, 140, 66), rng))
    wood, top = jitter((160, 118, 78), rng), horizon - 14
    for rail in (top + 4, top + 12):
        draw.rectangle((0, rail, SIZE, rail + 3), fill=wood)
    for x in np.arange(float(rng.uniform(0, 20)), SIZE, 24).tolist():
        draw.rectangle((x, top - 3, x + 5, horizon + 5), fill=shade(wood, 0.86))
    return image


def _paint_stage(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    velvet, wood = jitter((158, 24, 38), rng), jitter((170, 112, 62), rng)
    image = paint_area(horizon, wood, shade(wood, 0.7), rng, 4)[0].convert("RGB")
    draw = ImageDraw.Draw(image, "RGBA")
    draw.rectangle((0, 0, SIZE, horizon), fill=shade(velvet, 0.35))
    for y in np.linspace(horizon, SIZE, 8).tolist():
        draw.line((0, y, SIZE, y), fill=shade(wood, 0.6))
    for x in rng.uniform(50, SIZE - 50, 2).tolist():  # spotlights
        foot = float(rng.uniform(40, SIZE - 40))
        cone = [(x - 3, 0), (x + 3, 0), (foot + 36, horizon + 34), (foot - 36, horizon + 34)]
        draw.polygon(cone, fill=(255, 240, 190, 46))
        draw.ellipse((foot - 36, horizon + 22, foot + 36, horizon + 46), fill=(255, 240, 190, 70))
    curtain = float(rng.uniform(30, 44))  # width
    for left in (0.0, SIZE - curtain):
        for strip in range(6):
            x, tone = left + strip * curtain / 6, (1.0, 0.72)[strip % 2]
            draw.rectangle((x, 0, x + curtain / 6, horizon + 12), fill=shade(velvet, tone))
    for x in np.arange(-10, SIZE, 26).tolist():
        draw.chord((x, -18, x + 30, 22), 0, 180, fill=shade(velvet, 0.9))
        draw.arc((x, -18, x + 30, 22), 0, 180, fill=(226, 180, 70), width=2)
    return image.convert("RGBA")


def _paint_moon(horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    dust = jitter((168, 168, 172), rng)
    image, draw = paint_area(horizon, shade(dust, 0.9), shade(dust, 1.1), rng, 7)
    draw.rectangle((0, 0, SIZE, horizon), fill=(6, 6, 14))
    for x, y in rng.uniform((0, 0), (SIZE, horizon), (80, 2)).tolist():
        draw.point((x, y), fill=(255, 255, 255))
    x, y, r = float(rng.uniform(30, 194)), float(rng.uniform(22, 44)), float(rng.uniform(13, 19))
    draw.ellipse((x - r, y - r, x + r, y + r), fill=(52, 120, 214))  # the earth
    draw.ellipse((x - r * 0.6, y - r * 0.7, x + r * 0.2, y), fill=(84, 168, 92))
    draw.ellipse((x - r * 0.1, y + r * 0.1, x + r * 0.6, y + r * 0.7), fill=(84, 168, 92))
    draw.chord((-60, horizon - 14, SIZE + 60, horizon + 40), 180, 360, fill=shade(dust, 1.12))
    for _ in range(15):  # craters
        x, y = rng.uniform(0, SIZE), rng.uniform(horizon + 8, SIZE)
        reach = float(rng.uniform(5, 12)) * (0.5 + 1.6 * (y - horizon) / SIZE)
        draw.ellipse((x - reach, y - reach / 3, x + reach, y + reach / 3), fill=shade(dust, 0.68))
        box = (x - reach, y - reach / 3 + 1.5, x + reach, y + reach / 3 + 2)
        draw.arc(box, 0, 180, fill=shade(dust, 1.25), width=2)
    return image


def _paint_underwater(_horizon: int, rng: np.random.Generator, _time: str) -> Image.Image:
    water = jitter((30, 140, 170), rng)
    image = paint_area(0, shade(water, 0.5), shade(water, 1.35), rng, 3)[0].convert("RGB")
    draw = ImageDraw.Draw(image, "RGBA")
    for x in rng.uniform(-20, SIZE, 5).tolist():  # light from above
        width, lean = float(rng.uniform(8, 22)), float(rng.uniform(20, 70))
        corners = [(x, 0), (x + width, 0), (x + width * 2 + lean, SIZE), (x + lean, SIZE)]
        draw.polygon(corners, fill=(220, 255, 255, 28))
    bed_top = SIZE - int(rng.integers(26, 44))
    draw.polygon(ridge(bed_top + 6, 12, 9, rng), fill=jitter((150, 152, 112), rng))
    for x in rng.uniform(0, SIZE, 11).tolist():  # weed
        height, lean = float(rng.uniform(20, 62)), float(rng.uniform(2, 6))
        steps = np.linspace(0, height, 12)
        sway = x + lean * np.sin(steps / 8)
        line = list(zip(sway.tolist(), (SIZE - 8 - steps).tolist(), strict=True))
        draw.line(line, fill=jitter((34, 120, 74), rng), width=4)
    for x, y, r in rng.uniform((0, 0, 1.2), (SIZE, bed_top, 4.5), (34, 3)).tolist():
        draw.ellipse((x - r, y - r, x + r, y + r), outline=(225, 248, 255, 200), width=1)
    return image.convert("RGBA")


GROUND_PAINTERS = {
    "meadow": _paint_meadow, "beach": _paint_beach, "street": _paint_street,
    "snowfield": _paint_snowfield, "sea": _paint_sea, "desert": _paint_desert,
    "forest": _paint_forest, "mountains": _paint_mountains, "farm": _paint_farm,
    "stage": _paint_stage, "moon": _paint_moon, "underwater": _paint_underwater,
}  # fmt: skip
