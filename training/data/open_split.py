"""Opens a split of any supported kind of folder."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polyview.training.data.image_files import ImageFiles, Lazy, clip_frames
from polyview.training.data.photographs import find_captions, name_of, open_photographs, uncaptioned
from polyview.training.data.precomputed import is_precomputed, open_regions
from polyview.training.data.split import SeenObjects, Split
from polyview.training.data.videos import is_videos, open_videos
from polyview.training.scenes.classes import names_of
from polyview.training.scenes.clip_captions import relevant_clips
from polyview.training.scenes.foils import make_foils
from polyview.training.scenes.motion import FRAMES
from polyview.training.scenes.relevance import relevant_images
from polyview.training.scenes.render import clip_frames as rendered_frames
from polyview.training.scenes.store import is_clips, load_clips, load_scenes


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
