"""The moving world on disk, and the command that draws it: `python -m training.scenes.moving`.

A finished folder holds ``clips.jsonl``, a `Clip` a line, and ``meta.json``, what it was made from.
Its frames are drawn from the clips whenever they are asked for (`clip_frames.py`); what an image
encoder makes of them is kept beside them (`training/data/features.py`).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.files import replacing_folder
from training.scenes.clip_captions import write_clip_captions
from training.scenes.glyphs import FontMissingError, font_sha256
from training.scenes.motion import FRAMES, MOVING_VERSION, Clip, draw_clip
from training.scenes.store import SceneDataError
from training.scenes.world import SIZE, SPLITS, WORLD_VERSION, Split, scene_generator

CLIPS = "clips.jsonl"
COUNTS = {"train": 6_000, "val": 500, "test": 500}
_CAPTION_DICE = 4_000_000  # an attempt that no drawing reaches


def make_clip(seed: int, split: Split, index: int) -> Clip:
    """Draws one clip by lot and writes its captions; depends on nothing but the arguments."""
    clip = draw_clip(seed, split, index)
    rng = scene_generator(seed, split, index, _CAPTION_DICE)
    return replace(clip, captions=write_clip_captions(clip, rng))


def write_clips(out: Path, split: Split, count: int, seed: int = 0, *, force: bool = False) -> bool:
    """Writes a split into ``out/split``.

    Args:
        out: the folder of all splits.
        split: which split; splits share no seeds.
        count: number of clips, even, as twins stand together.
        seed: of the world.
        force: replaces a folder that holds something else.

    Returns:
        True if it was written, False if the finished folder was already there.

    Raises:
        SceneDataError: `count` is odd or below 2, or the folder holds something else.
        training.scenes.glyphs.FontMissingError: if there is no emoji font.
    """
    if count < 2 or count % 2:
        raise SceneDataError(f"count must be even, as clips come in twins, not {count}")
    folder, meta = out / split, _meta(split, seed, count)
    if folder.exists() and not force:
        if (folder / CLIPS).is_file() and _read_meta(folder) == meta:
            return False
        raise SceneDataError(f"{folder} holds something else: --force replaces it.")
    with replacing_folder(folder) as draft:
        draft.mkdir(parents=True, exist_ok=True)
        with (draft / CLIPS).open("w", encoding="utf-8", newline="\n") as lines:
            for index in range(count):
                record = make_clip(seed, split, index).to_json()
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
        (draft / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", "utf-8")
    return True


def _meta(split: Split, seed: int, count: int) -> dict[str, Any]:
    return {
        "world_version": WORLD_VERSION,
        "moving_version": MOVING_VERSION,
        "seed": seed,
        "split": split,
        "count": count,
        "frames": FRAMES,
        "size": SIZE,
        "font_sha256": font_sha256(),
    }


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise SceneDataError(f"{folder} holds no finished clips: draw them again") from error
    return dict(meta)


def is_clips(folder: Path) -> bool:
    """Whether a folder holds a split of this world."""
    return (folder / CLIPS).is_file()


def load_clips(folder: Path) -> list[Clip]:
    """Reads a split.

    Raises:
        SceneDataError: the folder is unfinished, damaged or of another version of the world.
    """
    meta = _read_meta(folder)
    versions = meta.get("world_version"), meta.get("moving_version")
    if versions != (WORLD_VERSION, MOVING_VERSION):
        raise SceneDataError(
            f"{folder} holds clips of another version of the world: draw them again with --force"
        )
    try:
        lines = (folder / CLIPS).read_text("utf-8").splitlines()
        clips = [Clip.from_json(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SceneDataError(
            f"{folder} is damaged ({error}): draw it again with --force"
        ) from error
    if len(clips) != meta["count"]:
        raise SceneDataError(f"{folder} does not hold the {meta['count']} clips it promises")
    return clips


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.scenes.moving", description="Draw a split of the moving world."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of all splits")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, help="number of clips (6000 train, 500 val, test)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the world (0)")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    options = parser.parse_args(arguments)
    count = COUNTS[options.split] if options.count is None else options.count
    try:
        made = write_clips(options.out, options.split, count, options.seed, force=options.force)
    except (FontMissingError, SceneDataError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.out / options.split}: {count} clips{'' if made else ' were already there'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
