"""Clips of the moving world once more, with their halves exchanged: not in the papers.

What a clip's two actors do passes, one in each half (`training/scenes/motion.py`). Played with its
halves exchanged, a clip shows what its twin shows, before its own background: captions of what
there is stay true, those of order are the twin's, and those of motion go, as the mover may be in
the midst of it. A clip and its exchange differ in nothing but order, so that no method can learn by
heart which background goes with which order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from training.data.split import Exchanged, Split


def with_exchanged_halves(split: Split) -> Split:
    """The same clips and captions, and behind them each clip with its halves exchanged.

    Args:
        split: clips of the moving world, with features (N, T, d).

    Raises:
        ValueError: see `refuse_without_twins`.
    """
    refuse_without_twins(split)
    assert split.alike is not None
    assert isinstance(split.features, np.ndarray)
    kinds, count = np.array(split.kinds), split.image_count
    free, order = (np.flatnonzero(kinds == kind) for kind in ("free", "order"))
    # twins are neighbours: 2 k and 2 k + 1
    owners = np.concatenate([split.image_of[free], split.image_of[order] ^ 1]) + count
    sorting = np.argsort(owners, kind="stable")
    texts = np.concatenate([free, order])[sorting]
    return replace(
        split,
        captions=split.captions + [split.captions[text] for text in texts],
        image_of=np.concatenate([split.image_of, owners[sorting]]),
        features=Exchanged(split.features),
        alike=np.concatenate([split.alike, split.alike + split.alike.max() + 1]),
        kinds=[*split.kinds, *kinds[texts].tolist()],
        relevant=None,
        moments=None,
    )


def refuse_without_twins(split: Split) -> None:
    """Raises ValueError where clips do not stand in twins with captions of their order."""
    if "order" not in split.kinds or split.alike is None:
        raise ValueError(
            f"exchange_halves and order_epochs need clips of the moving world, and "
            f"{split.folder.parent} holds none; leave them out"
        )
