"""Ready-made features of the regions of a gallery's images, where a pack reads no images itself.

`regions.safetensors` beside `gallery.json`: `features` (N, n, d) in half precision, a row an image
in the gallery's order, and optionally `boxes` (N, n, 4), the regions' places in relative xyxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from export.pack.schema import FOLDER, REGIONS, PackInfo
from export.pack.validation import PackError
from models.checkpoint import save_tensors

THIN = 1e-3  # the least width and height of a box: one without area has a place, too
MAPS = (16, 16)  # rows and columns of a map over boxes


class Regions:
    """The regions of N images; features are read from the disk when they are asked for.

    Args:
        path: the file.

    Attributes:
        shape: (N, n, d).
        grid: rows and columns of maps over the regions; (1, 1), the whole image, without boxes.
        boxes: (N, n, 4), each with an area; None where they are not known.

    Raises:
        PackError: it does not hold what it must.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            if "features" not in names or names - {"features", "boxes"}:
                raise PackError(f"{path} must hold features and boxes, not {sorted(names)!s:.80}")
            self.shape = tuple(file.get_slice("features").get_shape())
            boxes = file.get_tensor("boxes").float() if "boxes" in names else None
        if len(self.shape) != 3 or 0 in self.shape:
            raise PackError(
                f"{path}: features must be (images, regions, numbers), not {self.shape}"
            )
        if boxes is not None and boxes.shape != (*self.shape[:2], 4):
            raise PackError(f"{path}: boxes must be {(*self.shape[:2], 4)}, not {boxes.shape}")
        if boxes is not None and not (boxes.min() >= 0 and boxes.max() <= 1):
            raise PackError(f"{path}: boxes must be relative xyxy, 0 to 1")
        self.boxes = None if boxes is None else _with_area(boxes)
        self.grid = (1, 1) if boxes is None else MAPS

    def features(self, rows: Sequence[int]) -> Tensor:
        """Features (B, n, d) float32 of some images."""
        with safe_open(self._path, framework="pt") as file:
            stored = file.get_slice("features")
            return torch.cat([stored[row : row + 1] for row in rows]).float()

    def all_features(self) -> np.ndarray:
        """Features (N, n, d) of all images, as they are stored."""
        with safe_open(self._path, framework="np") as file:
            features: np.ndarray = file.get_tensor("features")
        return features

    def summed(self, row: int, values: Tensor) -> Tensor:
        """A map of what adds up over an image's regions: shares, or parts of a score.

        The value of a region is spread evenly over its box, and where boxes overlap, values add up:
        the map's sum is that of the values.

        Args:
            row: the image.
            values: (..., n).

        Returns:
            (..., rows, columns).
        """
        covered = self._covered(row).to(values)  # (n, cells)
        return (values @ (covered / covered.sum(dim=1, keepdim=True))).unflatten(-1, self.grid)

    def strongest(self, row: int, values: Tensor) -> Tensor:
        """A map of what does not add up, such as cosines: the highest of a cell's regions.

        Args:
            row: the image.
            values: (..., n).

        Returns:
            (..., rows, columns); 0 where no region reaches.
        """
        reached = self._covered(row).to(values.device) > 0  # (n, cells)
        found = values[..., None].where(reached, -torch.inf).amax(dim=-2)  # (..., cells)
        return found.where(reached.any(dim=0), 0).unflatten(-1, self.grid)

    def _covered(self, row: int) -> Tensor:
        """How much of each cell each region covers: (n, cells) from 0 to 1."""
        if self.boxes is None:
            return torch.ones(self.shape[1], 1)
        high, wide = (torch.arange(count) for count in self.grid)
        left, above, right, below = self.boxes[row, :, :, None].unbind(dim=1)  # (n, 1) each
        down = _overlap(above * len(high), below * len(high), high)  # (n, rows)
        across = _overlap(left * len(wide), right * len(wide), wide)  # (n, columns)
        return (down[:, :, None] * across[:, None, :]).flatten(1)


def write_regions(folder: Path, features: np.ndarray, boxes: np.ndarray | None) -> None:
    """Writes the regions of a gallery's images; see the module's description."""
    tensors = {"features": torch.from_numpy(np.array(features, np.float16))}
    if boxes is not None:
        tensors["boxes"] = torch.from_numpy(np.array(boxes, np.float32))
    save_tensors(folder / REGIONS, tensors, {})


def regions_of(info: PackInfo) -> Regions | None:
    """The regions that a pack's gallery brings, or None.

    Raises:
        PackError: they do not fit the gallery or the methods.
    """
    if info.gallery is None or not info.has_regions:
        return None
    found = Regions(info.folder / FOLDER / REGIONS)
    wanted = info.gallery.images, info.image_encoder.dim
    if found.shape[::2] != wanted:
        raise PackError(
            f"the regions of {info.folder} are {found.shape[0]} images' of {found.shape[2]} "
            f"numbers, but its gallery and methods want {wanted[0]} of {wanted[1]}; export it again"
        )
    return found


def _overlap(start: Tensor, end: Tensor, cells: Tensor) -> Tensor:
    """How much of each cell [i, i + 1] lies between starts and ends (n, 1): (n, cells)."""
    return (end.minimum(cells + 1) - start.maximum(cells)).clamp_min(0)


def _with_area(boxes: Tensor) -> Tensor:
    """Boxes in which the right lies beyond the left, and the lower beyond the upper edge."""
    near = boxes[..., :2].minimum(boxes[..., 2:]).clamp_max(1 - THIN)
    far = boxes[..., :2].maximum(boxes[..., 2:])
    return torch.cat([near, far.maximum(near + THIN)], dim=-1)
