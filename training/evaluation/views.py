"""Measures views: how often each wins, how much they differ, and whether they attend to objects.

*View faithfulness* compares the attention map of each view with the objects that a caption of the
image mentions. It needs a mask for each object (rendered scenes).

- *Pointing* (the pointing game of Zhang et al., ECCV 2016, with cells): does the map's highest cell
  show a pixel of a mentioned object? If several cells tie, the result is the share of the tied
  cells that do. Chance is the share of all cells that do, which is the result of a flat map.
- *Mass*: the share of the map on mentioned objects. Negative values (of cosine maps) are set to 0,
  the map is scaled to sum to 1, and each cell counts by the share of its pixels that belong to
  mentioned objects. Chance is the objects' share of the image. Without positive values, mass is 0.

The maps do not depend on the caption. Captions without a visible mentioned object are left out.
"""

import math
import re
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from polyview.export.runtime import Runtime
from polyview.models import Method, Views
from polyview.training.data.split import Split, VisibleObjects
from polyview.training.evaluation.report import Rows, print_rows

LEVELS = 256  # number of possible values of a mask's pixel


@torch.inference_mode()
def own_scores(
    score: Callable[[Views, Views], Tensor],
    images: Views,
    texts: Views,
    image_of: np.ndarray,
    batch_size: int = 16,
) -> np.ndarray:
    """Returns the score (N_txt,) or (V, N_txt) of each text with its image, `images[image_of[t]]`.

    `score` is `Method.score` or `Method.view_scores`, called with `batch_size` images at a time.
    """
    scores, text_rows = [], []
    for start in range(0, len(images), batch_size):
        end = start + batch_size
        rows = np.flatnonzero((image_of >= start) & (image_of < end))
        if len(rows):
            block = score(images[start:end], texts[torch.from_numpy(rows)])
            pair_scores = block[..., image_of[rows] - start, np.arange(len(rows))]  # (..., rows)
            scores.append(pair_scores.float().cpu().numpy())
            text_rows.append(rows)
    return np.concatenate(scores, axis=-1)[..., np.concatenate(text_rows).argsort()]


def view_statistics(
    method: Method, images: Views, texts: Views, image_of: np.ndarray
) -> dict[str, float]:
    """Measures how often each of V views wins, and how similar the views are.

    A view wins a text if it scores highest among the views of the text's own image; the first view
    wins ties. `image_of` (N_txt,) has the row of each text's image. Returns `wins_1` to `wins_V`,
    the shares of texts in percent; `wins_entropy`, the entropy of these shares in bits, from 0 (one
    view wins all) to log2 V (all win equally often); and, if V > 1, `view_cosine`, the mean cosine
    between two views of the same image.
    """
    count = images.embeddings.shape[1]
    winners = own_scores(method.view_scores, images, texts, image_of).argmax(axis=0)
    shares = np.bincount(winners, minlength=count) / len(winners)  # (V,)
    positive_shares = shares[shares > 0]
    values = {f"wins_{view}": 100 * float(share) for view, share in enumerate(shares, 1)}
    values["wins_entropy"] = float((positive_shares * np.log2(1 / positive_shares)).sum())
    if count > 1:
        values["view_cosine"] = _mean_pairwise_cosine(images.embeddings)
    return values


def caption_cosines(texts: Views, text_images: np.ndarray) -> dict[str, float]:
    """Measures the cosine between captions of the same image, as in MV-VSE's Fig. 2.

    `text_images` (N_txt,) has the row of each text's image; several views of a text are
    concatenated. Returns `caption_cosine`, the mean over images of the mean cosine between two
    captions; empty if no image has two captions.
    """
    vectors = texts.embeddings.float().flatten(1).cpu()  # (N_txt, W * D)
    means = [
        _mean_pairwise_cosine(vectors[torch.from_numpy(rows)][None])
        for image in np.unique(text_images)
        if len(rows := np.flatnonzero(text_images == image)) > 1
    ]
    return {"caption_cosine": float(np.mean(means))} if means else {}


def _mean_pairwise_cosine(embeddings: Tensor) -> float:
    """Returns the mean cosine over all pairs of views of the same item; embeddings (B, V, D)."""
    count = embeddings.shape[1]
    unit = torch.nn.functional.normalize(embeddings.float(), dim=2)  # (B, V, D)
    cosines = unit @ unit.transpose(1, 2)  # (B, V, V)
    pair_sums = cosines.sum(dim=(1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(dim=1)  # (B,)
    return float(pair_sums.mean()) / (count * (count - 1))


def value_shares(mask: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Returns the share of each cell's pixels that have each value, (N, 256); cells are row-major.

    The mask (H, W) uint8 must be at least as large as the grid (rows, columns) of N cells.

    >>> value_shares(np.array([[0, 2], [0, 0]], np.uint8), (1, 2))[:, [0, 2]].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    (rows, columns), (height, width) = grid, mask.shape
    y, x = np.arange(height) * rows // height, np.arange(width) * columns // width
    cells = y[:, None] * columns + x  # (H, W)
    size = rows * columns * LEVELS
    counts = np.bincount((cells * LEVELS + mask).ravel(), minlength=size).reshape(-1, LEVELS)
    return counts / counts.sum(axis=1, keepdims=True)  # (N, 256)


def object_shares(runtime: Runtime, objects: VisibleObjects) -> Iterator[np.ndarray]:
    """Yields `value_shares` (N, 256) of each mask, cropped like the image by preprocessing."""
    for mask in objects.masks:
        height, width = mask.shape
        x0, y0, x1, y1 = runtime.preprocess.visible_box(width, height)
        rows = slice(round(y0 * height), round(y1 * height))
        yield value_shares(mask[rows, round(x0 * width) : round(x1 * width)], runtime.grid)


def mentioned_cells(runtime: Runtime, data: Split) -> np.ndarray | None:
    """Returns the share (N_txt, N) of each cell that a caption's objects cover; None if unknown."""
    if data.objects is None:
        return None
    covered = np.zeros((len(data.captions), runtime.grid[0] * runtime.grid[1]))
    for image, shares in enumerate(object_shares(runtime, data.objects)):
        for text in np.flatnonzero(data.image_of == image).tolist():
            values = np.array(data.objects.mentions[text], np.int64) + 1
            covered[text] = shares[:, values].sum(axis=1)
    return covered


def faithfulness(
    attention: np.ndarray, covered: np.ndarray, image_of: np.ndarray, winners: np.ndarray
) -> dict[str, float]:
    """Measures pointing and mass of attention maps, see the module's docstring.

    `attention` (N_img, V, N) holds each view's map, `covered` (N_txt, N) is from `mentioned_cells`,
    `image_of` (N_txt,) has the row of each caption's image and `winners` (N_txt,) its winning view.
    Returns in percent `pointing_1` to `pointing_V`, `pointing` of the winning views and
    `pointing_chance`; the same for `mass`. Raises ValueError if no mentioned object is visible.
    """
    rows = np.flatnonzero(covered.any(axis=1))  # T captions
    if not len(rows):
        raise ValueError("no caption mentions a visible object; leave --views out")
    covered, image_of, winners = covered[rows], image_of[rows], winners[rows]
    peaks = attention == attention.max(axis=2, keepdims=True)  # (N_img, V, N)
    values: dict[str, float] = {}
    tables = (("pointing", peaks, covered > 0), ("mass", attention.clip(min=0), covered))
    for key, maps, target in tables:
        totals = maps.sum(axis=2, keepdims=True)
        weights = np.divide(maps, totals, out=np.zeros(maps.shape), where=totals > 0)
        text_weights = weights[image_of]  # (T, V, N); 0 for maps that are 0
        results = np.einsum("tvn,tn->tv", text_weights, target.astype(float))  # (T, V)
        values |= {f"{key}_{v + 1}": 100 * float(x) for v, x in enumerate(results.mean(axis=0))}
        values[key] = 100 * float(results[np.arange(len(winners)), winners].mean())
        values[f"{key}_chance"] = 100 * float(target.mean())
    return values


def view_metrics(
    runtime: Runtime, name: str, data: Split, views: tuple[Views, Views], covered: np.ndarray | None
) -> dict[str, float]:
    """Returns a method's `view_statistics`, and `faithfulness` if maps and objects are known.

    `views` are those of images, with attention maps, and of texts; `covered` (N_txt, cells) is from
    `mentioned_cells`. Metrics of single views are left out if views are elements, such as cells.
    """
    head, (images, texts) = runtime.methods[name], views
    values = view_statistics(head, images, texts, data.image_of)
    if covered is not None and images.attention is not None:
        winners = own_scores(head.view_scores, images, texts, data.image_of).argmax(axis=0)
        maps = runtime.to_grid(images.attention).flatten(2).cpu().numpy()  # (N_img, V, cells)
        values |= faithfulness(maps, covered, data.image_of, winners)
    if head.views_are_elements:
        pattern = r"(wins|pointing|mass)_\d+"
        return {key: value for key, value in values.items() if not re.fullmatch(pattern, key)}
    return values


def print_views(rows: Rows) -> None:
    """Prints a row for each view, in percent, and a summary for each method."""
    table, summaries = [], [""]
    for name, row in rows.items():
        count = sum(key.startswith("wins_") for key in row) - 1  # V; one key is the entropy
        lines = [(f"{name} {view}", f"_{view}") for view in range(1, count + 1)]
        if "pointing" in row:
            lines += [(f"{name}, the winning view", ""), (f"{name}, chance", "_chance")]
        for title, suffix in lines:
            keys = [f"{key}{suffix}" for key in ("wins", "pointing", "mass")]
            table.append([title, *(f"{row[key]:.1f}" if key in row else "" for key in keys)])
        maximum = f" of at most {math.log2(count):.2f}" if count else ""
        summaries.append(f"{name}: entropy of the wins {row['wins_entropy']:.2f}{maximum} bits")
        if "view_cosine" in row:
            summaries[-1] += f", mean cosine between two views of an image {row['view_cosine']:.3f}"
        if "pointing" not in row:
            requirement = "it needs attention maps and a mask for every image"
            summaries.append(f"{name}: faithfulness was not measured; {requirement}")
    titles = ["view", "wins", "points at a mentioned object", "attention on mentioned objects"]
    print()
    print_rows(titles, table)
    print(*summaries, sep="\n")
