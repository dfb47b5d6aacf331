"""View faithfulness: does a view look at the objects that the caption mentions?

Measured where the objects that each caption mentions, and the pixels of every object, are known
(rendered scenes), for a caption and each view's attention map over its own image:

- *Pointing* (the pointing game of Zhang et al., ECCV 2016, by cells): does the map's highest cell
  hold at least one pixel of a mentioned object? Equal highest cells count by the share of them that
  do. Chance is the share of all cells that do, the score of a flat map.
- *Mass*: the share of the map on mentioned objects. Negative values (of maps that hold cosines)
  are set to 0 and the map is scaled to sum to 1; a cell's part is split by the share of its pixels
  that belong to mentioned objects. Chance is the share of the image that they cover. A map
  without any positive value has mass 0.

The maps do not depend on the caption. Captions without a visible mentioned object are left out.
"""

from dataclasses import replace

import numpy as np

from polyview.export.runtime import Runtime
from polyview.models import Views
from polyview.training.data.split import SeenObjects, Split
from polyview.training.evaluation.metrics import view_statistics, winning_views

VALUES = 256  # of a pixel of a mask


def value_shares(mask: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Share (N, 256) of each cell's pixels that have each value; cells row-major, rows sum to 1.

    The mask (H, W) uint8 is at least as large as the grid of rows and columns.

    >>> value_shares(np.array([[0, 2], [0, 0]], np.uint8), (1, 2))[:, [0, 2]].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    (rows, columns), (height, width) = grid, mask.shape
    y, x = np.arange(height) * rows // height, np.arange(width) * columns // width
    cells = y[:, None] * columns + x  # (H, W)
    size = rows * columns * VALUES
    counts = np.bincount((cells * VALUES + mask).ravel(), minlength=size).reshape(-1, VALUES)
    return counts / counts.sum(axis=1, keepdims=True)  # (N, 256)


def mentioned_shares(
    objects: SeenObjects, image_of: np.ndarray, grid: tuple[int, int]
) -> np.ndarray:
    """Share (N_txt, N) in 0..1 of each cell of a caption's own image with objects it mentions.

    `image_of` (N_txt,) has the row of each caption's image, `grid` rows and columns of the maps.
    """
    covered = np.zeros((len(image_of), grid[0] * grid[1]))
    for image, mask in enumerate(objects.masks):
        shares = value_shares(mask, grid)  # (N, 256)
        for text in np.flatnonzero(image_of == image).tolist():
            values = np.array(objects.mentions[text], np.int64) + 1
            covered[text] = shares[:, values].sum(axis=1)
    return covered


def faithfulness(
    attention: np.ndarray, covered: np.ndarray, image_of: np.ndarray, winners: np.ndarray
) -> dict[str, float]:
    """Pointing accuracy and attention mass on mentioned objects, see the top of the module.

    Args:
        attention: (N_img, V, N) each view's map.
        covered: (N_txt, N) from `mentioned_shares`.
        image_of: (N_txt,) row of each caption's image.
        winners: (N_txt,) the view of its own image that scores highest for each caption.

    Returns:
        In percent `pointing_1` to `pointing_V` of each view, `pointing` of each caption's winning
        view, `pointing_chance`; and `mass_*` likewise.

    Raises:
        ValueError: no caption mentions a visible object.
    """
    mentioned = covered.any(axis=1)
    if not mentioned.any():
        raise ValueError("no caption mentions an object of which a pixel is seen")
    covered, image_of, winners = covered[mentioned], image_of[mentioned], winners[mentioned]
    peaks = attention == attention.max(axis=2, keepdims=True)  # (N_img, V, N)
    values: dict[str, float] = {}
    for name, maps, worth in (
        ("pointing", peaks, covered > 0),
        ("mass", attention.clip(min=0), covered),
    ):
        weights = _to_shares(maps)[image_of]  # (T, V, N)
        on_objects = np.einsum("tvn,tn->tv", weights, worth.astype(float))  # (T, V)
        values |= {f"{name}_{v + 1}": 100 * float(x) for v, x in enumerate(on_objects.mean(axis=0))}
        values[name] = 100 * float(on_objects[np.arange(len(winners)), winners].mean())
        values[f"{name}_chance"] = 100 * float(worth.mean())
    return values


def _to_shares(maps: np.ndarray) -> np.ndarray:
    """Sets negative values of maps (..., N) to 0 and scales them to sum to 1; all 0 stays 0."""
    totals = maps.sum(axis=-1, keepdims=True)
    return np.divide(maps, totals, out=np.zeros(maps.shape), where=totals > 0)


def mentioned_cells(runtime: Runtime, data: Split) -> np.ndarray | None:
    """`mentioned_shares` of each caption on the pack's grid; None if objects are not known."""
    if data.objects is None:
        return None
    objects = cropped_objects(data.objects, runtime)
    return mentioned_shares(objects, data.image_of, runtime.grid)  # (N_txt, N)


def cropped_objects(objects: SeenObjects, runtime: Runtime) -> SeenObjects:
    """The same objects, their masks cropped to the part of the image that the encoder sees."""

    def cropped(mask: np.ndarray) -> np.ndarray:
        height, width = mask.shape
        x0, y0, x1, y1 = runtime.preprocess.visible_box(width, height)
        rows = slice(round(y0 * height), round(y1 * height))
        return mask[rows, round(x0 * width) : round(x1 * width)]

    return replace(objects, masks=[cropped(mask) for mask in objects.masks])


def view_metrics(
    runtime: Runtime,
    method: str,
    data: Split,
    views: tuple[Views, Views],
    covered: np.ndarray | None,
) -> dict[str, float]:
    """`view_statistics` of a method, and `faithfulness` if it can be measured.

    Faithfulness needs `split_views` with attention, and `mentioned_cells` (N_txt, cells).
    """
    head, (images, texts) = runtime.methods[method], views
    values = view_statistics(head, images, texts, data.image_of)
    if covered is None or images.attention is None:
        return values
    winners = winning_views(head, images, texts, data.image_of)
    maps = runtime.on_grid(images.attention).flatten(2).cpu().numpy()  # (N_img, V, cells)
    return values | faithfulness(maps, covered, data.image_of, winners)
