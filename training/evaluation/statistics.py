"""Intervals of rsum differences, and statistics of a method's views."""

import numpy as np
import torch

from polyview.models import Method, Views
from polyview.training.evaluation.metrics import RECALLS, retrieval_ranks


def bootstrap_difference(
    scores_a: np.ndarray,
    scores_b: np.ndarray,
    text_images: np.ndarray,
    samples: int = 1000,
    seed: int = 0,
    alike: np.ndarray | None = None,
) -> dict[str, float]:
    """The rsum difference a - b with its interval, see `difference_of_hits`.

    Scores are (N_img, N_txt), or (S, N_img, N_txt) of S trainings; `text_images` (N_txt,) has the
    row of each text's image; `alike` (N_img,) is equal for images that are drawn together.
    """
    each = [s if s.ndim == 3 else s[None] for s in (scores_a, scores_b)]
    first, second = (np.stack([image_hits(s, text_images, alike) for s in part]) for part in each)
    return difference_of_hits(first, second, samples, seed)


def image_hits(
    scores: np.ndarray, text_images: np.ndarray, alike: np.ndarray | None = None
) -> np.ndarray:
    """The contributions of each image and its captions to rsum; see `bootstrap_difference`.

    Returns:
        (4, N_img) int32: in how many of R@1, R@5 and R@10 the image is a hit; the same summed over
        its captions; the number of its captions; its group.
    """
    images = len(scores)
    i2t, t2i = retrieval_ranks(scores, text_images)
    cutoffs = np.array(RECALLS)
    by_text = (t2i[:, None] < cutoffs).sum(axis=1)  # (N_txt,)
    _, group = np.unique(np.arange(images) if alike is None else alike, return_inverse=True)
    return np.stack(
        [
            (i2t[:, None] < cutoffs).sum(axis=1),
            np.bincount(text_images, by_text, minlength=images),
            np.bincount(text_images, minlength=images),
            group,
        ]
    ).astype(np.int32)


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
        `caption_cosine`, the mean over images of the mean cosine of two different captions, and
        `caption_low` and `caption_high`, which a tenth of the images lie below and above; nothing
        where no image has two captions.
    """
    joined = texts.embeddings.float().flatten(1).cpu()  # (N_txt, W * D)
    means = [
        _mean_pairwise_cosine(joined[torch.from_numpy(rows)][None])
        for image in np.unique(text_images)
        if len(rows := np.flatnonzero(text_images == image)) > 1
    ]
    if not means:
        return {}
    low, high = np.percentile(means, (10, 90))
    return {
        "caption_cosine": float(np.mean(means)),
        "caption_low": float(low),
        "caption_high": float(high),
    }


def _mean_pairwise_cosine(embeddings: torch.Tensor) -> float:
    """Mean cosine over all pairs of different views of the same item; embeddings (B, V, D)."""
    count = embeddings.shape[1]
    unit = torch.nn.functional.normalize(embeddings.float(), dim=2)  # (B, V, D)
    cosines = unit @ unit.transpose(1, 2)  # (B, V, V)
    pairs = cosines.sum(dim=(1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(dim=1)  # (B,)
    return float(pairs.mean()) / (count * (count - 1))
