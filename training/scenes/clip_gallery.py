"""Turns clips into the gallery of a pack, as animated WebP.

`python -m training.scenes.clip_gallery --data data/scenes_moving/test --count 300 --out runs/clips`
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from models.files import replacing_folder
from training.scenes.clip_captions import relevant_clips
from training.scenes.clip_frames import SEEN, clip_frames
from training.scenes.motion import Clip
from training.scenes.moving import load_clips
from training.scenes.world import SIZE

QUALITY = 45  # of the WebP files
MILLISECONDS = 200  # a frame


def write_gallery(clips: Sequence[Clip], split: str, out: Path) -> None:
    """Writes clips and `gallery.json`, whole or not at all.

    Args:
        clips: of whole pairs of twins.
        split: the split they are of.
        out: the folder to write; one that is there is refused.

    Raises:
        FileExistsError: `out` is there.
    """
    if out.exists():
        raise FileExistsError(f"{out} is there already; remove it or choose another folder")
    relevant = iter(relevant_clips(clips))
    with replacing_folder(out) as draft:
        (draft / "images").mkdir(parents=True)
        records = []
        for row, clip in enumerate(tqdm(clips, desc="gallery")):
            captions = [
                {
                    "text": caption.text,
                    "view": caption.kind,
                    "mentions": list(caption.mentions),
                    "relevant": next(relevant).tolist(),
                }
                for caption in clip.captions
            ]
            file = f"images/{clip.id}.webp"
            truth = _drawn(clip, draft / file)
            records.append({"file": file, "alike": row // 2, **truth, "captions": captions})
        index = {"split": split, "world": "scenes_moving", "images": records}
        (draft / "gallery.json").write_text(json.dumps(index, separators=(",", ":")), "utf-8")


def _drawn(clip: Clip, path: Path) -> dict[str, Any]:
    """Writes a clip, and returns its truth; an object's box is where it is seen best."""
    frames = list(clip_frames(clip))
    first, *others = (frame.image for frame in frames)
    first.save(
        path, save_all=True, append_images=others, duration=MILLISECONDS, quality=QUALITY, loop=0
    )
    shares = np.array([frame.visible for frame in frames])  # (frames, objects)
    objects = []
    for index, item in enumerate(clip.objects):
        rows, columns = np.nonzero(frames[shares[:, index].argmax()].instances == index + 1)
        box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        objects.append(
            {
                "name": item.name,
                "color": item.color,
                "box": [round(int(value) / SIZE, 4) for value in box],
                "frames": np.flatnonzero(shares[:, index] >= SEEN).tolist(),
            }
        )
    around = {"setting": clip.setting, "time": clip.time, "weather": clip.weather}
    return {**around, "objects": objects}


def main() -> None:
    """Reads the command line and writes the gallery."""
    parser = argparse.ArgumentParser(description="Turn clips into a pack's gallery.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the split")
    parser.add_argument("--count", type=int, default=300, help="how many, from the first (300)")
    parser.add_argument("--out", type=Path, required=True, help="gallery folder to write")
    options = parser.parse_args()
    try:
        write_gallery(load_clips(options.data)[: options.count], options.data.name, options.out)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
