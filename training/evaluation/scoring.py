"""The full score matrix of a split, of a method or of several together."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from models import Method, Views
from training.settings import unknown_name


@torch.inference_mode()
def score_matrix(method: Method, images: Views, texts: Views, chunk: int = 512) -> np.ndarray:
    """All scores, computed a block of images at a time.

    Args:
        method: gives the score.
        images: views of N_img images.
        texts: views of N_txt texts.
        chunk: images in a block.

    Returns:
        (N_img, N_txt) float32.
    """
    starts = range(0, len(images), chunk)
    blocks = [method.score(images[i : i + chunk], texts).float().cpu() for i in starts]
    return torch.cat(blocks).numpy()


def ensemble_scores(scores: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The average of several methods' scores, as the starred rows of the papers' tables.

    Args:
        scores: each method's (N_img, N_txt).
        name: a method, or several joined by `+`.

    Returns:
        (N_img, N_txt).

    >>> ensemble_scores({"a": np.array([[1.0, 0.0]]), "b": np.array([[0.5, 0.5]])}, "a+b").tolist()
    [[0.75, 0.25]]
    """
    return np.mean([scores[part] for part in name.split("+")], axis=0)


def ensemble_parts(names: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The methods or runs (`what`) that names and ensembles (`a+b`) consist of, each once.

    Raises:
        ValueError: a name is not known, or an ensemble repeats one.
    """
    known, parts = list(known), dict[str, None]()
    for name in names:
        each = name.split("+")
        if len(set(each)) < len(each):
            raise ValueError(f'the ensemble "{name}" names a {what} twice; name each once')
        parts |= dict.fromkeys(each)
    for part in parts:
        if part not in known:
            raise ValueError(unknown_name(what, part, known))
    return list(parts)


def compared_pairs(texts: Iterable[str], known: Iterable[str], what: str) -> list[tuple[str, str]]:
    """The pairs of names in texts such as "a,b"; see `ensemble_parts` for errors."""
    pairs = []
    for text in texts:
        first, _, second = text.partition(",")
        if not second or "," in second:
            raise ValueError(f'--compare takes two names as in "a,b", not "{text}"')
        ensemble_parts((first, second), known, what)
        pairs.append((first, second))
    return pairs
