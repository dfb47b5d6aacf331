"""Polyview's methods: heads and scores over sets of features."""

from __future__ import annotations

import inspect
from typing import Any

from models.avse import AVSE
from models.baselines import VSEPP
from models.clip import CLIP
from models.method import Method
from models.mv_vse import MVVSE
from models.mvam import MVAM, BaseAttention, BaseSummary
from models.pvse import PVSE
from models.views import Views
from models.vse_infty import VSEInfinity

__all__ = ["METHODS", "Method", "Views", "build"]

METHODS: dict[str, type[Method]] = {
    "vsepp": VSEPP,
    "vse_infty": VSEInfinity,
    "mv_vse": MVVSE,
    "pvse": PVSE,
    "avse": AVSE,
    "mvam": MVAM,
    "base_attn": BaseAttention,
    "base_cls": BaseSummary,
    "clip": CLIP,
}


def build(name: str, image_dim: int, text_dim: int, arguments: dict[str, Any]) -> Method:
    """Builds a method by name.

    Args:
        name: a key of `METHODS`.
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        arguments: the method's own named arguments.

    Raises:
        ValueError: an unknown method or argument; the sentence lists the known ones.
    """
    if name not in METHODS:
        raise ValueError(f'there is no method "{name}"; choose one of {", ".join(METHODS)}')
    known = set(inspect.signature(METHODS[name].__init__).parameters)
    known -= {"self", "image_dim", "text_dim"}
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise ValueError(
            f'method "{name}" has no argument "{unknown[0]}"; it takes {", ".join(sorted(known))}'
        )
    return METHODS[name](image_dim=image_dim, text_dim=text_dim, **arguments)
