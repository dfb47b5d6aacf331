"""Maps features to locations in an image: an encoder's grid, boxes of regions, or a sheet.

A clip that is read as a set is a sheet of its frames, row by row in time order.
"""

import math
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from polyview.app.search.hits import image_size
from polyview.app.search.retriever import Retriever
from polyview.models import Views


def attention_maps(retriever: Retriever, views: Views, image: int, name: str) -> Tensor | None:
    """The attention maps (V, rows, columns) float32 of an image's views; None without attention.

    `views` (1, V, D) are computed by `Retriever.views` with attention. A map holds shares that sum
    to 1, or cosines if `Method.attention_sums_to_one` is False. The share of a region is spread
    over its box and added where boxes overlap; a cell shows the largest cosine of its regions.
    """
    if views.attention is None:
        return None
    values, regions = views.attention[0].float(), retriever.runtime.regions
    if retriever.reads_sets:
        return to_sheet(retriever, values).cpu()
    if regions is None:
        return retriever.runtime.on_grid(values).cpu()
    adds_up = retriever.methods[name].attention_sums_to_one
    return (regions.summed if adds_up else regions.strongest)(image, values).cpu()


def to_maps(retriever: Retriever, values: Tensor, images: Sequence[int] | Image.Image) -> Tensor:
    """Turns contributions (n, ..., N) into maps (n, ..., rows, columns) with the same sums."""
    regions = retriever.runtime.regions
    if retriever.reads_sets:
        return to_sheet(retriever, values)
    if regions is None or isinstance(images, Image.Image):
        return retriever.runtime.on_grid(values)
    pairs = zip(images, values, strict=True)
    return torch.stack([regions.summed(row, part) for row, part in pairs])


def sheet_shape(count: int) -> tuple[int, int]:
    """Rows and columns of a sheet of `count` frames.

    >>> sheet_shape(1), sheet_shape(10), sheet_shape(16)
    ((1, 1), (3, 4), (4, 4))
    """
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def sheets(retriever: Retriever, images: Sequence[int]) -> tuple[list[int] | None, list[list[int]]]:
    """The shape of clips' sheets, and the frames on each; None and [] if no sets are read."""
    if not retriever.reads_sets:
        return None, []
    frames = [retriever.index.clips.window_of(image_id) for image_id in images]
    return list(sheet_shape(max(map(len, frames)))), frames


def box(retriever: Retriever, image_id: int) -> list[float]:
    """The part of an image that its cells cover: relative left, top, right, bottom."""
    size = image_size(retriever.thumbnail(image_id))
    return list(retriever.info.preprocess.visible_box(*size))


def to_sheet(retriever: Retriever, values: Tensor) -> Tensor:
    """Tiles values (..., T * n) of T frames into sheets (..., rows, columns), without summaries."""
    frames = retriever.runtime.on_grid(values.unflatten(-1, (-1, len(retriever.runtime.boxes))))
    count = frames.shape[-3]  # (..., T, r, c)
    rows, columns = sheet_shape(count)
    padded = torch.nn.functional.pad(frames, (0, 0, 0, 0, 0, rows * columns - count))
    tiles = padded.unflatten(-3, (rows, columns)).transpose(-3, -2)  # (..., rows, r, columns, c)
    return tiles.flatten(-4, -3).flatten(-2)
