"""Turns a split of scenes or clips into the gallery of a pack.

`python -m polyview gallery --data data/scenes/test --out build/gallery`
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from polyview.models.files import replacing_folder
from polyview.training.scenes.clip_captions import satisfies_clip
from polyview.training.scenes.motion import Clip
from polyview.training.scenes.relevance import relevant_rows, satisfies
from polyview.training.scenes.render import MIN_SEEN, clip_frames
from polyview.training.scenes.store import SceneData, is_clips, load_clips, load_scenes
from polyview.training.scenes.world import SIZE, Caption, Scene
from polyview.training.settings import exit_on_error, positive_int

_SCENE_QUALITY, _CLIP_QUALITY = 82, 45  # quality of WebP files
_FRAME_MILLISECONDS = 200
_DEFAULT_CLIP_COUNT = 300  # default number of clips in a gallery


def write_gallery(
    data: SceneData | list[Clip], split: str, out: Path, count: int | None = None
) -> None:
    """Writes the gallery of a pack, atomically, from scenes or from pairs of twin clips.

    Scenes become WebP files with masks (lossless WebP). Clips become animated WebP files.
    `gallery.json` has the name of the split, the captions and the ground truth. Only the first
    `count` scenes or clips are written; None for all. Raises FileExistsError if `out` exists.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists already; remove it or choose another folder")
    scenes = data if isinstance(data, SceneData) else None
    records: Sequence[Any] = (scenes.scenes if scenes else data)[:count]  # type: ignore[index]
    relevant = iter(relevant_rows(records, satisfies if scenes else satisfies_clip))
    images = []
    with replacing_folder(out) as draft:
        for folder in ("images", "masks") if scenes else ("images",):
            (draft / folder).mkdir()
        for row, record in enumerate(tqdm(records, "gallery")):
            image = _write_scene(scenes, row, draft) if scenes else _write_clip(record, row, draft)
            objects = image.pop("objects")
            image |= {key: getattr(record, key) for key in ("setting", "time", "weather")}
            image |= {"objects": objects, "captions": []}
            for caption in record.captions:
                view = caption.view if isinstance(caption, Caption) else caption.kind
                entry = {"text": caption.text, "view": view, "mentions": caption.mentions}
                image["captions"].append({**entry, "relevant": next(relevant).tolist()})
            images.append(image)
        world = "scenes" if scenes else "scenes_moving"
        gallery = {"split": split, "world": world, "images": images}
        (draft / "gallery.json").write_text(json.dumps(gallery, separators=(",", ":")), "utf-8")


def _write_scene(data: SceneData, row: int, folder: Path) -> dict[str, Any]:
    """Writes the image and the mask of a scene; returns their file names and the objects."""
    scene: Scene = data.scenes[row]
    files = {"file": f"images/{scene.id}.webp", "mask": f"masks/{scene.id}.webp"}
    Image.fromarray(data.images[row]).save(folder / files["file"], quality=_SCENE_QUALITY, method=6)
    Image.fromarray(data.instances[row]).save(folder / files["mask"], lossless=True, method=6)
    objects = [{"name": o.name, "color": o.color, "box": o.box} for o in scene.objects]
    return {**files, "objects": objects}


def _write_clip(clip: Clip, row: int, folder: Path) -> dict[str, Any]:
    """Writes a clip's frames; returns the file name, the objects and the number of its pair."""
    file, frames = f"images/{clip.id}.webp", list(clip_frames(clip))
    first, *others = (frame.image for frame in frames)
    options: dict[str, Any] = {"duration": _FRAME_MILLISECONDS, "quality": _CLIP_QUALITY, "loop": 0}
    first.save(folder / file, save_all=True, append_images=others, **options)
    shares = np.array([frame.visible for frame in frames])  # (frames, objects)
    objects = []
    for index, item in enumerate(clip.objects):
        best = frames[shares[:, index].argmax()]  # the frame that shows most of the object
        rows, columns = np.nonzero(best.instances == index + 1)
        box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        relative = [round(int(value) / SIZE, 4) for value in box]
        entry = {"name": item.name, "color": item.color, "box": relative}
        objects.append(entry | {"frames": np.flatnonzero(shares[:, index] >= MIN_SEEN).tolist()})
    return {"file": file, "objects": objects, "alike": row // 2}


@exit_on_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and writes the gallery."""
    parser = argparse.ArgumentParser(prog="python -m polyview gallery", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the split")
    help_text = "number of the first scenes or clips to write (default: all scenes, 300 clips)"
    add("--count", type=positive_int, help=help_text)
    add("--out", type=Path, required=True, help="new folder for the gallery")
    options = parser.parse_args(arguments)
    has_clips = is_clips(options.data)
    data = load_clips(options.data) if has_clips else load_scenes(options.data)
    count = options.count or (_DEFAULT_CLIP_COUNT if has_clips else None)
    write_gallery(data, options.data.resolve().name, options.out, count)
