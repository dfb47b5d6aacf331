"""Scores a whole split with a method and turns the matrix into metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from export.runtime import Runtime
from models import Views
from training.metrics import folded_metrics, relevance_metrics, retrieval_metrics
from training.scoring import score_matrix


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
    """

    images: Sequence[Image.Image]
    captions: list[str]
    image_of: np.ndarray
    relevant: list[np.ndarray] | None
    split: str


def image_features(runtime: Runtime, data: CaptionedImages) -> torch.Tensor:
    """Features (N_img, N, d) of all pictures, through the pack's ONNX encoder."""
    parts = []
    for start in tqdm(range(0, len(data.images), 32), desc="images", mininterval=1):
        stop = min(start + 32, len(data.images))
        parts.append(runtime.image_features([data.images[i] for i in range(start, stop)]))
    return torch.cat(parts)


@torch.inference_mode()
def evaluate_method(
    runtime: Runtime, method: str, data: CaptionedImages, features: torch.Tensor, folds: int = 1
) -> dict[str, float]:
    """Metrics of one method as it ships: ONNX encoders, torch heads.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        data: what to retrieve from.
        features: `image_features` of the same data.
        folds: average over so many folds (5 for the "1K" numbers of COCO).
    """
    images = [runtime.image_views(part, method).embeddings for part in features.split(256)]
    texts = [
        runtime.text_views(data.captions[start : start + 256], method).embeddings
        for start in range(0, len(data.captions), 256)
    ]
    scores = score_matrix(
        runtime.methods[method], Views(torch.cat(images)), Views(torch.cat(texts))
    )
    if folds > 1:
        return folded_metrics(scores, data.image_of, folds)
    metrics = retrieval_metrics(scores, data.image_of)
    if data.relevant is not None:
        metrics |= relevance_metrics(scores, data.relevant)
    return metrics
