"""Turns a rendered split into the gallery of a pack.

`python -m training.scenes.gallery --data data/scenes/test --out build/gallery`
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from export.pack.gallery import GalleryInfo
from models.files import replacing_folder
from training.scenes.classes import CLASS_INDEX, CLASSES
from training.scenes.relevance import relevant_images
from training.scenes.store import SceneData, load_scenes
from training.scenes.world import SETTINGS, Scene, SceneObject

QUALITY = 82  # of the WebP files


def write_gallery(data: SceneData, split: str, out: Path) -> None:
    """Writes images (WebP), masks (PNG) and `gallery.json`, whole or not at all.

    Args:
        data: a split with full-size instance maps.
        split: its name.
        out: the folder to write; one that is there is refused.

    Raises:
        FileExistsError: `out` is there.
    """
    if out.exists():
        raise FileExistsError(f"{out} is there already; remove it or choose another folder")
    with replacing_folder(out) as draft:
        _write(data, split, draft)


def _write(data: SceneData, split: str, draft: Path) -> None:
    for folder in ("images", "masks"):
        (draft / folder).mkdir(parents=True)
    relevant = iter(relevant_images(data.scenes))
    records = []
    for row, scene in enumerate(tqdm(data.scenes, desc="gallery")):
        image, mask = f"images/{scene.id}.webp", f"masks/{scene.id}.png"
        Image.fromarray(data.images[row]).save(draft / image, quality=QUALITY, method=6)
        levels = np.asarray(data.instances[row], np.uint8)
        Image.fromarray(levels).save(draft / mask, optimize=True)
        captions = [
            {
                "text": caption.text,
                "view": caption.view,
                "mentions": list(caption.mentions),
                "relevant": next(relevant).tolist(),
            }
            for caption in scene.captions
        ]
        files = {"file": image, "mask": mask}
        records.append({**files, **_truth(scene), "captions": captions})
    index = {"split": split, "world": "scenes", "images": records}
    (draft / "gallery.json").write_text(json.dumps(index, separators=(",", ":")), "utf-8")


def _truth(scene: Scene) -> dict[str, Any]:
    objects = [
        {"name": item.name, "color": item.color, "box": list(item.box)} for item in scene.objects
    ]
    around = {"setting": scene.setting, "time": scene.time, "weather": scene.weather}
    return {**around, "objects": objects}


def scenes_of(gallery: GalleryInfo) -> list[Scene]:
    """The scenes of a gallery, as far as it keeps them: not how they were drawn, nor captions.

    Raises:
        ValueError: it shows something that no scene does.
    """
    found = []
    for image in gallery.images:
        strange = [thing.name for thing in image.objects if thing.name not in CLASS_INDEX]
        if strange or image.setting not in SETTINGS:
            what = f'"{strange[0]}"' if strange else f'the setting "{image.setting}"'
            raise ValueError(f"{gallery.folder} is not of scenes: {image.file} shows {what}")
        objects = [
            SceneObject(
                thing.name,
                CLASSES[CLASS_INDEX[thing.name]].group,
                thing.color,
                thing.box,
                visible=1.0,
                glyph="",
                mirrored=False,
                tilt=0.0,
            )
            for thing in image.objects
        ]
        where = str(image.setting), image.time, image.weather
        found.append(Scene(Path(image.file).stem, *where, tuple(objects)))
    return found


def main() -> None:
    """Reads the command line and writes the gallery."""
    parser = argparse.ArgumentParser(description="Turn a rendered split into a pack's gallery.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the split")
    parser.add_argument("--out", type=Path, required=True, help="gallery folder to write")
    options = parser.parse_args()
    try:
        data = load_scenes(options.data)
        write_gallery(data, str(data.meta["split"]), options.out)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
