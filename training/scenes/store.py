"""Writes rendered splits to disk and reads them.

`python -m polyview scenes --out DIR --split train` renders a split; `--moving` draws clips of 16
frames (`motion.py`) instead of scenes. A finished folder of scenes holds:

- ``images.npy``: uint8 (N, SIZE, SIZE, 3) RGB.
- ``instances.npy``: uint8 (N, S, S); 0 is background, i + 1 shows ``objects[i]``. S is SIZE for val
  and test; train has every fourth pixel.
- ``scenes.jsonl``: a `Scene` on each line.
- ``meta.json``: the parameters of the split; written last.

A folder of clips, whose frames are rendered on demand (`render.clip_frames`), holds
``clips.jsonl``, a `Clip` on each line, and ``meta.json``.
"""

import argparse
import errno
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from tqdm import tqdm

from polyview.models.files import DiskFullError, replacing_folder, sha256_of
from polyview.training.scenes import world
from polyview.training.scenes.captions import write_captions
from polyview.training.scenes.classes import CLASSES, COLORS, GROUPS
from polyview.training.scenes.clip_captions import write_clip_captions
from polyview.training.scenes.motion import FRAMES, MOVING_VERSION, Clip, draw_clip
from polyview.training.scenes.render import RenderedScene, find_font, render_scene
from polyview.training.scenes.world import SIZE, WORLD_VERSION, Scene, Split, scene_generator
from polyview.training.settings import exit_on_error, positive_int

CLIPS, SCENES, META = "clips.jsonl", "scenes.jsonl", "meta.json"
_STRIDES = {"train": 4, "val": 1, "test": 1}  # strides of the stored instance maps in pixels
# values of `attempt` for captions; layouts and clips use other values
_CAPTION_ATTEMPT, _CLIP_CAPTION_ATTEMPT = 1_000_000, 4_000_000
_CHUNK_SIZE = 25  # scenes per task of a process
_RENDER_AGAIN = "render it again with python -m polyview scenes ... --force."
_DEFAULT_COUNTS = {
    "scenes": {"train": 24_000, "val": 1_000, "test": 1_000},
    "clips": {"train": 6_000, "val": 500, "test": 500},
}

Record = TypeVar("Record")


@dataclass(frozen=True)
class SceneData:
    """A split of N scenes with captions; arrays are memory-mapped, see the module's docstring."""

    images: NDArray[np.uint8]
    instances: NDArray[np.uint8]
    scenes: list[Scene]

    def __len__(self) -> int:
        return len(self.scenes)


def make_scene(seed: int, split: Split, index: int) -> RenderedScene:
    """Renders a scene and writes its captions; the same arguments give the same scene."""
    rendered = render_scene(seed, split, index)
    captions = write_captions(rendered.scene, scene_generator(seed, split, index, _CAPTION_ATTEMPT))
    return replace(rendered, scene=replace(rendered.scene, captions=captions))


def make_clip(seed: int, split: Split, index: int) -> Clip:
    """Draws a clip and writes its captions; the same arguments give the same clip."""
    clip = draw_clip(seed, split, index)
    rng = scene_generator(seed, split, index, _CLIP_CAPTION_ATTEMPT)
    return replace(clip, captions=write_clip_captions(clip, rng))


def write_split(
    out: Path,
    split: Split,
    count: int,
    *,
    moving: bool = False,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
) -> bool:
    """Renders a split into ``out/split``, which appears only when it is complete.

    Splits share no seeds; a longer split begins with the scenes or clips of a shorter split.
    `count` is the number of scenes or, with `moving`, an even number of clips. `workers` is the
    number of processes, which does not affect the result; None for one per core. `force` renders an
    existing folder again. Returns False if the same split exists already.

    Raises ValueError if `count` is invalid, the folder has other content and `force` is False, or
    the emoji font is missing. Raises OSError if the folder cannot be written, and its subclass
    `models.files.DiskFullError` if the disk is full; partial files are removed.
    """
    if count < 1 or (moving and count % 2):
        requirement = "even, as clips come in twins" if moving else "at least 1"
        raise ValueError(f"count must be {requirement}, not {count}.")
    folder, meta = out / split, _make_meta(moving, split, seed, count, sha256_of(find_font()))
    if folder.exists() and not force:
        if _read_meta(folder) == meta:
            return False
        content = "other data (another seed, count, world or font, or an unfinished split)"
        raise ValueError(f"{folder} holds {content}: --force replaces it.")
    try:
        with replacing_folder(folder) as draft:
            if moving:
                lines = (_to_json_line(make_clip(seed, split, row)) for row in range(count))
                (draft / CLIPS).write_text("".join(lines), "utf-8", newline="\n")
            else:
                _write_scenes(draft, split, count, seed, workers or os.cpu_count() or 1)
            text = json.dumps(meta, ensure_ascii=False, indent=1)
            (draft / META).write_text(f"{text}\n", "utf-8")
    except DiskFullError:
        raise
    except OSError as error:
        reason = f"{folder} cannot be written: {error.strerror}; choose another --out"
        raise OSError(reason) from error
    return True


def _write_scenes(folder: Path, split: Split, count: int, seed: int, processes: int) -> None:
    """Renders scenes into files; memory-mapped files would cause a bus error on a full disk."""
    step, map_size = _STRIDES[split], SIZE // _STRIDES[split]
    shapes = {"images": (count, SIZE, SIZE, 3), "instances": (count, map_size, map_size)}
    if shutil.disk_usage(folder).free < sum(map(np.prod, shapes.values())):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with ExitStack() as stack:
        images, instances = (stack.enter_context((folder / f"{n}.npy").open("wb")) for n in shapes)
        for array, shape in zip((images, instances), shapes.values(), strict=True):
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(array, header)
        lines = stack.enter_context((folder / SCENES).open("w", encoding="utf-8", newline="\n"))
        make = partial(make_scene, seed, split)
        rendered: Iterable[RenderedScene] = map(make, range(count))
        if processes > 1 and count > _CHUNK_SIZE:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes))
            rendered = pool.imap(make, range(count), _CHUNK_SIZE)
        for scene in tqdm(rendered, f"rendering {split}", count, unit="scene", disable=None):
            images.write(scene.image.data)
            instances.write(scene.instances[step // 2 :: step, step // 2 :: step].tobytes())
            lines.write(_to_json_line(scene.scene))


def _to_json_line(record: Scene | Clip) -> str:
    return json.dumps(asdict(record), ensure_ascii=False) + "\n"


def is_clips(folder: Path) -> bool:
    """Returns whether a folder holds a split of clips."""
    return (folder / CLIPS).is_file()


def load_scenes(folder: Path) -> SceneData:
    """Opens a rendered split; raises ValueError if it is missing, damaged or of another version."""
    scenes = _load(folder, SCENES, Scene)
    load = partial(np.load, mmap_mode="r", allow_pickle=False)
    try:
        images, instances = load(folder / "images.npy"), load(folder / "instances.npy")
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is damaged ({error}): {_RENDER_AGAIN}") from error
    is_complete = images.shape == (len(scenes), SIZE, SIZE, 3) and len(instances) == len(scenes)
    if not is_complete or {images.dtype, instances.dtype} != {np.dtype(np.uint8)}:
        content = f"{len(scenes)} images and instance maps of 8-bit numbers"
        raise ValueError(f"{folder} does not hold {content}: {_RENDER_AGAIN}")
    return SceneData(images, instances, scenes)


def load_clips(folder: Path) -> list[Clip]:
    """Reads a split of clips; raises ValueError if it is missing, damaged or of another version."""
    return _load(folder, CLIPS, Clip)


def _load(folder: Path, file: str, record: type[Record]) -> list[Record]:
    """Reads a file of records; raises ValueError unless ``meta.json`` matches this world."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: render it with python -m polyview scenes.")
    meta = _read_meta(folder)
    if meta.get("split") not in world.SPLITS:
        raise ValueError(f"{folder} is not finished (no readable {META}): {_RENDER_AGAIN}")
    parameters = [meta.get(key) for key in ("split", "seed", "count", "font_sha256")]
    if meta != _make_meta(file == CLIPS, *parameters):  # type: ignore[arg-type]
        raise ValueError(f"{folder} is from another version of the world: {_RENDER_AGAIN}")
    parse, records = TypeAdapter(record).validate_json, list[Record]()
    try:
        with (folder / file).open(encoding="utf-8") as lines:
            records.extend(map(parse, lines))
    except (OSError, ValueError) as error:
        reason = f"line {len(records) + 1} of {file} cannot be read"
        raise ValueError(f"{folder} is damaged ({reason}): {_RENDER_AGAIN}") from error
    if len(records) != meta["count"]:
        content = f"{len(records)} lines, not {meta['count']}"
        raise ValueError(f"{folder / file} holds {content}: {_RENDER_AGAIN}")
    return records


def _make_meta(moving: bool, split: Split, seed: int, count: int, font: str) -> dict[str, Any]:
    """Returns the content of ``meta.json``; `font` is the checksum of the emoji font."""
    origin = {"seed": seed, "split": split, "count": count}
    if moving:
        versions = {"world_version": WORLD_VERSION, "moving_version": MOVING_VERSION}
        return {**versions, **origin, "frames": FRAMES, "size": SIZE, "font_sha256": font}
    return {
        "world_version": WORLD_VERSION,
        **origin,
        "size": SIZE,
        "instances_size": SIZE // _STRIDES[split],
        "font_sha256": font,
        "font": "Noto Color Emoji, SIL Open Font License 1.1",
        "classes": [kind.name for kind in CLASSES],
        "groups": list(GROUPS),
        "colors": list(COLORS),
        "settings": list(world.SETTINGS),
        "times": list(world.TIMES),
        "weathers": list(world.WEATHERS),
        "labels": list(world.LABELS),
    }


def _read_meta(folder: Path) -> dict[str, Any]:
    """Reads ``meta.json``; returns an empty dictionary if the file is not readable."""
    try:
        meta = json.loads((folder / META).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


@exit_on_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Renders the split named on the command line."""
    parser = argparse.ArgumentParser("python -m polyview scenes", description="Render a split.")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the splits")
    add("--split", choices=world.SPLITS, required=True, help="split to render")
    add("--moving", action="store_true", help="render clips instead of scenes")
    help_text = "number of scenes (default: 24000; val, test: 1000) or clips (6000; 500)"
    add("--count", type=positive_int, help=help_text)
    add("--seed", type=int, default=0, help="seed of the world (default: 0)")
    add("--workers", type=positive_int, help="processes that render scenes (default: one per core)")
    add("--force", action="store_true", help="replace an existing folder")
    options = parser.parse_args(arguments)
    unit = "clips" if options.moving else "scenes"
    options.count = options.count or _DEFAULT_COUNTS[unit][options.split]
    start = time.perf_counter()
    is_new = write_split(**vars(options))
    status = f"rendered in {time.perf_counter() - start:.1f} s" if is_new else "already exist"
    print(f"{options.out / options.split}: {options.count} {unit} {status}.")
