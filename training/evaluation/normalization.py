"""Nearest Neighbor Normalization (NNN): corrects scores of images that fit every query a little.

Neil Chowdhury, Franklin Wang, Sumedh Shenoy, Douwe Kiela, Sarah Schwettmann, Tristan Thrush:
Nearest Neighbor Normalization Improves Multimodal Retrieval, EMNLP 2024. Nothing is trained: from
the scores of an item, a bias of its own is subtracted, alpha times the mean of its k highest scores
with a bank of reference queries. A bias is the same for each query, so that in evidence it would
belong to `base`.

Measured, the bank is captions of the training split for images, and its images for texts. A bias of
images does not change how texts are ranked for one image, nor the other way round, so that one
matrix holds both directions. alpha and k are those with the highest rsum on another split.

A pack of a frozen model (`models/clip.py`) stores a bank of captions, for images alone, if that
raises rsum on `val`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyview.export.pack.reading import describe_file, write_info
from polyview.export.runtime import Runtime
from polyview.models import argument_defaults
from polyview.models.checkpoint import load_tensors, save_tensors
from polyview.training.data.image_files import Lazy
from polyview.training.data.open_split import open_split
from polyview.training.data.split import Split
from polyview.training.evaluation.metrics import bootstrap_difference, retrieval_metrics
from polyview.training.evaluation.questions import half
from polyview.training.evaluation.scoring import image_features, score_matrix, split_views

ALPHAS = (0.25, 0.5, 0.75, 1.0)
NEIGHBOURS = (1, 2, 4, 8, 16, 32, 64, 128)
BANK = 1000  # images with their captions


class Setting(NamedTuple):
    """The strength of the correction, and the number of reference queries that a bias averages."""

    alpha: float
    k: int


def first_images(data: Split, count: int) -> Split:
    """The first so many images of a split, with their captions."""
    count = min(count, data.image_count)
    images = Lazy(count, lambda row: data.images[row])
    return replace(data.first(count), images=images, objects=None, relevant=None, foils=None)


def mean_of_highest(scores: np.ndarray, k: int) -> np.ndarray:
    """The mean (N,) of the k highest of scores (N, M), or of all of fewer."""
    k = min(k, scores.shape[1])
    return np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1)


def normalized(
    scores: np.ndarray, of_images: np.ndarray, of_texts: np.ndarray, setting: Setting
) -> np.ndarray:
    """Scores (N_img, N_txt) without the biases of images and of texts.

    Args:
        scores: (N_img, N_txt).
        of_images: (N_img, M) scores of the images with reference texts.
        of_texts: (N_txt, M) scores of the texts with reference images.
        setting: alpha and k.
    """
    images, texts = (mean_of_highest(bank, setting.k) for bank in (of_images, of_texts))
    return scores - setting.alpha * (images[:, None] + texts)


def measure_normalization(
    runtime: Runtime, methods: Sequence[str], folder: Path | None, split: str, halves: bool
) -> dict[str, dict[str, float]]:
    """Chooses alpha and k of each method on `val` and measures them on a split of a folder.

    With `halves` they are chosen on one half of the split's photographs, and measured on the other.

    Returns:
        For each method `alpha`, `k`, rsum without and with the correction (`before`, `after`), and
        the difference with its 95 % interval (`difference`, `low`, `high`).

    Raises:
        ValueError: there is no folder, or an unknown method.
    """
    if folder is None:
        raise ValueError("--nnn takes its reference captions from the split train; add --data DIR")
    data, bank = open_split(folder, split), first_images(open_split(folder, "train"), BANK)
    chosen_on = half(data, 0) if halves else open_split(folder, "val")
    data = half(data, 1) if halves else data
    parts, rows = (chosen_on, data, bank), dict[str, dict[str, float]]()
    readers = {runtime.image_encoder_of(name): name for name in methods}
    features = {
        file: [image_features(runtime, part, name) for part in parts]
        for file, name in readers.items()
    }
    for name in methods:
        method, read = runtime.methods[name], features[runtime.image_encoder_of(name)]
        *views, (images, texts) = (
            split_views(runtime, name, *part) for part in zip(parts, read, strict=True)
        )
        first, second = (
            (
                score_matrix(method, *part),
                score_matrix(method, part[0], texts),
                score_matrix(method, images, part[1]).T,
            )
            for part in views
        )
        setting = _best_setting(*first, chosen_on.image_of)
        after = normalized(*second, setting)
        values = {"before": second[0], "after": after}
        row = {key: retrieval_metrics(s, data.image_of)["rsum"] for key, s in values.items()}
        interval = bootstrap_difference(after, second[0], data.image_of, alike=data.alike)
        rows[name] = row | setting._asdict()
        rows[name] |= {key: interval[key] for key in ("difference", "low", "high")}
    return rows


def store_normalization(runtime: Runtime, name: str, folder: Path | None) -> dict[str, float]:
    """Stores the correction of images in a pack, if rsum on `val` is certainly higher with it.

    The reference queries are the first captions of up to 1,000 images of `train`. Metrics and
    calibration of the method are removed from the pack, as they were measured without.

    Returns:
        As one method of `measure_normalization`, for the correction of images alone, on `val`,
        where alpha and k were chosen; it is stored if `low` is above 0.

    Raises:
        ValueError: the method cannot store a correction, or has one already; there is no folder.
    """
    if folder is None:
        raise ValueError("--nnn takes its reference captions from the split train; add --data DIR")
    entry = runtime.info.methods[name]
    if "reference_queries" not in argument_defaults(entry.method or name):
        raise ValueError(f"--nnn --write is for packs of CLIP and SigLIP; {name} stores no bias")
    if entry.arguments.get("reference_queries"):
        raise ValueError(f"{name} has reference queries already; build the pack again without them")
    method, bank = runtime.methods[name], first_images(open_split(folder, "train"), BANK)
    firsts = np.searchsorted(bank.image_of, np.arange(bank.image_count))
    texts = runtime.text_views([bank.captions[row] for row in firsts], name)
    data = open_split(folder, "val")
    images, captions = split_views(runtime, name, data, image_features(runtime, data, name))
    before = score_matrix(method, images, captions)
    of_images, of_texts = score_matrix(method, images, texts), np.zeros((before.shape[1], 1))
    setting = _best_setting(before, of_images, of_texts, data.image_of)
    after = normalized(before, of_images, of_texts, setting)
    pair = {"before": before, "after": after}
    row = {key: retrieval_metrics(s, data.image_of)["rsum"] for key, s in pair.items()}
    row |= setting._asdict() | bootstrap_difference(after, before, data.image_of, alike=data.alike)
    if row["low"] > 0:
        head = runtime.info.path(entry.head)
        weights, metadata = load_tensors(head)
        reference = texts.embeddings[:, 0].cpu().half()
        correction = {
            "reference_queries": len(reference),
            "bias_weight": setting.alpha,
            "bias_neighbours": min(setting.k, len(reference)),
        }
        arguments = {**entry.arguments, **correction}
        save_tensors(head, weights | {"reference": reference}, metadata | {"arguments": arguments})
        entry = replace(
            entry, arguments=arguments, metrics=None, calibration=None, calibration_metrics=None
        )
        info = runtime.info
        files = {**info.files, entry.head: describe_file(head)}
        write_info(replace(info, methods={**info.methods, name: entry}, files=files))
    return row


def _best_setting(
    scores: np.ndarray, of_images: np.ndarray, of_texts: np.ndarray, image_of: np.ndarray
) -> Setting:
    """The setting with the highest rsum; see `normalized`."""
    return max(
        map(Setting._make, product(ALPHAS, NEIGHBOURS)),
        key=lambda s: retrieval_metrics(normalized(scores, of_images, of_texts, s), image_of)[
            "rsum"
        ],
    )
