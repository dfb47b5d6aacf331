"""The gallery of a pack: images, captions and, for rendered scenes, the ground truth.

Paths in `gallery.json` are relative to its folder:

    {"split": "test", "world": "scenes", "images": [{"file": "images/test-000000.webp",
      "mask": "masks/test-000000.png", "setting": "beach", "time": "day", "weather": "clear",
      "objects": [{"name": "dog", "box": [x0, y0, x1, y1], "color": null}],
      "captions": [{"text": "a dog on the beach", "view": "animal", "mentions": [0],
                    "relevant": [0, 17]}]}]}

Only `split`, `images`, `file`, `captions` and `text` are required; unknown keys are ignored.

For a pack without an image encoder, the folder also has `regions.safetensors` with precomputed
features of image regions: `features` (N, n, d) in half precision, for N images with n regions, and
optionally `boxes` (N, n, 4), relative xyxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass
from safetensors.torch import load_file
from torch import Tensor

from polyview.export.pack import validation
from polyview.export.pack.schema import FOLDER, INDEX, MANIFEST, REGIONS, PackInfo
from polyview.export.pack.validation import OPEN, Count, Line, PackError, PlainPath
from polyview.models.checkpoint import save_tensors

Share = Annotated[float, Field(ge=0, le=1)]
Rows = Annotated[tuple[Count, ...], FailFast()]  # indices; validation stops at the first error
_MIN_SIDE = 1e-3  # minimum relative side of a box, so that maps also show empty boxes
MAP_GRID = (16, 16)  # rows and columns of a map over boxes


@dataclass(frozen=True, config=OPEN)
class GalleryCaption:
    """One caption of one image."""

    text: validation.Page
    view: Line | None = None  # the described aspect of the image, such as "animal"
    mentions: Rows = ()  # indices in `objects` of the caption's image
    # Ascending indices of all matching images of the gallery; by default the caption's image.
    relevant: Annotated[Rows, Field(min_length=1)] = ()


@dataclass(frozen=True, config=OPEN)
class GalleryObject:
    """One object in an image."""

    name: Line
    box: tuple[Share, Share, Share, Share]  # relative xyxy; of a clip, in its clearest frame
    color: Line | None = None
    frames: Rows = ()  # frames of a clip that show the object

    def __post_init__(self) -> None:
        if not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise ValueError(f"box must be relative xyxy in 0..1, not {list(self.box)}")


@dataclass(frozen=True, config=OPEN)
class GalleryImage:
    """One image or clip (an animated image): its file, captions, and ground truth if known.

    The pixels of `mask` are 0 for the background and i + 1 for `objects[i]`. Images with the same
    number `alike` are hard to distinguish, such as clips that differ only in the order of events.
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
    # `GalleryCaption.relevant` has indices of this tuple
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


def load_gallery(path: Path, check_files: bool = True) -> GalleryInfo:
    """Reads the gallery of a pack, or the gallery in a folder.

    Raises FileNotFoundError if there is no gallery or, with `check_files`, if an image or mask does
    not exist, PackError if `gallery.json` is invalid.
    """
    folder = path / FOLDER if (path / MANIFEST).is_file() else path
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} has no {INDEX}; name another folder with --gallery")
    index = validation.check(GalleryInfo, validation.read_json(folder / INDEX), INDEX)
    images = list[GalleryImage]()
    for row, image in enumerate(index.images):
        captions = list[GalleryCaption]()
        for caption in image.captions:
            location = f"{INDEX}: images[{row}].captions[{len(captions)}]"
            mentions, relevant = sorted({*caption.mentions}), sorted({*caption.relevant} or {row})
            counts = {"mentions": len(image.objects), "relevant": len(index.images)}
            for key, indices in (("mentions", mentions), ("relevant", relevant)):
                if indices and (last := indices[-1]) >= (count := counts[key]):
                    valid = f"0 to {count - 1}" if count else "empty for an image without objects"
                    raise PackError(f"{location}.{key} must be {valid}, not {last}")
            if row not in relevant:
                raise PackError(f"{location}.relevant must contain the caption's own image, {row}")
            captions.append(replace(caption, mentions=tuple(mentions), relevant=tuple(relevant)))
        images.append(replace(image, captions=tuple(captions)))
    gallery = replace(index, images=tuple(images), folder=folder)
    for file in gallery.files if check_files else ():
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} lacks {file}, which {INDEX} names; copy it again")
    return gallery


class Regions:
    """The n regions of each of N images; features are read from the disk on request.

    `shape` is (N, n, d). `boxes` is (N, n, 4) in relative xyxy, with sides of at least `_MIN_SIDE`,
    or None. `grid` is the number of rows and columns of maps over the regions, (1, 1) without
    boxes. Raises PackError if the file's tensors have other names, shapes or ranges.
    """

    def __init__(self, path: Path) -> None:
        tensors = load_file(path)  # mapped into memory
        if "features" not in tensors or tensors.keys() - {"features", "boxes"}:
            raise PackError(f"{path} must hold features and boxes, not {sorted(tensors)!s:.80}")
        self._features, boxes = tensors["features"], tensors.get("boxes")
        self.shape = tuple(self._features.shape)
        if len(self.shape) != 3 or 0 in self.shape:
            raise PackError(f"{path}: features must be (images, regions, d), not {self.shape}")
        self.boxes, self.grid = None, (1, 1)
        if boxes is not None:
            if boxes.shape != (*self.shape[:2], 4):
                raise PackError(f"{path}: boxes must be {(*self.shape[:2], 4)}, not {boxes.shape}")
            low, high = float(boxes.min()), float(boxes.max())
            if not 0 <= low <= high <= 1:
                raise PackError(f"{path}: boxes must be relative xyxy, not {low:g} to {high:g}")
            corners = boxes.float().unflatten(-1, (2, 2))  # (N, n, 2, 2)
            top_left = corners.amin(dim=2).clamp_max(1 - _MIN_SIDE)
            bottom_right = corners.amax(dim=2).maximum(top_left + _MIN_SIDE)
            self.boxes, self.grid = torch.cat([top_left, bottom_right], dim=-1), MAP_GRID

    def features(self, rows: Sequence[int]) -> Tensor:
        """Returns features (B, n, d) float32 of the images with the indices `rows`."""
        return self._features[list(rows)].float()

    def all_features(self) -> np.ndarray:
        """Returns features (N, n, d) of all images, as stored."""
        return self._features.numpy()

    def sum_map(self, image: int, values: Tensor) -> Tensor:
        """Spreads an image's values (..., n) over a map (..., rows, columns) with the same sum.

        Each value is spread evenly over its region's box; values of overlapping boxes are added.
        """
        shares = self._cell_shares(image).to(values)  # (n, cells)
        return (values @ (shares / shares.sum(dim=1, keepdim=True))).unflatten(-1, self.grid)

    def max_map(self, image: int, values: Tensor) -> Tensor:
        """Returns a map (..., rows, columns) of an image's values (..., n), such as cosines.

        Each cell has the highest value of the regions that overlap it, or 0 outside all regions.
        """
        is_covered = self._cell_shares(image).to(values.device) > 0  # (n, cells)
        highest = values[..., None].where(is_covered, -torch.inf).amax(dim=-2)  # (..., cells)
        return highest.where(is_covered.any(dim=0), 0).unflatten(-1, self.grid)

    def _cell_shares(self, image: int) -> Tensor:
        """Returns shares (n, cells), 0 to 1: how much of each cell each of the regions covers."""
        if self.boxes is None:
            return torch.ones(self.shape[1], 1)
        x0, y0, x1, y1 = self.boxes[image, :, :, None].unbind(dim=1)  # (n, 1) each
        rows, columns = self.grid
        # length of each cell [i, i + 1] inside the box: (n, rows) and (n, columns)
        row_overlap = torch.arange(rows + 1.0).clamp(y0 * rows, y1 * rows).diff()
        column_overlap = torch.arange(columns + 1.0).clamp(x0 * columns, x1 * columns).diff()
        return (row_overlap[:, :, None] * column_overlap[:, None, :]).flatten(1)


def write_regions(folder: Path, features: np.ndarray, boxes: np.ndarray | None) -> None:
    """Writes the regions of a gallery's images: `features` (N, n, d) and `boxes` (N, n, 4)."""
    tensors = {"features": torch.from_numpy(np.array(features, np.float16))}
    if boxes is not None:
        tensors["boxes"] = torch.from_numpy(np.array(boxes, np.float32))
    save_tensors(folder / REGIONS, tensors, {})


def regions_of(info: PackInfo) -> Regions | None:
    """Returns the regions of a pack's gallery, if any; raises PackError for a wrong shape."""
    if info.gallery is None or not info.has_regions:
        return None
    regions = Regions(info.folder / FOLDER / REGIONS)
    actual, expected = regions.shape[::2], (info.gallery.images, info.image_encoder.dim)
    if actual != expected:
        fault = f"the regions of {info.folder} have {actual[0]} images and width {actual[1]}"
        raise PackError(f"{fault}, not {expected[0]} and {expected[1]}; export the pack again")
    return regions
