"""Lays scenes out on one image with their captions beneath, to be looked at."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from training.scenes.store import SceneData, SceneDataError, load_scenes
from training.scenes.world import SIZE

_TEXT_HEIGHT = 172
_GAP = 8


def contact_sheet(data: SceneData, indices: Sequence[int], columns: int = 8) -> Image.Image:
    """Draws scenes in rows, each with its conditions and captions beneath.

    Args:
        data: a rendered split.
        indices: which scenes.
        columns: how many stand side by side.
    """
    columns = min(columns, len(indices))
    wide, high = SIZE + _GAP, SIZE + _TEXT_HEIGHT
    rows = -(-len(indices) // columns)
    sheet = Image.new("RGB", (columns * wide, rows * high), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for position, index in enumerate(indices):
        left, top = position % columns * wide, position // columns * high
        sheet.paste(Image.fromarray(data.images[index]), (left, top))
        scene = data.scenes[index]
        lines = [f"{scene.id}: {scene.setting}, {scene.time}, {scene.weather}"]
        for caption in scene.captions:
            lines += textwrap.wrap(caption.text, 40, initial_indent="- ", subsequent_indent="  ")
        draw.text((left + 2, top + SIZE + 2), "\n".join(lines), fill="black", font=font, spacing=2)
    return sheet


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.scenes.contact_sheet", description=__doc__
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of a rendered split")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--start", type=int, default=0, help="index of the first scene")
    parser.add_argument("--out", type=Path, required=True, help="picture to write, such as a PNG")
    options = parser.parse_args(arguments)
    try:
        data = load_scenes(options.data)
    except SceneDataError as error:
        print(error, file=sys.stderr)
        return 2
    indices = range(len(data))[options.start : options.start + options.count]
    if not indices:
        print(f"{options.data} has no scene {options.start}.", file=sys.stderr)
        return 2
    contact_sheet(data, indices).save(options.out)
    print(f"{options.out}: {len(indices)} scenes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
