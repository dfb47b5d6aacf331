"""Scores a whole split with a method and turns the matrix into metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from export.runtime import Runtime
from models import Views
from training.faithfulness import SeenObjects, faithfulness, mentioned_shares
from training.metrics import folded_metrics, relevance_metrics, retrieval_metrics
from training.scoring import score_matrix
from training.statistics import view_statistics, winning_views

IMAGES_AT_ONCE = 32
CAPTIONS_AT_ONCE = 256
Tell = Callable[[str], None]  # told what was just done, after every step


@dataclass(frozen=True)
class CaptionedImages:
    """Pictures with captions, and the true relevance where it is known.

    Attributes:
        images: N_img pictures, opened one after the other.
        captions: N_txt texts.
        image_of: (N_txt,) row of each caption's image.
        relevant: for each caption every image that satisfies it, or None where only the caption's
            own image is known to.
        split: the name of the split.
        objects: where the objects of each image are and which each caption mentions, where known.
    """

    images: Sequence[Image.Image]
    captions: list[str]
    image_of: np.ndarray
    relevant: list[np.ndarray] | None
    split: str
    objects: SeenObjects | None = None


def image_features(
    runtime: Runtime, data: CaptionedImages, tell: Tell | None = None, method: str | None = None
) -> torch.Tensor:
    """Features (N_img, N, d) of all pictures, through an ONNX encoder of the pack.

    Args:
        runtime: a loaded pack.
        data: whose pictures.
        tell: told of every batch; without it, a bar is drawn.
        method: whose image encoder reads them; None takes the pack's.
    """
    parts, starts = [], range(0, len(data.images), IMAGES_AT_ONCE)
    for start in tqdm(starts, desc="images", mininterval=1, disable=tell is not None):
        stop = min(start + IMAGES_AT_ONCE, len(data.images))
        parts.append(runtime.image_features([data.images[i] for i in range(start, stop)], method))
        if tell is not None:
            tell("pictures")
    return torch.cat(parts)


@torch.inference_mode()
def split_views(
    runtime: Runtime,
    method: str,
    data: CaptionedImages,
    features: torch.Tensor,
    attention: bool = False,
    tell: Tell | None = None,
) -> tuple[Views, Views]:
    """Views of all images and of all captions as the pack ships: ONNX encoders, torch heads.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        data: what to encode.
        features: `image_features` of the same data, as the method reads it.
        attention: also compute the images' maps (N_img, V, N).
        tell: told of every batch of captions.
    """
    texts = []
    for start in range(0, len(data.captions), CAPTIONS_AT_ONCE):
        batch = data.captions[start : start + CAPTIONS_AT_ONCE]
        texts.append(runtime.text_views(batch, method).embeddings)
        if tell is not None:
            tell(method)
    return runtime.image_views(features, method, attention), Views(torch.cat(texts))


def score_metrics(scores: np.ndarray, data: CaptionedImages, folds: int = 1) -> dict[str, float]:
    """Metrics of a score matrix (N_img, N_txt), averaged over so many folds of the images."""
    if folds > 1:
        return folded_metrics(scores, data.image_of, folds)
    metrics = retrieval_metrics(scores, data.image_of)
    if data.relevant is not None:
        metrics |= relevance_metrics(scores, data.relevant)
    return metrics


def evaluate_method(
    runtime: Runtime, method: str, data: CaptionedImages, features: torch.Tensor, folds: int = 1
) -> dict[str, float]:
    """Metrics of one method as it ships.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        data: what to retrieve from.
        features: `image_features` of the same data.
        folds: average over so many folds (5 for the "1K" numbers of COCO).
    """
    images, texts = split_views(runtime, method, data, features)
    return score_metrics(score_matrix(runtime.methods[method], images, texts), data, folds)


def mentioned_cells(runtime: Runtime, data: CaptionedImages) -> np.ndarray | None:
    """What each caption mentions, on the pack's grid: `mentioned_shares`, or None if not known."""
    if data.objects is None:
        return None
    masks = [_visible(mask, runtime) for mask in data.objects.masks]
    seen = SeenObjects(masks, data.objects.mentions)
    return mentioned_shares(seen, data.image_of, runtime.grid)  # (N_txt, N)


def view_metrics(
    runtime: Runtime,
    method: str,
    data: CaptionedImages,
    views: tuple[Views, Views],
    covered: np.ndarray | None,
) -> dict[str, float]:
    """What a method's views do: `view_statistics`, and `faithfulness` where it can be measured.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        data: what the views are of.
        views: `split_views` of the same data; without attention there is no faithfulness.
        covered: `mentioned_cells` of the same data.
    """
    head, (images, texts) = runtime.methods[method], views
    values = view_statistics(head, images, texts, data.image_of)
    if covered is None or images.attention is None:
        return values
    winners = winning_views(head, images, texts, data.image_of)
    maps = runtime.on_grid(images.attention).flatten(2).cpu().numpy()  # (N_img, V, cells)
    return values | faithfulness(maps, covered, data.image_of, winners)


def _visible(mask: np.ndarray, runtime: Runtime) -> np.ndarray:
    """The part of a mask (H, W) that the encoder is shown."""
    height, width = mask.shape
    x0, y0, x1, y1 = runtime.preprocess.visible_box(width, height)
    rows = slice(round(y0 * height), round(y1 * height))
    return mask[rows, round(x0 * width) : round(x1 * width)]
