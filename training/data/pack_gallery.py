"""The gallery that comes with a pack, as a split to measure on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from polyview.export.pack.gallery import GalleryInfo, load_gallery
from polyview.export.pack.reading import load_info
from polyview.export.pack.regions import regions_of
from polyview.training.data.image_files import ImageFiles, Lazy, clip_frames, read_frames
from polyview.training.data.split import SeenMoments, SeenObjects, Split
from polyview.training.scenes.classes import names_of
from polyview.training.scenes.foils import make_foils
from polyview.training.scenes.gallery import scenes_of


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
        foils=(lambda: make_foils(scenes_of(gallery))) if gallery.world == "scenes" else None,
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


def _seen_moments(gallery: GalleryInfo, frames: int) -> SeenMoments:
    """The frames in which the objects of clips are visible."""
    seen = [np.zeros((len(image.objects), frames), np.bool_) for image in gallery.images]
    for rows, image in zip(seen, gallery.images, strict=True):
        for row, thing in zip(rows, image.objects, strict=True):
            row[list(thing.frames)] = True
    return SeenMoments(seen, [caption.mentions for caption in gallery.captions], _names(gallery))


def _seen_objects(gallery: GalleryInfo) -> SeenObjects | None:
    """The masks of objects; None unless every image of the gallery has one."""
    masks = [image.mask for image in gallery.images if image.mask is not None]
    if len(masks) < len(gallery.images):
        return None
    paths = [gallery.folder / mask for mask in masks]
    mentions = [caption.mentions for caption in gallery.captions]
    opened = Lazy(len(paths), lambda row: np.asarray(Image.open(paths[row]).convert("L")))
    return SeenObjects(opened, mentions, _names(gallery))
