"""What a difference in rsum is worth, and what the views of a method do."""

import numpy as np
import torch

from models import Method, Views
from training.evaluation.metrics import RECALLS, recall_sum, retrieval_ranks


def bootstrap_difference(
    scores_a: np.ndarray,
    scores_b: np.ndarray,
    text_images: np.ndarray,
    samples: int = 1000,
    seed: int = 0,
    alike: np.ndarray | None = None,
) -> dict[str, float]:
    """Paired bootstrap of the rsum difference a - b over images (Efron and Tibshirani, 1993).

    Every sample draws as many images as there are, with replacement, each with all its captions,
    and takes the means of both methods' hits over the same draw. What is retrieved from stays
    whole, so that ranks do not depend on the draw.

    Args:
        scores_a: (N_img, N_txt) scores of one method, or (S, N_img, N_txt) of its S trainings,
            whose hits are averaged.
        scores_b: likewise of the other, on the same data.
        text_images: (N_txt,) row of the image that each text describes.
        samples: number of draws.
        seed: of the draws.
        alike: (N_img,) int64, equal for images that are drawn together, see `Split`; None draws
            one by one.

    Returns:
        `difference` in rsum on the data as it is, `low` and `high` of its 95 % percentile interval,
        and `share_above`, the share of samples in which a is better, in 0..1.
    """
    images = scores_a.shape[-2]
    i2t_a, t2i_a = _hits(scores_a, text_images)
    i2t_b, t2i_b = _hits(scores_b, text_images)
    captions = np.bincount(text_images, minlength=images)  # (N_img,)
    gain_i2t = i2t_a - i2t_b  # (N_img,)
    gain_t2i = np.bincount(text_images, t2i_a - t2i_b, minlength=images)  # (N_img,)
    _, group = np.unique(np.arange(images) if alike is None else alike, return_inverse=True)
    i2t, t2i, sizes, texts = (
        np.bincount(group, values) for values in (gain_i2t, gain_t2i, np.ones(images), captions)
    )  # (G,) each
    uniform = np.full(len(sizes), 1 / len(sizes))
    draws = np.random.default_rng(seed).multinomial(len(sizes), uniform, size=samples)  # (S, G)
    drawn = 100 * (draws @ i2t / (draws @ sizes) + draws @ t2i / (draws @ texts))  # (S,)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {
        "difference": 100 * float(gain_i2t.mean() + gain_t2i.sum() / captions.sum()),
        "low": float(low),
        "high": float(high),
        "share_above": float(np.mean(drawn > 0)),
    }


def _hits(scores: np.ndarray, text_images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the three recalls, how many each image (N_img,) and each text (N_txt,) counts for."""
    if scores.ndim == 3:
        each = [_hits(one, text_images) for one in scores]
        return np.mean([i2t for i2t, _ in each], axis=0), np.mean([t2i for _, t2i in each], axis=0)
    i2t, t2i = retrieval_ranks(scores, text_images)
    cutoffs = np.array(RECALLS)
    return (i2t[:, None] < cutoffs).sum(axis=1), (t2i[:, None] < cutoffs).sum(axis=1)


@torch.inference_mode()
def winning_views(
    method: Method, images: Views, texts: Views, positives: np.ndarray, chunk: int = 16
) -> np.ndarray:
    """Which view of its own image scores highest for each text; the first of equals.

    Args:
        method: gives `view_scores`.
        images: views of N_img images.
        texts: views of N_txt texts.
        positives: (N_txt,) row of each text's own image.
        chunk: images scored at a time.

    Returns:
        (N_txt,) int64 in 0..V-1.
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
    """How the views share the work, and how alike they are.

    Args:
        method: gives `view_scores`.
        images: views of N_img images.
        texts: views of N_txt texts.
        positives: (N_txt,) row of each text's own image.

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
    """How alike a model finds captions of the same image: MV-VSE's Fig. 2, by its own vectors.

    Args:
        texts: views of N_txt texts; several of one text count as one vector, joined.
        text_images: (N_txt,) row of the image that each text describes.

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


def choice_of_views(view_scores: np.ndarray, text_images: np.ndarray) -> dict[str, float]:
    """What another use of the same views would reach, in rsum: how much room views leave.

    Args:
        view_scores: (V, N_img, N_txt) scores of every image view; or of V models, each read as if
            it were a view.
        text_images: (N_txt,) row of the image that each text describes.

    Returns:
        `best_view` for the single view that is best alone; `mean_of_views` and `max_of_views` for
        these scores; and `oracle_view`, where every query is ranked by the view that ranks what is
        right highest: no choice of one view for each query is better. Luck is in it: even views
        that differ by noise alone have an oracle above the best of them, so compare it with that
        of as many models.
    """
    ranks = [retrieval_ranks(scores, text_images) for scores in view_scores]
    best_i2t, best_t2i = (np.min(way, axis=0) for way in zip(*ranks, strict=True))
    return {
        "best_view": max(recall_sum(*each) for each in ranks),
        "mean_of_views": recall_sum(*retrieval_ranks(view_scores.mean(axis=0), text_images)),
        "max_of_views": recall_sum(*retrieval_ranks(view_scores.max(axis=0), text_images)),
        "oracle_view": recall_sum(best_i2t, best_t2i),
    }


def _mean_pairwise_cosine(embeddings: torch.Tensor) -> float:
    """Mean cosine over all pairs of different views of the same item; embeddings (B, V, D)."""
    count = embeddings.shape[1]
    unit = torch.nn.functional.normalize(embeddings.float(), dim=2)  # (B, V, D)
    cosines = unit @ unit.transpose(1, 2)  # (B, V, V)
    pairs = cosines.sum(dim=(1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(dim=1)  # (B,)
    return float(pairs.mean()) / (count * (count - 1))
