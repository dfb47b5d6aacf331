"""Retrieval by kind of caption: clips by what is in motion, or in which order.

Where captions are of kinds (`Split.kinds`), each kind is measured alone: its captions against all
images. An image that is *alike* another (`Split.alike`), as a clip in which the same happens in the
other order, is what a caption must be told from: `above_alike` is the share of captions that score
their own image above all that are alike it, of which a method that cannot tell them gets half.
"""

import numpy as np

from training.data.split import Split
from training.evaluation.metrics import RECALLS, retrieval_metrics, retrieval_ranks
from training.evaluation.report import COLUMNS

_DRAWS = 1000
_SEED = 0  # of the draws
_KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "t2i_medr", "t2i_nmr")


def kind_metrics(scores: np.ndarray, data: Split) -> dict[str, float]:
    """What a score matrix reaches on each kind of captions.

    Args:
        scores: (N_img, N_txt).
        data: whose captions are of kinds; nothing is measured where they are of none.

    Returns:
        For each kind, its name before them: `retrieval_metrics`; `rsum_low` and `rsum_high`, its
        95 % interval; and, where clips are alike others, `above_alike` in percent with `_low` and
        `_high` likewise. Intervals are by bootstrap over images, those that are alike together.
    """
    found: dict[str, float] = {}
    for kind in dict.fromkeys(data.kinds):
        columns, image_of = _of_kind(data, kind)
        part = scores[:, columns]
        values = retrieval_metrics(part, image_of)
        values["rsum_low"], values["rsum_high"] = _interval(_gains(part, image_of), data)
        if data.alike is not None:
            above = _above(part, image_of, data.alike)
            captions = np.bincount(image_of, minlength=len(scores))
            shares = np.bincount(image_of, above, minlength=len(scores)) / captions
            values["above_alike"] = 100 * float(shares.mean())
            low, high = _interval(100 * shares, data)
            values |= {"above_alike_low": low, "above_alike_high": high}
        found |= {f"{kind}_{name}": value for name, value in values.items()}
    return found


def kind_differences(a: np.ndarray, b: np.ndarray, data: Split) -> dict[str, dict[str, float]]:
    """For each kind what `bootstrap_difference` says, images that are alike drawn together."""
    found = {}
    for kind in dict.fromkeys(data.kinds):
        columns, image_of = _of_kind(data, kind)
        gains = _gains(a[:, columns], image_of) - _gains(b[:, columns], image_of)
        drawn = _drawn(gains, data)
        low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
        above = float(np.mean(drawn > 0))
        found[kind] = {"difference": gains.mean(), "low": low, "high": high, "share_above": above}
    return found


def _of_kind(data: Split, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The captions of a kind, and the image of each."""
    columns = np.flatnonzero(np.array(data.kinds) == kind)
    return columns, data.image_of[columns]


def _gains(scores: np.ndarray, image_of: np.ndarray) -> np.ndarray:
    """What each image (N_img,) has of the rsum, which is their mean.

    The captions of an image count alike, whose number is that of every other.
    """
    i2t, t2i = retrieval_ranks(scores, image_of)
    hits = (i2t[:, None] < np.array(RECALLS)).sum(axis=1).astype(float)
    found = (t2i[:, None] < np.array(RECALLS)).sum(axis=1)
    per_image = len(scores) / len(image_of)
    return 100 * (hits + np.bincount(image_of, found, minlength=len(scores)) * per_image)


def _above(scores: np.ndarray, image_of: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Whether each caption scores its own image above all others alike it; equals count half."""
    same = alike[:, None] == alike[image_of][None]  # (N_img, N_txt)
    same[image_of, np.arange(len(image_of))] = False
    rivals = np.where(same, scores, -np.inf).max(axis=0)
    own = scores[image_of, np.arange(len(image_of))]
    return (own > rivals) + 0.5 * (own == rivals)


def _interval(values: np.ndarray, data: Split) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of what images (N_img,) have."""
    low, high = np.percentile(_drawn(values, data), (2.5, 97.5))
    return float(low), float(high)


def _drawn(values: np.ndarray, data: Split) -> np.ndarray:
    """Means of values of images (N_img,) over draws of images, those that are alike together."""
    groups = np.arange(len(values)) if data.alike is None else data.alike
    _, groups = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(groups, values), np.bincount(groups)
    uniform = np.full(len(sums), 1 / len(sums))
    draws = np.random.default_rng(_SEED).multinomial(len(sums), uniform, size=_DRAWS)
    drawn: np.ndarray = draws @ sums / (draws @ sizes)
    return drawn


def print_kinds(rows: dict[str, dict[str, float]], kinds: list[str]) -> None:
    """Prints one line a kind and method; nothing where there are no kinds."""
    if not kinds:
        return
    twins = all(f"{kind}_above_alike" in row for kind in kinds for row in rows.values())
    titles = [*(COLUMNS[key] for key in _KEYS), "rsum", *(["above its twin, %"] if twins else [])]
    print("\n| captions | method | " + " | ".join(titles) + " |")
    print("|---|---|" + "---:|" * len(titles))
    for kind in kinds:
        for name, row in rows.items():
            cells = [f"{row[f'{kind}_{key}']:.{_digits(key)}f}" for key in _KEYS]
            cells += [_with_interval(row, f"{kind}_rsum")]
            cells += [_with_interval(row, f"{kind}_above_alike")] if twins else []
            print(f"| {kind} | {name} | " + " | ".join(cells) + " |")
    print()


def _with_interval(row: dict[str, float], name: str) -> str:
    return f"{row[name]:.1f} [{row[f'{name}_low']:.1f}, {row[f'{name}_high']:.1f}]"


def _digits(key: str) -> int:
    return 4 if key.endswith("nmr") else 1
