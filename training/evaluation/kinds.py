"""Metrics by kind of caption, and comparisons of true and false captions.

If captions have kinds (`Split.kinds`), such as captions of motion or of order for clips, each kind
is measured separately, against all images. `above_alike` is the share of captions that score their
own image above all images *alike* to it (`Split.alike`), such as a clip with the same events in the
other order. A method that cannot distinguish two alike images gets 50 %.

`training/scenes/foils.py` writes pairs of a true and a slightly different false caption. A method
that cannot distinguish them gets 50 %. So does a bag of words if two objects are swapped.
"""

from collections.abc import Sequence

import numpy as np

from polyview.export.runtime import Runtime
from polyview.models import Views
from polyview.training.data.split import Split
from polyview.training.evaluation import metrics
from polyview.training.evaluation.report import COLUMNS, Rows, format_value, print_rows
from polyview.training.evaluation.scoring import text_views
from polyview.training.evaluation.views import own_scores
from polyview.training.scenes.foils import KINDS, Foil

_KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "t2i_medr", "t2i_nmr")


def score_metrics(scores: np.ndarray, data: Split, folds: int = 1) -> dict[str, float]:
    """Measures a score matrix (N_img, N_txt), averaged over folds of the images.

    With a single fold, adds `relevance_metrics` and `kind_metrics` if the split has their data.
    """
    if folds > 1:
        return metrics.folded_metrics(scores, data.image_of, folds)
    values = metrics.retrieval_metrics(scores, data.image_of)
    if data.relevant is not None:
        values |= metrics.relevance_metrics(scores, data.relevant())
    return values | kind_metrics(scores, data)


def kind_metrics(scores: np.ndarray, data: Split) -> dict[str, float]:
    """Measures scores (N_img, N_txt) for each kind of caption.

    Each metric has the kind as a prefix. The metrics are `retrieval_metrics`; the 95 % interval of
    rsum, `rsum_low` and `rsum_high`; and, if some images are alike, `above_alike` in percent with
    its interval. The bootstrap resamples alike images together. All images must have the same
    number of captions of a kind. Without kinds, the result is empty.
    """
    table: dict[str, float] = {}
    for kind, (captions, image_of) in _captions_by_kind(data).items():
        kind_scores = scores[:, captions]
        i2t, t2i, counts, _ = metrics.image_hits(kind_scores, image_of)  # (N_img,) each
        values = metrics.retrieval_metrics(kind_scores, image_of)
        values |= metrics.mean_interval("rsum", 100 * (i2t + t2i / counts), data.alike)
        if data.alike is not None:
            ratings = _rate_captions(kind_scores, image_of, data.alike)
            shares = np.bincount(image_of, ratings, minlength=len(scores)) / counts
            values["above_alike"] = 100 * float(shares.mean())
            values |= metrics.mean_interval("above_alike", 100 * shares, data.alike)
        table |= {f"{kind}_{name}": value for name, value in values.items()}
    return table


def rsum_differences(a: np.ndarray, b: np.ndarray, data: Split) -> dict[str, dict[str, float]]:
    """Returns `difference_of_hits` of scores a and b (N_img, N_txt) for each kind of caption.

    The key "" holds the difference over all captions. Alike images are resampled together.
    """
    table: dict[str, dict[str, float]] = {}
    kinds: dict[str, tuple[slice | np.ndarray, np.ndarray]] = {"": (slice(None), data.image_of)}
    for kind, (captions, image_of) in (kinds | _captions_by_kind(data)).items():
        hits = (metrics.image_hits(scores[:, captions], image_of, data.alike) for scores in (a, b))
        table[kind] = metrics.difference_of_hits(*(method_hits[None] for method_hits in hits))
    return table


def _captions_by_kind(data: Split) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Maps each kind to the rows of its captions and the rows of their images."""
    kinds = np.array(data.kinds)
    rows = {kind: np.flatnonzero(kinds == kind) for kind in dict.fromkeys(data.kinds)}
    return {kind: (captions, data.image_of[captions]) for kind, captions in rows.items()}


def _rate_captions(scores: np.ndarray, image_of: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Rates captions (N_txt,): 1 if their image scores above all alike images, 0.5 for a tie."""
    is_rival = alike[:, None] == alike[image_of][None]  # (N_img, N_txt)
    pairs = image_of, np.arange(len(image_of))
    is_rival[pairs] = False
    rivals = np.where(is_rival, scores, -np.inf).max(axis=0)
    return (scores[pairs] > rivals) + 0.5 * (scores[pairs] == rivals)


def print_kinds(rows: Rows, kinds: Sequence[str]) -> None:
    """Prints a row for each kind and method; `kinds` holds the kind of each caption."""
    if not kinds:
        return
    titles, table = [*(COLUMNS[key] for key in _KEYS), "rsum", "above its twin, %"], []
    for kind in dict.fromkeys(kinds):
        for name, row in rows.items():
            cells = [kind, name, *(format_value(key, row[f"{kind}_{key}"]) for key in _KEYS)]
            for key in (f"{kind}_rsum", f"{kind}_above_alike"):  # the second is optional
                if key in row:
                    low, high = row[f"{key}_low"], row[f"{key}_high"]
                    cells.append(f"{row[key]:.1f} [{low:.1f}, {high:.1f}]")
            table.append(cells)
    print()
    print_rows(["captions", "method", *titles][: len(table[0])], table, label_count=2)
    print()


def foil_metrics(
    runtime: Runtime, name: str, images: Views, foils: Sequence[Foil]
) -> dict[str, float]:
    """Measures how often the true caption of a pair scores above its foil; ties count half.

    `images` holds a method's views of the images that the foils describe. Returns for each kind
    that occurs the percentage `foil_KIND`; the number of pairs, `foil_KIND_pairs`; and
    `foil_KIND_margin`, half the width of the 95 % interval by the normal approximation.
    """
    texts = text_views(runtime, name, [f.true for f in foils] + [f.false for f in foils])
    image_of = np.tile([foil.image for foil in foils], 2)
    scores = own_scores(runtime.methods[name].score, images, texts, image_of, batch_size=1)
    true_scores, false_scores = np.split(scores, 2)
    successes = (true_scores > false_scores) + 0.5 * (true_scores == false_scores)
    kinds, values = np.array([foil.kind for foil in foils]), dict[str, float]()
    for kind in [kind for kind in KINDS if kind in kinds]:
        results, key = successes[kinds == kind], f"foil_{kind}"
        values |= {key: 100 * float(results.mean()), f"{key}_pairs": float(len(results))}
        values[f"{key}_margin"] = 100 * float(1.96 * results.std() / np.sqrt(len(results)))
    return values


def print_foils(rows: Rows) -> None:
    """Prints a row for each method, and a row with the numbers of pairs."""
    sample = next(iter(rows.values()))  # all methods have the same pairs
    keys = {kind.replace("_", " "): f"foil_{kind}" for kind in KINDS if f"foil_{kind}" in sample}
    table = [
        [name, *(f"{row[key]:.1f} ± {row[f'{key}_margin']:.1f}" for key in keys.values())]
        for name, row in rows.items()
    ]
    table.append(["pairs", *(f"{sample[f'{key}_pairs']:,.0f}" for key in keys.values())])
    print()
    print_rows(["true above false, %", *keys], table)
