"""Retrieval metrics over a full score matrix, and their bootstrap intervals.

Ties count against the method: a relevant item ranks behind irrelevant items with the same score.
"""

from collections.abc import Sequence

import numpy as np

RECALLS = (1, 5, 10)  # the ranks k of R@k
DRAWS = 1000  # number of bootstrap samples
SEED = 0  # bootstrap seed


def best_ranks(scores: np.ndarray, positives: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rank (Q,), counted from 0, of the best relevant item of each of Q queries.

    Scores (Q, G) are those of G gallery items. `positives` holds the indices of the relevant items
    of each query, which needs at least one. Raises ValueError if a score is NaN.
    """
    if np.isnan(scores).any():
        raise ValueError("a score is NaN: the weights are damaged, or the training diverged")
    ranks = np.empty(len(scores), np.int64)
    for q, (row, relevant) in enumerate(zip(scores, positives, strict=True)):
        best = row[relevant].max()  # the rank counts irrelevant items with this score or more
        ranks[q] = np.count_nonzero(row >= best) - np.count_nonzero(row[relevant] >= best)
    return ranks


def retrieval_ranks(scores: np.ndarray, text_images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranks, counted from 0, of each image's best caption and of each text's image.

    Scores are (N_img, N_txt); text t describes image `text_images[t]`. The ranks are (N_img,) and
    (N_txt,). Raises ValueError if an image has no caption.
    """
    captions = [np.flatnonzero(text_images == image) for image in range(len(scores))]
    for image, texts in enumerate(captions):
        if not len(texts):
            raise ValueError(f"image {image} has no caption; leave it out of the evaluation")
    return best_ranks(scores, captions), best_ranks(scores.T, list(text_images[:, None]))


def retrieval_metrics(scores: np.ndarray, text_images: np.ndarray) -> dict[str, float]:
    """Measures retrieval by scores (N_img, N_txt); text t describes image `text_images[t]`.

    The prefix of a metric is `i2t` (image to text, by the image's best caption) or `t2i`. R@1, R@5
    and R@10 are in percent (`_r1`, `_r5`, `_r10`). The median and mean rank count from 1 (`_medr`,
    `_meanr`). `_nmr` is the median divided by the number of ranked items, in 0..1 (PVSE, Song and
    Soleymani, CVPR 2019, section 5). `rsum` is the sum of the six recalls (0 to 600).
    """
    table, all_recalls = dict[str, float](), list[float]()
    tasks = zip(("i2t", "t2i"), retrieval_ranks(scores, text_images), scores.T.shape, strict=True)
    for task, ranks, gallery_size in tasks:  # an image ranks N_txt texts, a text N_img images
        median = float(np.floor(np.median(ranks)) + 1)
        recalls = {f"{task}_r{k}": 100.0 * float(np.mean(ranks < k)) for k in RECALLS}
        rank_values = {f"{task}_medr": median, f"{task}_meanr": float(ranks.mean() + 1)}
        table |= recalls | rank_values | {f"{task}_nmr": median / gallery_size}
        all_recalls += recalls.values()
    return {**table, "rsum": float(np.sum(all_recalls))}


def folded_metrics(scores: np.ndarray, text_images: np.ndarray, folds: int) -> dict[str, float]:
    """Averages `retrieval_metrics` over equal, consecutive folds of the images."""
    check_folds(len(scores), folds)
    fold_size, tables = len(scores) // folds, []
    for start in range(0, len(scores), fold_size):
        in_fold = (text_images >= start) & (text_images < start + fold_size)
        fold_scores = scores[start : start + fold_size, in_fold]
        tables.append(retrieval_metrics(fold_scores, text_images[in_fold] - start))
    return {key: float(np.mean([table[key] for table in tables])) for key in tables[0]}


def check_folds(image_count: int, folds: int) -> None:
    """Raises ValueError if the folds do not divide the images evenly."""
    if folds < 1 or image_count % folds:
        raise ValueError(f"{folds} folds do not divide {image_count} images evenly; change --folds")


def relevance_metrics(scores: np.ndarray, relevant: Sequence[np.ndarray]) -> dict[str, float]:
    """Returns R-precision and mAP@R over *all* relevant items (Chun et al., ECCV 2022).

    Let R be the number of relevant items of a query; queries without any are left out. R-precision
    is the share of relevant items among the first R. AP@R is the sum of the precisions at the ranks
    up to R that hold a relevant item, divided by R. Scores are (N_img, N_txt); for each
    text, `relevant` has the rows of all images that satisfy it. Returns, in percent,
    `{i2t,t2i}_{rprecision,map_at_r}`.
    """
    matches = np.zeros(scores.shape, bool)
    for text, images in enumerate(relevant):
        matches[images, text] = True
    out: dict[str, float] = {}
    for task, table, truth in (("i2t", scores, matches), ("t2i", scores.T, matches.T)):
        queries = zip(table, truth, strict=True)
        values = np.array([_precision_at_r(row, labels) for row, labels in queries if labels.any()])
        out[f"{task}_rprecision"], out[f"{task}_map_at_r"] = (100.0 * values.mean(axis=0)).tolist()
    return out


def _precision_at_r(scores: np.ndarray, is_relevant: np.ndarray) -> tuple[float, float]:
    """Returns R-precision and AP@R of one query over G items with scores (G,) and truth (G,)."""
    count = int(is_relevant.sum())  # R
    threshold = np.partition(scores, -count)[-count]
    candidates = np.flatnonzero(scores >= threshold)  # the R best items, and ties with the last
    order = np.lexsort((is_relevant[candidates], -scores[candidates]))  # irrelevant first in ties
    hits = is_relevant[candidates[order[:count]]]
    precision = np.cumsum(hits) / np.arange(1, count + 1)
    return float(hits.mean()), float((precision * hits).sum() / count)


def mean_interval(
    key: str, values: np.ndarray, groups: np.ndarray | None = None
) -> dict[str, float]:
    """Returns the 95 % bootstrap interval of the mean of values (N,): `KEY_low`, `KEY_high`.

    Values with equal `groups` (N,) are resampled together; None resamples each value separately.
    """
    groups = np.arange(len(values)) if groups is None else groups
    sums, sizes = _bootstrap_sums(np.random.default_rng(SEED), groups, values, np.ones(len(values)))
    low, high = np.percentile(sums / sizes, (2.5, 97.5)).tolist()
    return {f"{key}_low": low, f"{key}_high": high}


def _bootstrap_sums(
    random: np.random.Generator, groups: np.ndarray, *columns: np.ndarray
) -> list[np.ndarray]:
    """Returns sums (DRAWS,) of columns (N,) over resampled groups (Efron and Tibshirani, 1993)."""
    _, index = np.unique(groups, return_inverse=True)
    count = int(index.max()) + 1
    copies = random.multinomial(count, np.full(count, 1 / count), size=DRAWS)  # (DRAWS, groups)
    return [copies @ np.bincount(index, column) for column in columns]


def image_hits(
    scores: np.ndarray, text_images: np.ndarray, alike: np.ndarray | None = None
) -> np.ndarray:
    """Returns the contributions of each image and its captions to rsum, (4, N_img) int32.

    Row 0 is the number of recalls (R@1, R@5, R@10) in which the image is a hit. Row 1 is the same
    number, summed over the image's captions. Row 2 is the number of the captions. Row 3 is the
    image's group: images with equal `alike` (N_img,), or the image alone if `alike` is None.
    """
    image_count, ranks = len(scores), retrieval_ranks(scores, text_images)
    i2t, t2i = ((rank[:, None] < np.array(RECALLS)).sum(axis=1) for rank in ranks)
    _, group = np.unique(np.arange(image_count) if alike is None else alike, return_inverse=True)
    caption_sums = (np.bincount(text_images, values, image_count) for values in (t2i, None))
    return np.stack([i2t, *caption_sums, group]).astype(np.int32)


def difference_of_hits(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Estimates an rsum difference by a hierarchical bootstrap over seeds and images.

    Images are resampled with replacement, together with all their captions. Both methods get the
    same images (paired). Three seeds are too few to resample: their bootstrap would show two thirds
    of the variance. Instead, the error of the mean over S seeds is drawn from Student's t
    distribution with S - 1 degrees of freedom, as for the difference of two means with unequal
    variances (Behrens and Fisher). With a single seed, only the images vary. The gallery is not
    resampled, so ranks do not depend on the draw.

    `first` (S, 4, N_img) holds the `image_hits` of S runs of one method, and `second` (T, 4, N_img)
    those of T runs of the other method on the same data. Returns the `difference` in rsum on all
    images, the bounds `low` and `high` of its 95 % percentile interval, and `share_above`, the
    share of draws in 0..1 in which the first method is better.
    """
    counts, group = first[0, 2:]  # (N_img,) each; the number of an image's captions, and its group
    gains = first[:, :2].mean(axis=0) - second[:, :2].mean(axis=0)  # (2, N_img)
    random = np.random.default_rng(SEED)
    columns = (*gains, np.ones(len(group)), counts)
    i2t, t2i, images, texts = _bootstrap_sums(random, group, *columns)  # (DRAWS,) each
    samples = 100 * (i2t / images + t2i / texts)
    for sign, hits in ((1, first), (-1, second)):
        if len(hits) > 1:
            rsums = 100 * (hits[:, 0].mean(axis=1) + hits[:, 1].sum(axis=1) / counts.sum())  # (S,)
            error = rsums.std(ddof=1) / np.sqrt(len(rsums))  # standard error of the mean
            samples += sign * error * random.standard_t(len(rsums) - 1, size=DRAWS)
    low, high = np.percentile(samples, (2.5, 97.5)).tolist()
    difference = 100 * float(gains[0].mean() + gains[1].sum() / counts.sum())
    share = float(np.mean(samples > 0))
    return {"difference": difference, "low": low, "high": high, "share_above": share}
