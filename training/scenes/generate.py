"""Renders a whole split in parallel, into a folder that appears only when it is complete."""

import json
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from models.files import replacing_folder
from training.scenes.captions import write_captions
from training.scenes.glyphs import font_sha256
from training.scenes.render import Rendered, render_scene
from training.scenes.store import THINNING, SceneDataError, make_meta, read_meta
from training.scenes.world import Split, scene_generator

_CAPTION_DICE = 1_000_000
"""An attempt number that no rendering reaches, so that captions have dice of their own."""

_CHUNK = 50


def make_scene(seed: int, split: Split, index: int) -> Rendered:
    """Renders one scene and writes its captions; depends on nothing but the arguments."""
    rendered = render_scene(seed, split, index)
    rng = scene_generator(seed, split, index, _CAPTION_DICE)
    captions = write_captions(rendered.scene, rng)
    return replace(rendered, scene=replace(rendered.scene, captions=captions))


def generate(
    out: Path,
    split: Split,
    count: int,
    *,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
    progress: bool = True,
) -> bool:
    """Renders a split into ``out/split``.

    Args:
        out: the folder of all splits.
        split: which split; splits share no seeds.
        count: number of scenes. The first scenes of a longer split are those of a shorter one.
        seed: seed of the world.
        workers: processes; one per core if None. The result does not depend on it.
        force: replaces a folder that holds something else.
        progress: whether to draw a progress bar.

    Returns:
        True if it was rendered, False if the finished folder was already there.

    Raises:
        SceneDataError: if the folder holds something else and `force` is not given.
        training.scenes.glyphs.FontMissingError: if there is no emoji font.
    """
    if count < 1:
        raise SceneDataError(f"count must be at least 1, not {count}.")
    folder = out / split
    meta = make_meta(split, seed, count, font_sha256())
    if folder.exists() and not force:
        try:
            found = read_meta(folder)
        except SceneDataError as error:
            raise SceneDataError(f"{error} (--force replaces it.)") from error
        if found == meta:
            return False
        message = (
            f"{folder} holds other scenes (seed, count, world or font differ): --force replaces it."
        )
        raise SceneDataError(message)
    with replacing_folder(folder) as draft:
        _render_into(draft, meta, workers, progress)
        text = json.dumps(meta, ensure_ascii=False, indent=1)
        (draft / "meta.json").write_text(text + "\n", encoding="utf-8")
    return True


def _render_into(folder: Path, meta: dict[str, Any], workers: int | None, progress: bool) -> None:
    split, count, size, small = (meta[key] for key in ("split", "count", "size", "instances_size"))
    for name, shape in (("images", (count, size, size, 3)), ("instances", (count, small, small))):
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape).flush()
    jobs = [
        _Chunk(folder, meta, start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)
    ]
    processes = min(workers or os.cpu_count() or 1, len(jobs))
    bar = tqdm(total=count, desc=f"rendering {split}", unit="scene", disable=not progress)
    with bar, (folder / "scenes.jsonl").open("w", encoding="utf-8", newline="\n") as lines:
        for written in _in_order(jobs, processes):
            lines.writelines(written)
            bar.update(len(written))


class _Chunk(NamedTuple):
    """Scenes that one process renders at once."""

    folder: Path
    meta: dict[str, Any]
    start: int
    stop: int


def _in_order(jobs: list[_Chunk], processes: int) -> Iterator[list[str]]:
    if processes == 1:
        yield from map(_render_chunk, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_render_chunk, jobs)


def _render_chunk(job: _Chunk) -> list[str]:
    """Renders scenes into the arrays; returns their lines of JSON."""
    images = np.lib.format.open_memmap(job.folder / "images.npy", "r+")
    instances = np.lib.format.open_memmap(job.folder / "instances.npy", "r+")
    seed, split = job.meta["seed"], job.meta["split"]
    step = THINNING[split]
    lines = []
    for index in range(job.start, job.stop):
        rendered = make_scene(seed, split, index)
        images[index] = rendered.image
        instances[index] = rendered.instances[step // 2 :: step, step // 2 :: step]
        lines.append(json.dumps(rendered.scene.to_json(), ensure_ascii=False) + "\n")
    return lines
