"""The full score matrix of a split."""

from __future__ import annotations

import numpy as np
import torch

from models import Method, Views


@torch.inference_mode()
def score_matrix(method: Method, images: Views, texts: Views, chunk: int = 512) -> np.ndarray:
    """All scores, a block of images at a time.

    Args:
        method: gives the score.
        images: views of N_img images.
        texts: views of N_txt texts.
        chunk: images in a block.

    Returns:
        (N_img, N_txt) float32.
    """
    blocks = [
        method.score(images[start : start + chunk], texts).float().cpu()
        for start in range(0, len(images), chunk)
    ]
    return torch.cat(blocks).numpy()
