"""Nearest Neighbor Normalization (NNN): corrects scores of images that fit every query a little.

Neil Chowdhury, Franklin Wang, Sumedh Shenoy, Douwe Kiela, Sarah Schwettmann, Tristan Thrush:
Nearest Neighbor Normalization Improves Multimodal Retrieval, EMNLP 2024. Nothing is trained. The
bias of an item, alpha times the mean of its k highest scores with a bank of reference queries, is
subtracted from all its scores. It does not depend on the query, so evidence counts it as `base`.

In measurements the bank is the training split: its captions for images, and its images for texts.
The bias of an image does not change the ranking of texts for this image, nor that of a text the
ranking of images, so one corrected matrix serves both directions. alpha and k have the highest rsum
on another split.

A pack of a frozen model (`models/clip.py`) stores a bank of captions, for images alone, if this
raises rsum on `val`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from polyview.export.pack.reading import describe_file, write_info
from polyview.export.runtime import Runtime
from polyview.models import argument_defaults
from polyview.models.checkpoint import load_tensors, save_tensors
from polyview.training.data.image_files import Lazy
from polyview.training.data.open_split import open_split
from polyview.training.data.split import Split
from polyview.training.evaluation import scoring
from polyview.training.evaluation.metrics import bootstrap_difference, retrieval_metrics
from polyview.training.evaluation.report import Rows, print_rows

ALPHAS = (0.25, 0.5, 0.75, 1.0)
NEIGHBOURS = (1, 2, 4, 8, 16, 32, 64, 128)
BANK = 1000  # images in the bank, with their captions
Tables = tuple[np.ndarray, np.ndarray, np.ndarray]  # the array arguments of `normalized`


def normalized(
    scores: np.ndarray, of_images: np.ndarray, of_texts: np.ndarray, alpha: float, k: int
) -> np.ndarray:
    """Subtracts the biases of images and of texts from scores (N_img, N_txt).

    `of_images` (N_img, M) are scores of the images with reference texts, `of_texts` (N_txt, M) of
    the texts with reference images. alpha is the strength of the correction; a bias averages the k
    highest scores, or all M if M is smaller.
    """
    biases = []
    for bank in (of_images, of_texts):
        count = min(k, bank.shape[1])
        biases.append(np.partition(bank, -count, axis=1)[:, -count:].mean(axis=1))
    return scores - alpha * (biases[0][:, None] + biases[1])


def measure_normalization(
    runtime: Runtime, methods: Sequence[str], folder: Path, split: str, halves: bool
) -> dict[str, dict[str, float]]:
    """Chooses alpha and k of each method on `val` and measures them on a split of a folder.

    With `halves` they are chosen on one half of the split's photographs and measured on the other.
    Returns for each method `alpha`, `k`, rsum without and with the correction (`before`, `after`),
    and the `bootstrap_difference`.
    """
    data, bank = open_split(folder, split), _bank(folder)
    tuning_split = scoring.half(data, 0) if halves else open_split(folder, "val")
    parts = (tuning_split, scoring.half(data, 1) if halves else data, bank)
    features = [scoring.features_by_method(runtime, part, methods) for part in parts]
    rows = {}
    for name in methods:
        score = partial(scoring.score_matrix, runtime.methods[name])
        *views, (images, texts) = (
            scoring.split_views(runtime, name, part, encoded[name])
            for part, encoded in zip(parts, features, strict=True)
        )
        tuning, test = (
            (score(*sides), score(sides[0], texts), score(images, sides[1]).T) for sides in views
        )
        rows[name] = _gain(test, parts[1], *_best_setting(tuning, tuning_split))
    return rows


def store_normalization(runtime: Runtime, name: str, folder: Path) -> dict[str, float]:
    """Stores the correction of images in a pack if it raises rsum on `val` significantly.

    The reference queries are the first captions of up to 1,000 images of `train`. The method's
    metrics and calibration are removed from the pack, because they do not include the correction.

    Returns the row of `measure_normalization` for the correction of images alone, on `val`, on
    which alpha and k were also chosen; the correction is stored if `low` is above 0. Raises
    ValueError if the method cannot store a correction, or has one already.
    """
    info, entry = runtime.info, runtime.info.methods[name]
    if "reference_queries" not in argument_defaults(entry.method or name):
        raise ValueError(f"--nnn --write is for packs of CLIP and SigLIP; {name} stores no bias")
    if entry.arguments.get("reference_queries"):
        raise ValueError(f"{name} has reference queries already; build the pack again without them")
    method, bank, data = runtime.methods[name], _bank(folder), open_split(folder, "val")
    firsts = np.searchsorted(bank.image_of, np.arange(bank.image_count))
    texts = runtime.text_views([bank.captions[row] for row in firsts], name)
    features = scoring.image_features(runtime, data, name)
    images, captions = scoring.split_views(runtime, name, data, features)
    scores = scoring.score_matrix(method, images, captions)
    tables = scores, scoring.score_matrix(method, images, texts), np.zeros((scores.shape[1], 1))
    alpha, k = _best_setting(tables, data)
    row = _gain(tables, data, alpha, k)
    if row["low"] > 0:
        head = info.folder / entry.head
        weights, metadata = load_tensors(head)
        reference = texts.embeddings[:, 0].cpu().half()
        count = len(reference)
        bias = {"bias_weight": alpha, "bias_neighbours": min(k, count)}
        arguments = {**entry.arguments, "reference_queries": count, **bias}
        save_tensors(head, weights | {"reference": reference}, metadata | {"arguments": arguments})
        entry = replace(
            entry, arguments=arguments, metrics=None, calibration=None, calibration_metrics=None
        )
        files = {**info.files, entry.head: describe_file(head)}
        write_info(replace(info, methods={**info.methods, name: entry}, files=files))
    return row


def _bank(folder: Path) -> Split:
    """Returns the first images of the training split, with their captions."""
    data = open_split(folder, "train")
    count = min(BANK, data.image_count)
    images = Lazy(count, lambda row: data.images[row])
    return replace(data.first(count), images=images, objects=None, relevant=None, foils=None)


def _best_setting(tables: Tables, data: Split) -> tuple[float, int]:
    """Returns alpha and k with the highest rsum."""

    def rsum(setting: tuple[float, int]) -> float:
        return retrieval_metrics(normalized(*tables, *setting), data.image_of)["rsum"]

    return max(product(ALPHAS, NEIGHBOURS), key=rsum)


def _gain(tables: Tables, data: Split, alpha: float, k: int) -> dict[str, float]:
    before, after = tables[0], normalized(*tables, alpha, k)
    rsums = [retrieval_metrics(scores, data.image_of)["rsum"] for scores in (before, after)]
    row = {"before": rsums[0], "after": rsums[1], "alpha": alpha, "k": k}
    return row | bootstrap_difference(after, before, data.image_of, alike=data.alike)


def print_normalization(rows: Rows) -> None:
    """Prints a row for each method."""
    titles = ["method", "alpha", "k", "rsum without", "with", "difference", "95 % interval"]
    table = []
    for name, row in rows.items():
        rsums = f"{row['before']:.1f}", f"{row['after']:.1f}", f"{row['difference']:+.1f}"
        interval = f"{row['low']:+.1f} to {row['high']:+.1f}"
        table.append([name, f"{row['alpha']:g}", f"{row['k']:g}", *rsums, interval])
    print_rows(titles, table)
