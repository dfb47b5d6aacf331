"""Compositionality: does a caption that is true of an image score above one that is nearly so?

Pairs are those of `training/scenes/foils.py`. A method that cannot tell them apart scores half of
the true ones above the false ones; one that counts words can do no better where two things swap.
"""

from collections.abc import Sequence

import numpy as np
import torch

from export.runtime import Runtime
from models import Views
from training.data.split import Split
from training.evaluation.evaluator import text_views
from training.evaluation.report import print_rows
from training.scenes.foils import KINDS, Foil


def foils_of(data: Split) -> list[Foil]:
    """The true and false captions of a split.

    Raises:
        ValueError: the split is not of rendered scenes.
    """
    if data.foils is None:
        raise ValueError(
            f"{data.folder} has captions alone; true and false ones are made of rendered scenes "
            "(python -m training.scenes)"
        )
    return data.foils()


@torch.inference_mode()
def foil_metrics(
    runtime: Runtime, method: str, images: Views, foils: Sequence[Foil]
) -> dict[str, float]:
    """How often the true caption scores above the false one; equals count half.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        images: its views of N_img images.
        foils: of these images.

    Returns:
        For each of `KINDS`, `foil_` before it, a percentage; `_pairs`, their number, and `_margin`,
        half the 95 % interval in percent, by the normal approximation.
    """
    rows = np.array([foil.image for foil in foils])
    texts = text_views(runtime, method, [foil.true for foil in foils] + [f.false for f in foils])
    scores = np.empty(len(texts), np.float32)
    for row in np.unique(rows).tolist():
        own = np.flatnonzero(np.tile(rows, 2) == row)
        block = runtime.methods[method].score(images[row : row + 1], texts[torch.from_numpy(own)])
        scores[own] = block[0].float().cpu().numpy()
    true, false = np.split(scores, 2)
    above = (true > false) + 0.5 * (true == false)
    kinds = np.array([foil.kind for foil in foils])
    values = dict[str, float]()
    for kind in [kind for kind in KINDS if kind in kinds]:
        right = above[kinds == kind]
        margin = 1.96 * right.std() / np.sqrt(len(right))
        values[f"foil_{kind}"] = 100 * float(right.mean())
        values[f"foil_{kind}_pairs"] = float(len(right))
        values[f"foil_{kind}_margin"] = 100 * float(margin)
    return values


def print_foils(rows: dict[str, dict[str, float]]) -> None:
    """Prints one line a method, and the numbers of pairs."""
    kinds = [kind for kind in KINDS if any(f"foil_{kind}" in row for row in rows.values())]
    table = [
        [name, *(f"{row[f'foil_{kind}']:.1f} ± {row[f'foil_{kind}_margin']:.1f}" for kind in kinds)]
        for name, row in rows.items()
    ]
    first = next(iter(rows.values()))
    table.append(["pairs", *(f"{first[f'foil_{kind}_pairs']:,.0f}" for kind in kinds)])
    print()
    print_rows(["true above false, %", *(kind.replace("_", " ") for kind in kinds)], table)
