"""Retrieval metrics over a full score matrix, intervals, and statistics of a method's views.

Ties count against the method: an item that ties with a wrong one ranks behind it, so that constant
scores get no credit.
"""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from polyview.models import Method, Views

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


def bootstrap_difference(
    scores_a: np.ndarray,
    scores_b: np.ndarray,
    text_images: np.ndarray,
    alike: np.ndarray | None = None,
) -> dict[str, float]:
    """The rsum difference a - b with its interval, see `difference_of_hits`.

    Scores are (N_img, N_txt); `text_images` (N_txt,) has the row of each text's image; `alike`
    (N_img,) is equal for images that are drawn together.
    """
    first, second = (image_hits(s, text_images, alike)[None] for s in (scores_a, scores_b))
    return difference_of_hits(first, second)


def image_hits(
    scores: np.ndarray, text_images: np.ndarray, alike: np.ndarray | None = None
) -> np.ndarray:
    """The contributions of each image and its captions to rsum; see `bootstrap_difference`.

    Returns:
        (4, N_img) int32: in how many of R@1, R@5 and R@10 the image is a hit; the same summed over
        its captions; the number of its captions; its group.
    """
    images, ranks = len(scores), retrieval_ranks(scores, text_images)
    i2t, t2i = ((each[:, None] < np.array(RECALLS)).sum(axis=1) for each in ranks)
    _, group = np.unique(np.arange(images) if alike is None else alike, return_inverse=True)
    of_captions = (np.bincount(text_images, values, images) for values in (t2i, None))
    return np.stack([i2t, *of_captions, group]).astype(np.int32)


def difference_of_hits(
    first: np.ndarray, second: np.ndarray, samples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Hierarchical bootstrap of an rsum difference, over seeds and images.

    Images are resampled with replacement, each with all its captions, the same ones for both
    methods (paired; Efron and Tibshirani, 1993). Three seeds are too few to resample: their
    bootstrap would show two thirds of the variance. So the mean over S seeds is drawn from
    Student's t distribution with S - 1 degrees of freedom, as for the difference of two means with
    unequal variances (Behrens and Fisher). With a single seed only the images vary. The gallery is
    not resampled, so ranks do not depend on the draw.

    Args:
        first: (S, 4, N_img) `image_hits` of the S trainings of one method.
        second: (T, 4, N_img) of the other, on the same data.
        samples: number of draws.
        seed: of the draws.

    Returns:
        `difference` in rsum on the data as it is, `low` and `high` of its 95 % percentile interval,
        and `share_above`, the share of draws in which the first is better, in 0..1.
    """
    captions, group = first[0, 2:]
    gains = first[:, :2].mean(axis=0) - second[:, :2].mean(axis=0)  # (2, N_img)
    i2t, t2i, sizes, texts = (
        np.bincount(group, values) for values in (*gains, np.ones(len(group)), captions)
    )  # (G,) each
    random = np.random.default_rng(seed)
    uniform = np.full(len(sizes), 1 / len(sizes))
    draws = random.multinomial(len(sizes), uniform, size=samples)  # (samples, G)
    drawn = 100 * (draws @ i2t / (draws @ sizes) + draws @ t2i / (draws @ texts))  # (samples,)
    for sign, hits in ((1, first), (-1, second)):
        if len(hits) > 1:
            sums = 100 * (hits[:, 0].mean(axis=1) + hits[:, 1].sum(axis=1) / captions.sum())  # (S,)
            error = sums.std(ddof=1) / np.sqrt(len(sums))
            drawn += sign * error * random.standard_t(len(sums) - 1, size=samples)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {
        "difference": 100 * float(i2t.sum() / sizes.sum() + t2i.sum() / texts.sum()),
        "low": float(low),
        "high": float(high),
        "share_above": float(np.mean(drawn > 0)),
    }


@torch.inference_mode()
def winning_views(
    method: Method, images: Views, texts: Views, positives: np.ndarray, chunk: int = 16
) -> np.ndarray:
    """The view, 0..V-1, of its own image that scores highest for each text; the first of ties.

    `positives` (N_txt,) are the rows of the texts' own images.
    """
    winners = np.empty(len(positives), np.int64)
    for start in range(0, len(images), chunk):
        rows = np.flatnonzero((positives >= start) & (positives < start + chunk))
        if not len(rows):
            continue
        part = texts[torch.from_numpy(rows)]
        scores = method.view_scores(images[start : start + chunk], part)  # (V, chunk, R)
        own = scores[:, positives[rows] - start, np.arange(len(rows))]  # (V, R)
        winners[rows] = own.argmax(dim=0).cpu().numpy()
    return winners


def view_statistics(
    method: Method, images: Views, texts: Views, positives: np.ndarray
) -> dict[str, float]:
    """The shares of wins of the views, and their similarity; see `winning_views`.

    Returns:
        `wins_1` to `wins_V`, the share of texts in percent for which that view of their own image
        scores highest; `wins_entropy` of these shares in bits (0: one view wins all; log2 V: all
        win equally often); and, where V > 1, `view_cosine`, the mean over images of the mean cosine
        between two different views of the same image.
    """
    count = images.embeddings.shape[1]
    winners = winning_views(method, images, texts, positives)
    shares = np.bincount(winners, minlength=count) / len(winners)  # (V,)
    won = shares[shares > 0]
    values = {f"wins_{view + 1}": 100 * float(share) for view, share in enumerate(shares)}
    values["wins_entropy"] = float((won * np.log2(1 / won)).sum())
    if count > 1:
        values["view_cosine"] = _mean_pairwise_cosine(images.embeddings)
    return values


def caption_cosines(texts: Views, text_images: np.ndarray) -> dict[str, float]:
    """The cosine of captions of the same image, as in MV-VSE's Fig. 2, by the model's embeddings.

    `text_images` (N_txt,) has the row of each text's image; several views of a text are joined.

    Returns:
        `caption_cosine`, the mean over images of the mean cosine of two different captions; nothing
        where no image has two captions.
    """
    joined = texts.embeddings.float().flatten(1).cpu()  # (N_txt, W * D)
    means = [
        _mean_pairwise_cosine(joined[torch.from_numpy(rows)][None])
        for image in np.unique(text_images)
        if len(rows := np.flatnonzero(text_images == image)) > 1
    ]
    return {"caption_cosine": float(np.mean(means))} if means else {}


def _mean_pairwise_cosine(embeddings: torch.Tensor) -> float:
    """Mean cosine over all pairs of different views of the same item; embeddings (B, V, D)."""
    count = embeddings.shape[1]
    unit = torch.nn.functional.normalize(embeddings.float(), dim=2)  # (B, V, D)
    cosines = unit @ unit.transpose(1, 2)  # (B, V, V)
    pairs = cosines.sum(dim=(1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(dim=1)  # (B,)
    return float(pairs.mean()) / (count * (count - 1))
