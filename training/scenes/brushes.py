"""Colours and shapes that the painters of several places share."""

import numpy as np
from PIL import Image

from training.scenes.world import SIZE

GLOW = 254
"""The alpha of what shines by itself, such as lit windows: no time of day changes it."""

Rgb = tuple[int, int, int]


def jitter(color: Rgb, rng: np.random.Generator, spread: float = 9.0) -> Rgb:
    """Returns a colour a little lighter or darker, and a little off in hue."""
    moved = np.array(color) + rng.normal(0, spread) + rng.normal(0, spread / 3, 3)
    r, g, b = (int(value) for value in moved.clip(0, 255))
    return r, g, b


def shade(color: Rgb, factor: float) -> Rgb:
    """Returns a colour made darker (below 1) or lighter (above 1)."""
    r, g, b = (int(min(255, value * factor)) for value in color)
    return r, g, b


def floor(top: int, near: Rgb, far: Rgb, rng: np.random.Generator, grain: float) -> Image.Image:
    """Returns a ground from row `top` down: a gradient with grain, transparent above."""
    ramp = np.linspace(0, 1, SIZE - top, dtype=np.float32)[:, None, None]
    rows = np.array(far) + ramp * (np.array(near) - np.array(far))
    noise = rng.normal(0, grain, (SIZE // 2, SIZE // 2)).astype(np.float32)
    fine = np.asarray(Image.fromarray(noise).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    pixels = np.zeros((SIZE, SIZE, 4), dtype=np.uint8)
    pixels[top:, :, :3] = (rows + fine[top:, :, None]).clip(0, 255).astype(np.uint8)
    pixels[top:, :, 3] = 255
    return Image.fromarray(pixels)


def ridge(
    y: float, height: float, points: int, rng: np.random.Generator
) -> list[tuple[float, float]]:
    """Returns a random skyline polygon that stands on the bottom of the image."""
    xs = np.linspace(-10, SIZE + 10, points)
    ys = y - rng.uniform(0, height, points)
    line = list(zip(xs.tolist(), ys.tolist(), strict=True))
    return [*line, (SIZE + 10.0, float(SIZE)), (-10.0, float(SIZE))]
