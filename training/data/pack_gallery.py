"""The gallery that comes with a pack, as a split to measure on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from export.pack.gallery import GalleryInfo, load_gallery
from export.pack.reading import load_info
from export.pack.regions import regions_of
from training.data.image_files import Frames, ImageFiles, read_frames
from training.data.split import SeenMoments, SeenObjects, Split
from training.scenes.classes import names_of
from training.scenes.foils import make_foils
from training.scenes.gallery import scenes_of


class _Masks(Sequence[np.ndarray]):
    """Masks of a gallery, opened when they are asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]
        return np.asarray(Image.open(self.paths[index]).convert("L"))


def from_pack(pack: Path, split: str) -> Split:
    """The gallery that comes with a pack.

    Args:
        pack: its folder.
        split: the one that the gallery must be of.

    Raises:
        ValueError: the gallery is of another split.
    """
    gallery = load_gallery(pack)
    if gallery.split != split:
        raise ValueError(f'{pack} brings the split "{gallery.split}"; for "{split}" add --data DIR')
    counts = [len(image.captions) for image in gallery.images]
    relevant = [np.array(caption.relevant) for caption in gallery.captions]
    known = any(len(rows) > 1 for rows in relevant)
    captions = [caption.text for caption in gallery.captions]
    image_of = np.repeat(np.arange(len(counts)), counts)
    info = load_info(pack, verify=False)
    if (regions := regions_of(info)) is not None:
        return Split(captions, image_of, features=regions.all_features(), folder=pack / split)
    paths = [gallery.folder / image.file for image in gallery.images]
    alike = [image.alike for image in gallery.images]
    has_alike = None not in alike
    stills = Split(
        captions,
        image_of,
        ImageFiles(paths),
        folder=pack / split,
        relevant=(lambda: relevant) if known else None,
        objects=_seen_objects(gallery),
        alike=np.array(alike, np.int64) if has_alike else None,
        kinds=[str(caption.view) for caption in gallery.captions] if has_alike else (),
        foils=(lambda: make_foils(scenes_of(gallery))) if gallery.world == "scenes" else None,
    )
    if (frames := info.image_encoder.frames) == 1:
        return stills
    return replace(
        stills,
        images=Frames(lambda row: read_frames(paths[row], frames), len(paths), frames),
        frames=frames,
        moments=_seen_moments(gallery, frames),
    )


def _seen_moments(gallery: GalleryInfo, frames: int) -> SeenMoments:
    """The truth about the frames of clips."""
    seen, names = list[np.ndarray](), list[list[tuple[str, ...]]]()
    for image in gallery.images:
        rows = np.zeros((len(image.objects), frames), np.bool_)
        for row, thing in zip(rows, image.objects, strict=True):
            row[list(thing.frames)] = True
        seen.append(rows)
        names.append([names_of(thing.name) for thing in image.objects])
    return SeenMoments(seen, [caption.mentions for caption in gallery.captions], names)


def _seen_objects(gallery: GalleryInfo) -> SeenObjects | None:
    """The truth about objects, None unless every image of the gallery has a mask."""
    masks = [image.mask for image in gallery.images if image.mask is not None]
    if len(masks) < len(gallery.images):
        return None
    mentions = [caption.mentions for caption in gallery.captions]
    names = [[names_of(thing.name) for thing in image.objects] for image in gallery.images]
    return SeenObjects(_Masks([gallery.folder / mask for mask in masks]), mentions, names)
