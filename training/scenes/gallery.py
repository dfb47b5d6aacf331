"""Turns a split of scenes or clips into the gallery of a pack.

`python -m polyview gallery --data data/scenes/test --out build/gallery`
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from polyview.export.pack.gallery import GalleryInfo
from polyview.models.files import replacing_folder
from polyview.training.scenes.classes import CLASS_INDEX, CLASSES
from polyview.training.scenes.clip_captions import relevant_clips
from polyview.training.scenes.motion import Clip
from polyview.training.scenes.relevance import relevant_images
from polyview.training.scenes.render import SEEN, clip_frames
from polyview.training.scenes.store import SceneData, is_clips, load_clips, load_scenes
from polyview.training.scenes.world import SETTINGS, SIZE, Caption, Scene, SceneObject

_SCENE_QUALITY, _CLIP_QUALITY = 82, 45  # of the WebP files
_FRAME_MILLISECONDS = 200


def write_gallery(data: SceneData, split: str, out: Path) -> None:
    """Writes images (WebP), masks (PNG) and `gallery.json` of a split atomically.

    Raises:
        FileExistsError: `out` exists.
    """

    def draw(row: int, folder: Path) -> dict[str, Any]:
        scene = data.scenes[row]
        files = {"file": f"images/{scene.id}.webp", "mask": f"masks/{scene.id}.png"}
        image = Image.fromarray(data.images[row])
        image.save(folder / files["file"], quality=_SCENE_QUALITY, method=6)
        levels = np.asarray(data.instances[row], np.uint8)
        (folder / "masks").mkdir(exist_ok=True)
        Image.fromarray(levels).save(folder / files["mask"], optimize=True)
        objects = [
            {"name": item.name, "color": item.color, "box": list(item.box)}
            for item in scene.objects
        ]
        return {**files, **_surroundings(scene), "objects": objects}

    _write(data.scenes, "scenes", split, draw, relevant_images(data.scenes), out)


def write_clip_gallery(clips: Sequence[Clip], split: str, out: Path) -> None:
    """Writes pairs of twin clips as animated WebP, and `gallery.json`, atomically.

    Raises:
        FileExistsError: `out` exists.
    """

    def draw(row: int, folder: Path) -> dict[str, Any]:
        clip, file = clips[row], f"images/{clips[row].id}.webp"
        frames = list(clip_frames(clip))
        first, *others = (frame.image for frame in frames)
        first.save(
            folder / file,
            save_all=True,
            append_images=others,
            duration=_FRAME_MILLISECONDS,
            quality=_CLIP_QUALITY,
            loop=0,
        )
        shares = np.array([frame.visible for frame in frames])  # (frames, objects)
        objects = []
        for index, item in enumerate(clip.objects):
            best = frames[shares[:, index].argmax()]  # the frame that shows most of the object
            rows, columns = np.nonzero(best.instances == index + 1)
            box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            objects.append(
                {
                    "name": item.name,
                    "color": item.color,
                    "box": [round(int(value) / SIZE, 4) for value in box],
                    "frames": np.flatnonzero(shares[:, index] >= SEEN).tolist(),
                }
            )
        return {"file": file, "alike": row // 2, **_surroundings(clip), "objects": objects}

    _write(clips, "scenes_moving", split, draw, relevant_clips(clips), out)


def _surroundings(record: Scene | Clip) -> dict[str, str | None]:
    return {"setting": record.setting, "time": record.time, "weather": record.weather}


def _write(
    records: Sequence[Scene] | Sequence[Clip],
    world: str,
    split: str,
    draw: Callable[[int, Path], dict[str, Any]],
    relevant: Iterable[np.ndarray],
    out: Path,
) -> None:
    """Writes a gallery; `draw` writes the files of a row and returns its ground truth."""
    if out.exists():
        raise FileExistsError(f"{out} exists already; remove it or choose another folder")
    rows = iter(relevant)
    with replacing_folder(out) as draft:
        (draft / "images").mkdir()
        images = []
        for row, record in enumerate(tqdm(records, desc="gallery")):
            captions = [
                {
                    "text": caption.text,
                    "view": caption.view if isinstance(caption, Caption) else caption.kind,
                    "mentions": list(caption.mentions),
                    "relevant": next(rows).tolist(),
                }
                for caption in record.captions
            ]
            images.append({**draw(row, draft), "captions": captions})
        index = {"split": split, "world": world, "images": images}
        (draft / "gallery.json").write_text(json.dumps(index, separators=(",", ":")), "utf-8")


def scenes_of(gallery: GalleryInfo) -> list[Scene]:
    """The scenes of a gallery, without captions and drawing parameters, which it does not store.

    Raises:
        ValueError: the gallery is not of scenes.
    """
    scenes = []
    for image in gallery.images:
        unknown = [item.name for item in image.objects if item.name not in CLASS_INDEX]
        if unknown or image.setting not in SETTINGS:
            what = f'"{unknown[0]}"' if unknown else f'the setting "{image.setting}"'
            raise ValueError(f"{gallery.folder} is not of scenes: {image.file} shows {what}")
        objects = tuple(
            SceneObject(
                item.name,
                CLASSES[CLASS_INDEX[item.name]].group,
                item.color,
                item.box,
                visible=1.0,
                glyph="",
                mirrored=False,
                tilt=0.0,
            )
            for item in image.objects
        )
        surroundings = str(image.setting), image.time, image.weather
        scenes.append(Scene(Path(image.file).stem, *surroundings, objects))
    return scenes


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and writes the gallery."""
    parser = argparse.ArgumentParser(prog="python -m polyview gallery", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the split")
    parser.add_argument(
        "--count", type=int, help="how many, from the first (all scenes; 300 clips)"
    )
    parser.add_argument("--out", type=Path, required=True, help="gallery folder to write")
    options = parser.parse_args(arguments)
    try:
        if is_clips(options.data):
            clips = load_clips(options.data)[: options.count or 300]
            write_clip_gallery(clips, options.data.name, options.out)
            return
        data = load_scenes(options.data)
        selected = slice(options.count)
        images, instances = data.images[selected], data.instances[selected]
        data = replace(data, scenes=data.scenes[selected], images=images, instances=instances)
        write_gallery(data, str(data.meta["split"]), options.out)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
