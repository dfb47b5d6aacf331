"""Retrieval metrics over a full score matrix, and the interval of a mean.

Ties count against the method: an item that ties with a wrong one ranks behind it, so that constant
scores get no credit.
"""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

RECALLS = (1, 5, 10)
DRAWS = 1000  # of the bootstrap
SEED = 0  # of the bootstrap
FIRST = 5  # ranks counted for everyday questions
ENOUGH = 20  # qualifying everyday questions; means over fewer are noise
_AGREEING = 2  # captions of a photograph that must match a question; a single one may be an error


def best_ranks(scores: np.ndarray, positives: Sequence[np.ndarray]) -> np.ndarray:
    """Zero-based rank of each query's best positive.

    Args:
        scores: (Q, G) score of each gallery item for each query.
        positives: the right gallery indices of each query, at least one.

    Returns:
        (Q,) int64, the number of wrong items that score at least as much as the best right one.

    Raises:
        ValueError: a score is NaN.
    """
    if np.isnan(scores).any():
        raise ValueError("a score is NaN: the weights are damaged, or the training diverged")
    ranks = np.empty(len(scores), np.int64)
    for q, (row, right) in enumerate(zip(scores, positives, strict=True)):
        best = row[right].max()
        ranks[q] = np.count_nonzero(row >= best) - np.count_nonzero(row[right] >= best)
    return ranks


def retrieval_ranks(scores: np.ndarray, text_images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zero-based ranks in both directions, see `best_ranks`.

    Args:
        scores: (N_img, N_txt).
        text_images: (N_txt,) row of the image that each text describes.

    Returns:
        (N_img,) rank of the best of each image's captions, and (N_txt,) of each text's image.

    Raises:
        ValueError: an image has no caption, or a score is NaN.
    """
    order = np.argsort(text_images, kind="stable")
    captions = np.split(order, np.searchsorted(text_images[order], np.arange(1, len(scores))))
    empty = next((i for i, c in enumerate(captions) if len(c) == 0), None)
    if empty is not None:
        raise ValueError(f"image {empty} has no caption; leave it out of the evaluation")
    return best_ranks(scores, captions), best_ranks(scores.T, list(text_images[:, None]))


def retrieval_metrics(scores: np.ndarray, text_images: np.ndarray) -> dict[str, float]:
    """The usual metrics of scores (N_img, N_txt), where text t describes image `text_images[t]`.

    Returns:
        For `i2t` (image to text, best of the image's captions) and `t2i`: R@1, R@5 and R@10 in
        percent (`_r1` ...), median and mean rank counted from 1 (`_medr`, `_meanr`), and `_nmr`,
        the median divided by the number of ranked items, in 0..1 (PVSE, Song and Soleymani, CVPR
        2019, section 5); and `rsum`, the sum of the six recalls (0 to 600).
    """
    table: dict[str, float] = {}
    ways = zip(("i2t", "t2i"), retrieval_ranks(scores, text_images), scores.T.shape, strict=True)
    for way, ranks, gallery in ways:
        median = float(np.floor(np.median(ranks)) + 1)
        table |= {f"{way}_r{k}": 100.0 * float(np.mean(ranks < k)) for k in RECALLS}
        table |= {f"{way}_medr": median, f"{way}_meanr": float(ranks.mean() + 1)}
        table[f"{way}_nmr"] = median / gallery
    recalls = [table[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in RECALLS]
    return {**table, "rsum": float(np.sum(recalls))}


def folded_metrics(scores: np.ndarray, text_images: np.ndarray, folds: int) -> dict[str, float]:
    """`retrieval_metrics`, averaged over equal, consecutive folds of the images.

    Raises:
        ValueError: `folds` does not divide the images evenly.
    """
    check_folds(len(scores), folds)
    size, tables = len(scores) // folds, []
    for start in range(0, len(scores), size):
        inside = (text_images >= start) & (text_images < start + size)
        part = scores[start : start + size, inside]
        tables.append(retrieval_metrics(part, text_images[inside] - start))
    return {key: float(np.mean([table[key] for table in tables])) for key in tables[0]}


def check_folds(images: int, folds: int) -> None:
    """Raises ValueError if the folds do not divide the images evenly."""
    if folds < 1 or images % folds:
        raise ValueError(f"{folds} folds do not divide {images} images evenly")


def relevance_metrics(scores: np.ndarray, relevant: Sequence[np.ndarray]) -> dict[str, float]:
    """R-precision and mAP@R over *all* true positives (ECCV Caption, Chun et al., ECCV 2022).

    With R the number of relevant items of a query: R-precision is the share of relevant items among
    the first R; AP@R averages, over the first R ranks, the precision at each rank that holds a
    relevant item.

    Args:
        scores: (N_img, N_txt).
        relevant: for each text all images that satisfy it.

    Returns:
        `{t2i,i2t}_rprecision` and `{t2i,i2t}_map_at_r` in percent.
    """
    truth = np.zeros(scores.shape, bool)
    for text, images in enumerate(relevant):
        truth[images, text] = True
    out: dict[str, float] = {}
    for way, table, right in (("i2t", scores, truth), ("t2i", scores.T, truth.T)):
        values = np.array([_at_r(row, r) for row, r in zip(table, right, strict=True) if r.any()])
        out[f"{way}_rprecision"], out[f"{way}_map_at_r"] = (100.0 * values.mean(axis=0)).tolist()
    return out


def _at_r(row: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """R-precision and AP@R of one query with scores (G,) and right items (G,) bool."""
    count = int(right.sum())
    last = np.partition(row, -count)[-count]
    best = np.flatnonzero(row >= last)  # the first R, and ties with the last of them
    # wrong items first among equals: ties count against the method
    hits = right[best[np.lexsort((right[best], -row[best]))[:count]]]
    precision = np.cumsum(hits) / np.arange(1, count + 1)
    return float(hits.mean()), float((precision * hits).sum() / count)


def mean_interval(values: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of (N,), by bootstrap (Efron and Tibshirani, 1993).

    `groups` (N,) are equal for values that are resampled together; None for no groups.
    """
    _, index = np.unique(np.arange(len(values)) if groups is None else groups, return_inverse=True)
    sums, sizes = np.bincount(index, values), np.bincount(index)
    uniform = np.full(len(sums), 1 / len(sums))
    draws = np.random.default_rng(SEED).multinomial(len(sums), uniform, size=DRAWS)
    low, high = np.percentile(draws @ sums / (draws @ sizes), (2.5, 97.5))
    return float(low), float(high)


@cache
def everyday_questions() -> dict[str, str]:
    """Question -> pattern of captions that answer it, from `everyday.toml`."""
    return tomllib.loads(Path(__file__).with_name("everyday.toml").read_text("utf-8"))


def everyday_truth(captions: Sequence[str], image_of: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of the right photographs of each everyday question with at least `FIRST`.

    A photograph is right for a question when at least two of its captions match; `image_of`
    (N_txt,) has the row of each caption's photograph.
    """
    truth = {}
    for question, pattern in everyday_questions().items():
        match = re.compile(rf"\b({pattern})\b", re.IGNORECASE).search
        hits = image_of[[match(caption) is not None for caption in captions]]
        rows, agreeing = np.unique(hits, return_counts=True)
        if np.count_nonzero(agreeing >= _AGREEING) >= FIRST:
            truth[question] = rows[agreeing >= _AGREEING]
    return truth


def everyday_metrics(scores: np.ndarray, right: Sequence[np.ndarray]) -> dict[str, float]:
    """Metrics of the first five hits of Q everyday questions, from scores (N_img, Q).

    Returns:
        `p_at_5`, the mean share in 0..1; `first_right`, the share of questions whose first hit is
        right; and `questions`, their number. Of equal scores the wrong ones come first. Nothing
        where fewer than `ENOUGH` questions qualify.
    """
    if len(right) < ENOUGH:
        return {}
    hits = np.empty((len(right), FIRST), bool)
    for row, column, rows in zip(hits, scores.T, right, strict=True):
        is_right = np.isin(np.arange(len(column)), rows)
        row[:] = is_right[np.lexsort((is_right, -column))[:FIRST]]
    values = {"p_at_5": float(hits.mean()), "first_right": float(hits[:, 0].mean())}
    return values | {"questions": float(len(right))}


def print_questions(count: int) -> None:
    """Prints how many everyday questions qualify, and whether that is enough."""
    line = f"{count} of {len(everyday_questions())} everyday questions qualify"
    print(line if count >= ENOUGH else f"{line}; P@5 and first right need {ENOUGH}")
