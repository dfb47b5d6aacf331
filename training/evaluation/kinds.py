"""Retrieval by kind of caption, such as clips' captions of motion or of order.

Where captions are of kinds (`Split.kinds`), each kind is measured alone: its captions against all
images. `above_alike` is the share of captions that score their own image above all images that are
*alike* it (`Split.alike`), such as a clip in which the same happens in the other order. A method
that cannot tell them apart gets half.
"""

import numpy as np

from training.data.split import Split
from training.evaluation.metrics import mean_interval, retrieval_metrics
from training.evaluation.report import COLUMNS, format_value, print_rows
from training.evaluation.statistics import bootstrap_difference, image_hits

_KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "t2i_medr", "t2i_nmr")


def kind_metrics(scores: np.ndarray, data: Split) -> dict[str, float]:
    """Metrics of each kind of captions.

    Args:
        scores: (N_img, N_txt).
        data: whose captions are of kinds; without kinds nothing is measured.

    Returns:
        For each kind, its name before them: `retrieval_metrics`; `rsum_low` and `rsum_high`, its
        95 % interval; and, where images are alike others, `above_alike` in percent with `_low` and
        `_high`. Intervals are by bootstrap over images, alike ones together. All images have the
        same number of captions of a kind.
    """
    metrics: dict[str, float] = {}
    for kind in dict.fromkeys(data.kinds):
        columns, image_of = _of_kind(data, kind)
        part = scores[:, columns]
        values = retrieval_metrics(part, image_of)
        images, texts, captions, _ = image_hits(part, image_of)  # (N_img,) each
        low, high = mean_interval(100 * (images + texts / captions), data.alike)
        values |= {"rsum_low": low, "rsum_high": high}
        if data.alike is not None:
            above = _above(part, image_of, data.alike)
            shares = np.bincount(image_of, above, minlength=len(scores)) / captions
            values["above_alike"] = 100 * float(shares.mean())
            low, high = mean_interval(100 * shares, data.alike)
            values |= {"above_alike_low": low, "above_alike_high": high}
        metrics |= {f"{kind}_{name}": value for name, value in values.items()}
    return metrics


def kind_differences(a: np.ndarray, b: np.ndarray, data: Split) -> dict[str, dict[str, float]]:
    """For each kind the rsum difference a - b, as `bootstrap_difference` gives it."""
    parts = {kind: _of_kind(data, kind) for kind in dict.fromkeys(data.kinds)}
    return {
        kind: bootstrap_difference(a[:, columns], b[:, columns], image_of, alike=data.alike)
        for kind, (columns, image_of) in parts.items()
    }


def _of_kind(data: Split, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The captions of a kind, and the image of each."""
    columns = np.flatnonzero(np.array(data.kinds) == kind)
    return columns, data.image_of[columns]


def _above(scores: np.ndarray, image_of: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Whether each caption scores its own image above all others alike it; equals count half."""
    same = alike[:, None] == alike[image_of][None]  # (N_img, N_txt)
    same[image_of, np.arange(len(image_of))] = False
    rivals = np.where(same, scores, -np.inf).max(axis=0)
    own = scores[image_of, np.arange(len(image_of))]
    return (own > rivals) + 0.5 * (own == rivals)


def print_kinds(rows: dict[str, dict[str, float]], kinds: list[str]) -> None:
    """Prints one line a kind and method; nothing where there are no kinds."""
    if not kinds:
        return
    keys = ["rsum"]
    if all(f"{kind}_above_alike" in row for kind in kinds for row in rows.values()):
        keys.append("above_alike")
    titles = [*(COLUMNS[key] for key in _KEYS), "rsum", "above its twin, %"]
    table = [
        [
            kind,
            name,
            *(format_value(key, row[f"{kind}_{key}"]) for key in _KEYS),
            *(_with_interval(row, f"{kind}_{key}") for key in keys),
        ]
        for kind in kinds
        for name, row in rows.items()
    ]
    print()
    print_rows(["captions", "method", *titles[: len(_KEYS) + len(keys)]], table, words=2)
    print()


def _with_interval(row: dict[str, float], name: str) -> str:
    return f"{row[name]:.1f} [{row[f'{name}_low']:.1f}, {row[f'{name}_high']:.1f}]"
