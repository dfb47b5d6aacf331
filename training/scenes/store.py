"""Writes rendered splits to disk and reads them.

A finished folder of scenes holds:

- ``images.npy``: uint8 (N, SIZE, SIZE, 3) RGB.
- ``instances.npy``: uint8 (N, S, S); 0 is background, i + 1 means that ``objects[i]`` is visible
  there. S is SIZE for val and test; train is thinned to every fourth pixel.
- ``scenes.jsonl``: a `Scene` on each line.
- ``meta.json``: the parameters of the split; written last.

A folder of clips, whose frames are rendered on demand (`render.clip_frames`), holds
``clips.jsonl``, a `Clip` on each line, and ``meta.json``.
"""

import errno
import json
import multiprocessing
import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from tqdm import tqdm

from polyview.models.files import replacing_folder
from polyview.training.scenes import world
from polyview.training.scenes.captions import write_captions
from polyview.training.scenes.classes import CLASSES, COLORS, GROUPS
from polyview.training.scenes.clip_captions import write_clip_captions
from polyview.training.scenes.glyphs import font_sha256
from polyview.training.scenes.motion import FRAMES, MOVING_VERSION, Clip, draw_clip
from polyview.training.scenes.render import Rendered, render_scene
from polyview.training.scenes.world import SIZE, WORLD_VERSION, Scene, Split, scene_generator

CLIPS = "clips.jsonl"
SCENES = "scenes.jsonl"

_THINNING = {"train": 4, "val": 1, "test": 1}  # stride of the stored instance maps, in pixels
_CAPTION_DICE, _CLIP_CAPTION_DICE = 1_000_000, 4_000_000  # attempt numbers above rendering's
_CHUNK = 25  # scenes that a process renders at once
_AGAIN = "render it again with python -m polyview scenes ... --force."

Pixels = NDArray[np.uint8]
Record = TypeVar("Record")


class SceneDataError(ValueError):
    """A folder holds no usable scenes."""


@dataclass(frozen=True)
class SceneData:
    """A split on disk.

    Attributes:
        images: memory-mapped uint8 (N, SIZE, SIZE, 3) RGB.
        instances: memory-mapped uint8 (N, S, S), see the top of the module.
        scenes: N scenes with captions.
        meta: the content of ``meta.json``.
    """

    images: Pixels
    instances: Pixels
    scenes: list[Scene]
    meta: dict[str, Any]

    def __len__(self) -> int:
        return len(self.scenes)


def make_scene(seed: int, split: Split, index: int) -> Rendered:
    """Renders a scene and writes its captions; depends only on the arguments."""
    rendered = render_scene(seed, split, index)
    captions = write_captions(rendered.scene, scene_generator(seed, split, index, _CAPTION_DICE))
    return replace(rendered, scene=replace(rendered.scene, captions=captions))


def make_clip(seed: int, split: Split, index: int) -> Clip:
    """Draws a clip and writes its captions; depends only on the arguments."""
    clip = draw_clip(seed, split, index)
    rng = scene_generator(seed, split, index, _CLIP_CAPTION_DICE)
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

    Splits share no seeds; a longer split begins with the scenes or clips of a shorter one.

    Args:
        out: the folder of all splits.
        split: which split.
        count: number of scenes, or even number of clips, since twins are neighbours.
        moving: write clips instead of scenes.
        seed: seed of the world.
        workers: number of processes, one per core if None; does not affect the result.
        force: replace a folder that holds something else.

    Returns:
        True if it was rendered, False if the finished folder already exists.

    Raises:
        SceneDataError: `count` does not fit, or the folder holds something else and `force` is off.
        training.scenes.glyphs.FontMissingError: there is no emoji font.
        models.files.DiskFullError: the disk has no room for the split; nothing is written.
    """
    if count < 1 or (moving and count % 2):
        least = "even, as clips come in twins" if moving else "at least 1"
        raise SceneDataError(f"count must be {least}, not {count}.")
    folder, meta = out / split, _make_meta(moving, split, seed, count, font_sha256())
    if folder.exists() and not force:
        if _read_meta(folder) == meta:
            return False
        raise SceneDataError(
            f"{folder} holds something else (another seed, count, world or font, or an unfinished "
            "split): --force replaces it."
        )
    with replacing_folder(folder) as draft:
        if moving:
            with (draft / CLIPS).open("w", encoding="utf-8", newline="\n") as lines:
                lines.writelines(_json_line(make_clip(seed, split, row)) for row in range(count))
        else:
            _write_scenes(draft, split, count, seed, workers)
        text = json.dumps(meta, ensure_ascii=False, indent=1)
        (draft / "meta.json").write_text(text + "\n", encoding="utf-8")
    return True


def _write_scenes(folder: Path, split: Split, count: int, seed: int, workers: int | None) -> None:
    """Writes arrays and lines sequentially as they are rendered.

    With memory-mapped files, a full disk would end the process with a bus error.
    """
    small = len(range(0, SIZE, _THINNING[split]))
    shapes = {"images": (count, SIZE, SIZE, 3), "instances": (count, small, small)}
    if shutil.disk_usage(folder).free < sum(map(np.prod, shapes.values())):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.npy").open("wb")) for name in shapes]
        for file, shape in zip(files, shapes.values(), strict=True):
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        lines = stack.enter_context((folder / SCENES).open("w", encoding="utf-8", newline="\n"))
        title = f"rendering {split}"
        bar = stack.enter_context(tqdm(total=count, desc=title, unit="scene", disable=None))
        for *pixels, scenes in stack.enter_context(closing(_rendered(split, count, seed, workers))):
            for file, values in zip(files, pixels, strict=True):
                file.write(values.data)
            lines.writelines(map(_json_line, scenes))
            bar.update(len(scenes))


def _rendered(
    split: Split, count: int, seed: int, workers: int | None
) -> Generator[tuple[Pixels, Pixels, list[Scene]]]:
    """Renders scenes in order, in chunks: (n, SIZE, SIZE, 3), (n, S, S) and n scenes."""
    render = partial(_render_chunk, split, seed)
    spans = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    processes = min(workers or os.cpu_count() or 1, len(spans))
    if processes == 1:
        yield from map(render, spans)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(render, spans)


def _render_chunk(split: Split, seed: int, span: range) -> tuple[Pixels, Pixels, list[Scene]]:
    rendered = [make_scene(seed, split, index) for index in span]
    thinned = slice(_THINNING[split] // 2, None, _THINNING[split])
    images = np.stack([scene.image for scene in rendered])
    instances = np.stack([scene.instances[thinned, thinned] for scene in rendered])
    return images, instances, [scene.scene for scene in rendered]


def load_scenes(path: str | Path) -> SceneData:
    """Opens a rendered split; pixels are memory-mapped, not read.

    Raises:
        SceneDataError: the folder is missing, unfinished, damaged or of another version of the
            world.
    """
    folder = Path(path)
    meta, scenes = _load(folder, SCENES, Scene)
    try:
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        instances = np.load(folder / "instances.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SceneDataError(f"{folder} is damaged ({error}): {_AGAIN}") from error
    count, small = meta["count"], meta["instances_size"]
    if (images.shape, instances.shape) != ((count, SIZE, SIZE, 3), (count, small, small)):
        raise SceneDataError(f"{folder} does not hold the {count} images it promises: {_AGAIN}")
    return SceneData(images, instances, scenes, meta)


def is_clips(folder: Path) -> bool:
    """Whether a folder holds a split of clips."""
    return (folder / CLIPS).is_file()


def load_clips(folder: Path) -> list[Clip]:
    """Reads a split of clips.

    Raises:
        SceneDataError: the folder is unfinished, damaged or of another version of the world.
    """
    return _load(folder, CLIPS, Clip)[1]


def _make_meta(
    moving: bool, split: Split, seed: int, count: int, font_sha256: str
) -> dict[str, Any]:
    made = {"seed": seed, "split": split, "count": count}
    if moving:
        versions = {"world_version": WORLD_VERSION, "moving_version": MOVING_VERSION}
        return {**versions, **made, "frames": FRAMES, "size": SIZE, "font_sha256": font_sha256}
    return {
        "world_version": WORLD_VERSION,
        **made,
        "size": SIZE,
        "instances_size": len(range(0, SIZE, _THINNING[split])),
        "font_sha256": font_sha256,
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
    """The content of ``meta.json``; empty if it is not readable."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _json_line(record: Scene | Clip) -> str:
    return json.dumps(asdict(record), ensure_ascii=False) + "\n"


def _load(folder: Path, file: str, record: type[Record]) -> tuple[dict[str, Any], list[Record]]:
    """The content of ``meta.json``, and the lines of a file."""
    if not folder.is_dir():
        raise SceneDataError(f"{folder} does not exist: render it with python -m polyview scenes.")
    meta = _read_meta(folder)
    if meta.get("split") not in world.SPLITS:
        raise SceneDataError(f"{folder} is not finished (no readable meta.json): {_AGAIN}")
    made = [meta.get(key) for key in ("split", "seed", "count", "font_sha256")]
    if meta != _make_meta(file == CLIPS, *made):  # type: ignore[arg-type]
        raise SceneDataError(
            f"{folder} is of another world (version {meta.get('world_version')}, this code reads "
            f"version {WORLD_VERSION}): {_AGAIN}"
        )
    read, records = TypeAdapter(record).validate_json, list[Record]()
    try:
        with (folder / file).open(encoding="utf-8") as lines:
            records.extend(map(read, lines))
    except (OSError, ValueError) as error:
        reason = f"line {len(records) + 1} of {file} cannot be read"
        raise SceneDataError(f"{folder} is damaged ({reason}): {_AGAIN}") from error
    if len(records) != meta["count"]:
        raise SceneDataError(f"{folder} does not hold the {meta['count']} lines it promises")
    return meta, records
