"""Draws the frames of clips, and measures what is seen in each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training.scenes.layout import Layout
from training.scenes.motion import FRAMES, Clip
from training.scenes.paint import backdrop, weather_front
from training.scenes.render import compose

SEEN = 0.3
"""The least share of a thing that must be seen in a frame for the frame to show it."""

_TURNS = 4  # frames in which day turns to night, or rain begins


@dataclass(frozen=True)
class Frame:
    """One frame.

    Attributes:
        image: SIZE x SIZE RGB.
        instances: (SIZE, SIZE) uint8; 0 is background, i + 1 the clip's object i.
        visible: of each object the share of it that is seen, 0 where it is not there.
    """

    image: Image.Image
    instances: NDArray[np.uint8]
    visible: tuple[float, ...]


def clip_frames(clip: Clip) -> Iterator[Frame]:
    """Draws the frames of a clip in order of time."""
    before, after = clip.layout, clip.changed
    grounds = [backdrop(layout, np.random.default_rng(clip.seed)) for layout in (before, after)]
    for number in range(FRAMES):
        turned = 0.0
        if clip.change is not None:
            turned = min(max((number - clip.change_start + 1) / _TURNS, 0.0), 1.0)
        canvas = grounds[0].copy()
        if turned:
            canvas = Image.blend(grounds[0], grounds[1], turned)
        there = clip.placements(number)
        layout = replace(
            after if turned >= 0.5 else before, placements=tuple(place for _, place in there)
        )
        yield _drawn(clip, canvas, layout, [index for index, _ in there], number)


def _drawn(clip: Clip, canvas: Image.Image, layout: Layout, who: list[int], number: int) -> Frame:
    """One frame over its background; `who` are the objects of the layout's placements."""
    drawn, outlines = compose(canvas, layout)
    image = weather_front(canvas, layout, np.random.default_rng((clip.seed, number)))
    counts = np.bincount(drawn.ravel(), minlength=len(who) + 1)[1:]
    visible = [0.0] * len(clip.objects)
    names = np.zeros(len(who) + 1, np.uint8)
    for place, (index, outline) in enumerate(zip(who, outlines, strict=True)):
        visible[index] = round(float(counts[place] / outline.whole), 3)
        names[place + 1] = index + 1
    return Frame(image, names[drawn], tuple(visible))
