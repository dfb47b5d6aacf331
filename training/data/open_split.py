"""Opens a split of any supported kind of folder, or the gallery that comes with a pack.

`python -m polyview data DIR` describes what training reads from a folder: it opens every split and
decodes every image. Training then takes the folder as `--set data=DIR`, evaluation as `--data DIR`.
"""

import argparse
import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polyview.export.pack.gallery import GalleryInfo, load_gallery
from polyview.export.pack.reading import load_info
from polyview.export.pack.regions import regions_of
from polyview.training.data.image_files import ImageFiles, Lazy, clip_frames, read_frames
from polyview.training.data.photographs import (
    find_captions,
    name_of,
    open_photographs,
    read_captions,
    uncaptioned,
)
from polyview.training.data.precomputed import is_precomputed, open_regions
from polyview.training.data.split import SeenObjects, Split
from polyview.training.data.texts import build_tokenizer
from polyview.training.data.videos import is_videos, open_videos
from polyview.training.scenes.classes import names_of
from polyview.training.scenes.clip_captions import relevant_clips
from polyview.training.scenes.foils import make_foils
from polyview.training.scenes.motion import FRAMES
from polyview.training.scenes.relevance import relevant_images
from polyview.training.scenes.render import clip_frames as rendered_frames
from polyview.training.scenes.store import is_clips, load_clips, load_scenes

_MAX_NAMED = 10  # damaged images listed
_FEW = 500  # training images; fewer give poor heads


def open_split(data: Path, name: str) -> Split:
    """Opens a split ("train", "val", "test"; of ready-made features also "testall") of a folder.

    The folder holds rendered scenes or clips, photographs with captions, captions with ready-made
    features (`training/data/precomputed.py`) or clips with features of their frames (`videos.py`).

    Raises:
        FileNotFoundError: the folder holds no such split.
        ValueError: its files do not fit together.
    """
    if is_videos(data):
        return open_videos(data, name)
    if is_precomputed(data):
        return open_regions(data, name)
    if is_clips(data / name):
        return _open_clips(data / name)
    if (data / name).is_dir():
        return _open_scenes(data / name)
    if find_captions(data) is not None:
        return open_photographs(data, name)
    raise FileNotFoundError(
        f"{data} holds neither photographs (a file of captions and images/) nor a rendered split "
        f'"{name}" (python -m polyview scenes makes it) nor ready-made features (train_ims.npy and '
        "so on)"
    )


def holds_features(data: Path) -> bool:
    """Whether a folder has ready-made features and needs no image encoder."""
    return is_precomputed(data) or is_videos(data)


def describe_data(data: Path, also: Sequence[str], split: Split) -> dict[str, Any]:
    """Describes the data of a training split for the model card; see `open_training`.

    Returns:
        `kind` ("scenes", "photographs" or "features"), `name` (such as "Flickr8k and my_photos"),
        numbers of `images` and `captions`.
    """
    kind, name = "features", data.resolve().name
    if isinstance(split.images, ImageFiles):
        files = [find_captions(folder) for folder in (data, *map(Path, also))]
        kind = "photographs"
        name = " and ".join(dict.fromkeys(name_of(file) for file in files if file))
    elif len(split.images):
        kind, name = "scenes", "rendered scenes" + (" in motion" if split.frames > 1 else "")
    counts = {"images": split.image_count, "captions": len(split.captions)}
    return {"kind": kind, "name": name, **counts}


def open_training(data: Path, also: Sequence[str] = (), *, without_captions: bool = False) -> Split:
    """The training split of a folder, followed by the photographs of the folders `also`.

    `without_captions` adds the uncaptioned photographs of `also` at the end.

    Raises:
        FileNotFoundError, ValueError: see `open_split`; or `also` is set and `data` holds no
            photographs.
    """
    first = open_split(data, "train")
    if not also:
        return first
    folders = [Path(name) for name in also]
    splits = [first, *(open_photographs(folder, "train") for folder in folders)]
    if not isinstance(first.images, ImageFiles):
        raise ValueError(f"also needs photographs in data, and {data} holds none; leave it empty")
    starts = np.cumsum([0, *(len(split.images) for split in splits)])
    paths = [path for split in splits for path in split.images.paths]  # type: ignore[attr-defined]
    if without_captions:
        paths += [path for folder in folders for path in uncaptioned(folder)]
    return replace(
        first,
        captions=[caption for split in splits for caption in split.captions],
        image_of=np.concatenate([s.image_of + n for s, n in zip(splits, starts, strict=False)]),
        images=ImageFiles(paths),
    )


def _open_scenes(folder: Path) -> Split:
    """Rendered scenes, with objects, foils and all relevant images."""
    data = load_scenes(folder)
    captions = [caption for scene in data.scenes for caption in scene.captions]
    counts = [len(scene.captions) for scene in data.scenes]
    return Split(
        [caption.text for caption in captions],
        np.repeat(np.arange(len(counts)), counts),
        Lazy(len(data.images), lambda row: Image.fromarray(data.images[row])),
        folder=folder,
        relevant=functools.cache(functools.partial(relevant_images, data.scenes)),
        objects=SeenObjects(
            list(data.instances),
            [caption.mentions for caption in captions],
            [[names_of(thing.name) for thing in scene.objects] for scene in data.scenes],
        ),
        foils=functools.partial(make_foils, data.scenes),
    )


def _open_clips(folder: Path) -> Split:
    """Rendered clips, whose frames are drawn on access."""
    clips = load_clips(folder)
    captions = [caption for clip in clips for caption in clip.captions]
    return Split(
        [caption.text for caption in captions],
        np.repeat(np.arange(len(clips)), [len(clip.captions) for clip in clips]),
        clip_frames(
            lambda row: [frame.image for frame in rendered_frames(clips[row])], len(clips), FRAMES
        ),
        frames=FRAMES,
        folder=folder,
        relevant=functools.cache(functools.partial(relevant_clips, clips)),
        alike=np.arange(len(clips)) // 2,  # twins
        kinds=[caption.kind for caption in captions],
    )


def from_pack(pack: Path, split: str) -> Split:
    """The gallery that comes with a pack.

    Raises:
        ValueError: the pack has no gallery, or one of another split.
    """
    info = load_info(pack, verify=False)
    if info.gallery is None:
        raise ValueError(
            f"{pack} has no gallery to measure on; add --data DIR with captioned images"
        )
    gallery = load_gallery(pack)
    if gallery.split != split:
        raise ValueError(f'{pack} brings the split "{gallery.split}"; for "{split}" add --data DIR')
    captions = [caption.text for caption in gallery.captions]
    image_of = np.repeat(np.arange(len(gallery.images)), [len(i.captions) for i in gallery.images])
    if (regions := regions_of(info)) is not None:
        return Split(captions, image_of, features=regions.all_features(), folder=pack / split)
    relevant = [np.array(caption.relevant) for caption in gallery.captions]
    paths = [gallery.folder / image.file for image in gallery.images]
    alike = [image.alike for image in gallery.images]
    has_alike = None not in alike
    stills = Split(
        captions,
        image_of,
        ImageFiles(paths),
        folder=pack / split,
        relevant=(lambda: relevant) if any(len(rows) > 1 for rows in relevant) else None,
        objects=_seen_objects(gallery),
        alike=np.array(alike, np.int64) if has_alike else None,
        kinds=[str(caption.view) for caption in gallery.captions] if has_alike else (),
        foils=(lambda: make_foils(gallery.images)) if gallery.world == "scenes" else None,
    )
    if (frames := info.image_encoder.frames) == 1:
        return stills
    return replace(
        stills,
        images=clip_frames(lambda row: read_frames(paths[row], frames), len(paths), frames),
        frames=frames,
        moments=_seen_moments(gallery, frames),
    )


def _names(gallery: GalleryInfo) -> list[list[tuple[str, ...]]]:
    return [[names_of(thing.name) for thing in image.objects] for image in gallery.images]


def _seen_moments(gallery: GalleryInfo, frames: int) -> SeenObjects:
    """The frames in which the objects of clips are visible."""
    seen = [np.zeros((len(image.objects), frames), np.bool_) for image in gallery.images]
    for rows, image in zip(seen, gallery.images, strict=True):
        for row, thing in zip(rows, image.objects, strict=True):
            row[list(thing.frames)] = True
    return SeenObjects(seen, [caption.mentions for caption in gallery.captions], _names(gallery))


def _seen_objects(gallery: GalleryInfo) -> SeenObjects | None:
    """The masks of objects; None unless every image of the gallery has one."""
    masks = [image.mask for image in gallery.images if image.mask is not None]
    if len(masks) < len(gallery.images):
        return None
    paths = [gallery.folder / mask for mask in masks]
    mentions = [caption.mentions for caption in gallery.captions]
    opened = Lazy(len(paths), lambda row: np.asarray(Image.open(paths[row]).convert("L")))
    return SeenObjects(opened, mentions, _names(gallery))


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and prints the summary."""
    parser = argparse.ArgumentParser(
        prog="python -m polyview data", description="Say what training reads in a folder."
    )
    what = "folder of photographs with captions, of rendered scenes, or of ready-made features"
    parser.add_argument("data", type=Path, help=what)
    data = parser.parse_args(argv).data
    try:
        for line in summary(data):
            print(line)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


def summary(data: Path) -> Iterator[str]:
    """Lines that describe a folder.

    Raises:
        FileNotFoundError, ValueError: it holds nothing to train on; see `open_split`.
    """
    path = None if holds_features(data) or (data / "train").is_dir() else find_captions(data)
    splits = _open_splits(data, path)
    train = splits["train"]
    kind = "rendered scenes" if len(train.images) else "ready-made features"
    yield f"{data}: {f'photographs, captions in {path.name}' if path else kind}"
    for name, split in splits.items():
        longest = max(len(caption.split()) for caption in split.captions)
        yield (
            f"  {name:5} {split.image_count:7,} images {len(split.captions):8,} captions, "
            f"{len(split.captions) / split.image_count:.1f} each, of at most {longest} words"
        )
    if "val" not in splits:
        yield 'training needs a split "val"; add it, or leave the column split out'
    counts = [build_tokenizer(train.captions, n).get_vocab_size() for n in (1, 2)]
    yield f"words: {counts[0]:,} in the training captions, {counts[1]:,} of them twice or more"
    if isinstance(train.images, ImageFiles):
        yield from _files([path for s in splits.values() for path in s.images.paths])  # type: ignore[attr-defined]
        if len(train.images) < _FEW:
            yield (
                f"{len(train.images)} training images are few: expect the heads to learn only "
                "frequent words"
            )


def _open_splits(data: Path, captions: Path | None) -> dict[str, Split]:
    """All splits of a folder; "train" must be one of them."""
    if captions is not None:
        listed = sorted({str(image.split) for image in read_captions(captions)} - {"train"})
        return {name: open_split(data, name) for name in ["train", *listed]}
    splits = {"train": open_split(data, "train")}
    for name in ("val", "test"):
        try:
            splits[name] = open_split(data, name)
        except FileNotFoundError:
            continue
    return splits


def _files(paths: Sequence[Path]) -> Iterator[str]:
    """Lines with formats, sizes and damaged files; decodes every image completely."""
    images = ImageFiles(paths)

    def read(row: int) -> tuple[str, int] | None:
        try:
            image = images[row]
        except (ValueError, OSError):
            return None
        return str(image.format), min(image.size)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts = list(pool.map(read, range(len(paths))))
    damaged = [path.name for path, fact in zip(paths, facts, strict=True) if fact is None]
    if readable := [fact for fact in facts if fact is not None]:
        short = sorted(side for _, side in readable)
        counts = Counter(name for name, _ in readable).most_common()
        formats = ", ".join(f"{count:,} {name}" for name, count in counts)
        yield (
            f"files: {formats}; the shorter side has {short[0]} to {short[-1]} pixels, half of "
            f"them at least {short[len(short) // 2]}"
        )
    if damaged:
        more = f" and {len(damaged) - _MAX_NAMED} more" if len(damaged) > _MAX_NAMED else ""
        yield (
            f"{len(damaged)} cannot be read: {', '.join(damaged[:_MAX_NAMED])}{more}; replace "
            "them, or leave them out with --skip-damaged when you train"
        )
