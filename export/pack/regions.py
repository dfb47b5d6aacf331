"""Precomputed features of image regions, for packs without an image encoder.

`regions.safetensors` beside `gallery.json`: `features` (N, n, d) in half precision, a row for each
image in the gallery's order, and optionally `boxes` (N, n, 4), the regions in relative xyxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from polyview.export.pack.schema import FOLDER, REGIONS, PackInfo
from polyview.export.pack.validation import PackError
from polyview.models.checkpoint import save_tensors

_MIN_SIDE = 1e-3  # minimum side of a box, so that empty boxes are drawn, too
MAPS = (16, 16)  # rows and columns of a map over boxes


class Regions:
    """The regions of N images; features are read from the disk on request.

    `shape` is (N, n, d); `boxes` is (N, n, 4), each with an area, or None; `grid` is the rows and
    columns of maps over the regions, (1, 1) without boxes. Raises PackError if the file's tensors
    have other names, shapes or ranges.
    """

    def __init__(self, path: Path) -> None:
        tensors = load_file(path)  # mapped into memory
        if "features" not in tensors or tensors.keys() - {"features", "boxes"}:
            raise PackError(f"{path} must hold features and boxes, not {sorted(tensors)!s:.80}")
        self._features, boxes = tensors["features"], tensors.get("boxes")
        self.shape = tuple(self._features.shape)
        if len(self.shape) != 3 or 0 in self.shape:
            raise PackError(
                f"{path}: features must be (images, regions, numbers), not {self.shape}"
            )
        self.boxes, self.grid = None, (1, 1)
        if boxes is not None:
            if boxes.shape != (*self.shape[:2], 4):
                raise PackError(f"{path}: boxes must be {(*self.shape[:2], 4)}, not {boxes.shape}")
            if not (boxes.min() >= 0 and boxes.max() <= 1):
                raise PackError(f"{path}: boxes must be relative xyxy, 0 to 1")
            # ordered edges, and sides of at least `_MIN_SIDE`
            corners = boxes.float().unflatten(-1, (2, 2))  # (N, n, 2, 2)
            top_left = corners.amin(dim=2).clamp_max(1 - _MIN_SIDE)
            bottom_right = corners.amax(dim=2).maximum(top_left + _MIN_SIDE)
            self.boxes, self.grid = torch.cat([top_left, bottom_right], dim=-1), MAPS

    def features(self, rows: Sequence[int]) -> Tensor:
        """Features (B, n, d) float32 of the images at `rows`."""
        return self._features[list(rows)].float()

    def all_features(self) -> np.ndarray:
        """Features (N, n, d) of all images, as stored."""
        return self._features.numpy()

    def summed(self, row: int, values: Tensor) -> Tensor:
        """A map (..., rows, columns) of an image's values (..., n), with the same sum.

        Each value is spread evenly over its region's box; values of overlapping boxes are added.
        """
        shares = self._cell_shares(row).to(values)  # (n, cells)
        return (values @ (shares / shares.sum(dim=1, keepdim=True))).unflatten(-1, self.grid)

    def strongest(self, row: int, values: Tensor) -> Tensor:
        """A map (..., rows, columns) of an image's values (..., n), such as cosines.

        Each cell has the highest value of its regions, 0 outside all regions.
        """
        is_covered = self._cell_shares(row).to(values.device) > 0  # (n, cells)
        highest = values[..., None].where(is_covered, -torch.inf).amax(dim=-2)  # (..., cells)
        return highest.where(is_covered.any(dim=0), 0).unflatten(-1, self.grid)

    def _cell_shares(self, row: int) -> Tensor:
        """The share of each cell that each region covers: (n, cells)."""
        if self.boxes is None:
            return torch.ones(self.shape[1], 1)
        rows, columns = (torch.arange(count) for count in self.grid)
        x0, y0, x1, y1 = self.boxes[row, :, :, None].unbind(dim=1)  # (n, 1) each
        row_overlap = _overlap(y0 * len(rows), y1 * len(rows), rows)  # (n, rows)
        column_overlap = _overlap(x0 * len(columns), x1 * len(columns), columns)  # (n, columns)
        return (row_overlap[:, :, None] * column_overlap[:, None, :]).flatten(1)


def write_regions(folder: Path, features: np.ndarray, boxes: np.ndarray | None) -> None:
    """Writes the regions of a gallery's images; see the module docstring."""
    tensors = {"features": torch.from_numpy(np.array(features, np.float16))}
    if boxes is not None:
        tensors["boxes"] = torch.from_numpy(np.array(boxes, np.float32))
    save_tensors(folder / REGIONS, tensors, {})


def regions_of(info: PackInfo) -> Regions | None:
    """The regions of a pack's gallery, or None; raises PackError if their shape does not fit."""
    if info.gallery is None or not info.has_regions:
        return None
    regions = Regions(info.folder / FOLDER / REGIONS)
    expected = info.gallery.images, info.image_encoder.dim
    if regions.shape[::2] != expected:
        raise PackError(
            f"the regions of {info.folder} are {regions.shape[0]} images' of {regions.shape[2]} "
            f"numbers, but its gallery and methods need {expected[0]} of {expected[1]}; export it "
            "again"
        )
    return regions


def _overlap(start: Tensor, end: Tensor, cells: Tensor) -> Tensor:
    """The length of each cell [i, i + 1] between starts and ends (n, 1): (n, cells)."""
    return (end.minimum(cells + 1) - start.maximum(cells)).clamp_min(0)
