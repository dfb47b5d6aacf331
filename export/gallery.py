"""A gallery that comes with a pack: images, their captions and, for rendered scenes, the truth.

`gallery.json` lies beside the folders it names:

    {"split": "test", "world": "scenes", "images": [{"file": "images/test-000000.webp",
      "mask": "masks/test-000000.png", "setting": "beach", "time": "day", "weather": "clear",
      "objects": [{"name": "dog", "box": [x0, y0, x1, y1], "color": null}],
      "captions": [{"text": "a dog on the beach", "view": "animal", "mentions": [0],
                    "relevant": [0, 17]}]}]}

Only `split`, `images`, `file`, `captions` and `text` are required; keys not named here are left to
others and ignored.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from export.fields import Fields, PackError, plain_path, read_json
from models.preprocess import Box

FOLDER, INDEX = "gallery", "gallery.json"


@dataclass(frozen=True)
class GalleryCaption:
    """One caption of one image.

    Attributes:
        text: what it says.
        view: which side of the image it speaks of, where known.
        mentions: indices of the objects of its own image that it mentions.
        relevant: ascending indices of all images of the gallery that satisfy it; its own image
            alone where nothing else is known.
    """

    text: str
    view: str | None
    mentions: tuple[int, ...]
    relevant: tuple[int, ...]


@dataclass(frozen=True)
class GalleryObject:
    """One thing in an image; `box` is relative xyxy in 0..1."""

    name: str
    box: Box
    color: str | None


@dataclass(frozen=True)
class GalleryImage:
    """One image: paths relative to the gallery folder, captions, and the truth where known.

    The pixels of `mask` hold 0 for the background and i + 1 where `objects[i]` is seen.
    """

    file: str
    mask: str | None
    captions: tuple[GalleryCaption, ...]
    objects: tuple[GalleryObject, ...]
    setting: str | None
    time: str | None
    weather: str | None


@dataclass(frozen=True)
class GalleryInfo:
    """A validated gallery.

    Attributes:
        folder: where `gallery.json` lies.
        split: the part of the data set the images are from.
        world: the data set, where named.
        images: in the order that `relevant` counts in.
    """

    folder: Path
    split: str
    world: str | None
    images: tuple[GalleryImage, ...]

    @cached_property
    def captions(self) -> tuple[GalleryCaption, ...]:
        """All captions, image by image."""
        return tuple(caption for image in self.images for caption in image.captions)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """All images and masks, sorted, relative to the gallery folder."""
        masks = {image.mask for image in self.images if image.mask is not None}
        return tuple(sorted({image.file for image in self.images} | masks))


def load_gallery(path: Path) -> GalleryInfo:
    """Reads a gallery and checks that every file it names is there.

    Args:
        path: a gallery's folder, or a pack that has a gallery.

    Raises:
        FileNotFoundError: there is no gallery, or a file of it is missing.
        PackError: `gallery.json` does not hold what it must.
    """
    return read_gallery(path / FOLDER if (path / "pack.json").is_file() else path)


def read_gallery(folder: Path) -> GalleryInfo:
    """Reads the gallery in exactly this folder; see `load_gallery`."""
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"there is no gallery in {folder}: it has no {INDEX}")
    fields = Fields(read_json(folder / INDEX), INDEX)
    images = fields.children("images")
    if not images:
        raise PackError(f"{folder / INDEX} lists no images")
    gallery = GalleryInfo(
        folder=folder,
        split=fields.text("split"),
        world=fields.text_or_none("world"),
        images=tuple(_image(image, i, len(images)) for i, image in enumerate(images)),
    )
    for file in gallery.files:
        if not (folder / file).is_file():
            raise FileNotFoundError(f"the gallery {folder} lacks {file}, which its {INDEX} names")
    return gallery


def combined_sha256(gallery: GalleryInfo) -> tuple[str, int]:
    """One checksum over all images and masks, and their size together in bytes."""
    digest, total = hashlib.sha256(), 0
    for file in gallery.files:
        with (gallery.folder / file).open("rb") as content:  # in pieces, however large it is
            checksum = hashlib.file_digest(content, "sha256").hexdigest()
            total += content.tell()
        digest.update(f"{file} {checksum}\n".encode())
    return digest.hexdigest(), total


def _image(fields: Fields, row: int, count: int) -> GalleryImage:
    objects = fields.children("objects") if fields.has("objects") else []
    captions = fields.children("captions")
    mask = fields.text_or_none("mask")
    return GalleryImage(
        file=fields.path("file"),
        mask=None if mask is None else plain_path(mask, fields.where),
        captions=tuple(_caption(c, row, len(objects), count) for c in captions),
        objects=tuple(_object(o) for o in objects),
        setting=fields.text_or_none("setting"),
        time=fields.text_or_none("time"),
        weather=fields.text_or_none("weather"),
    )


def _caption(fields: Fields, row: int, objects: int, images: int) -> GalleryCaption:
    relevant = fields.indices("relevant", images) if fields.has("relevant") else (row,)
    if row not in relevant:
        raise PackError(f"{fields.where}: relevant must contain the caption's own image, {row}")
    mentions = fields.indices("mentions", objects) if fields.has("mentions") else ()
    return GalleryCaption(fields.text("text"), fields.text_or_none("view"), mentions, relevant)


def _object(fields: Fields) -> GalleryObject:
    x0, y0, x1, y1 = fields.numbers("box", 4)
    if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
        raise PackError(
            f"{fields.where}: box must be relative xyxy in 0..1, not {[x0, y0, x1, y1]}"
        )
    return GalleryObject(fields.text("name"), (x0, y0, x1, y1), fields.text_or_none("color"))
