"""The gallery of a pack: images, captions and, for rendered scenes, the ground truth.

Paths in `gallery.json` are relative to its folder:

    {"split": "test", "world": "scenes", "images": [{"file": "images/test-000000.webp",
      "mask": "masks/test-000000.png", "setting": "beach", "time": "day", "weather": "clear",
      "objects": [{"name": "dog", "box": [x0, y0, x1, y1], "color": null}],
      "captions": [{"text": "a dog on the beach", "view": "animal", "mentions": [0],
                    "relevant": [0, 17]}]}]}

Only `split`, `images`, `file`, `captions` and `text` are required; unknown keys are ignored.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from polyview.export.pack import validation
from polyview.export.pack.schema import FOLDER, INDEX, MANIFEST
from polyview.export.pack.validation import OPEN, Count, Line, PackError, PlainPath

Share = Annotated[float, Field(ge=0, le=1)]
# validation of a long list stops at the first error
Rows = Annotated[tuple[Count, ...], FailFast()]


@dataclass(frozen=True, config=OPEN)
class GalleryCaption:
    """One caption of one image."""

    text: validation.Page
    view: Line | None = None  # the aspect of the image that it describes
    mentions: Rows = ()  # indices in `objects` of the caption's image
    # Ascending indices of all matching images of the gallery; by default the caption's image.
    relevant: Annotated[Rows, Field(min_length=1)] = ()


@dataclass(frozen=True, config=OPEN)
class GalleryObject:
    """One object in an image; `box` is relative xyxy in 0..1.

    In a clip, `frames` are the frames that show the object, and `box` is its box in the clearest.
    """

    name: Line
    box: tuple[Share, Share, Share, Share]
    color: Line | None = None
    frames: Rows = ()

    def __post_init__(self) -> None:
        if not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise ValueError(f"box must be relative xyxy in 0..1, not {list(self.box)}")


@dataclass(frozen=True, config=OPEN)
class GalleryImage:
    """One image: its file, captions, and ground truth if known.

    The pixels of `mask` are 0 for the background and i + 1 for `objects[i]`. A clip is an animated
    image. Images with the same number in `alike` are hard to distinguish, such as clips that differ
    only in the order of events.
    """

    file: PlainPath
    captions: Annotated[tuple[GalleryCaption, ...], FailFast()]
    mask: PlainPath | None = None
    objects: Annotated[tuple[GalleryObject, ...], FailFast(), Field(max_length=255)] = ()
    setting: Line | None = None
    time: Line | None = None
    weather: Line | None = None
    alike: Count | None = None


@dataclass(frozen=True, config=OPEN)
class GalleryInfo:
    """The content of a `gallery.json`, and its folder."""

    split: Line  # the split of the data set
    # `GalleryCaption.relevant` holds indices of this tuple
    images: Annotated[tuple[GalleryImage, ...], Field(min_length=1), FailFast()]
    world: Line | None = None  # the data set, if named
    folder: Path = Path()

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
    """Reads the gallery in a folder or in a pack, and checks that its files exist.

    Raises FileNotFoundError if there is no gallery or it lacks a file, PackError if `gallery.json`
    is invalid.
    """
    return read_gallery(path / FOLDER if (path / MANIFEST).is_file() else path)


def read_gallery(folder: Path, files: bool = True) -> GalleryInfo:
    """Reads a folder's `gallery.json`; with `files`, checks that its files exist."""
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"there is no gallery in {folder}: it has no {INDEX}")
    index = validation.check(GalleryInfo, validation.read_json(folder / INDEX), INDEX)
    images = list[GalleryImage]()
    for row, image in enumerate(index.images):
        captions = list[GalleryCaption]()
        for caption in image.captions:
            location = f"{INDEX}: images[{row}].captions[{len(captions)}]"
            mentions, relevant = sorted({*caption.mentions}), sorted({*caption.relevant} or {row})
            for key, indices, count in (
                ("mentions", mentions, len(image.objects)),
                ("relevant", relevant, len(index.images)),
            ):
                if indices and indices[-1] >= count:
                    last = indices[-1]
                    raise PackError(f"{location}.{key} must be 0 to {count - 1}, not {last}")
            if row not in relevant:
                raise PackError(f"{location}.relevant must contain the caption's own image, {row}")
            captions.append(replace(caption, mentions=tuple(mentions), relevant=tuple(relevant)))
        images.append(replace(image, captions=tuple(captions)))
    gallery = replace(index, images=tuple(images), folder=folder)
    for file in gallery.files if files else ():
        if not (folder / file).is_file():
            raise FileNotFoundError(f"the gallery {folder} lacks {file}, which its {INDEX} names")
    return gallery
