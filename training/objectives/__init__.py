"""Objectives: the training losses of all methods."""

from typing import Any

from polyview.export.pack.validation import check
from polyview.models import METHODS
from polyview.training.objectives.avse import Asymmetric
from polyview.training.objectives.losses import MultiView, Objective, Triplet
from polyview.training.objectives.mvam import Contrastive, DiverseContrastive
from polyview.training.objectives.pvse import Polysemous
from polyview.training.settings import unknown_name_message

OBJECTIVES: dict[str, type[Objective]] = {
    "vsepp": Triplet,
    "vse_infty": Triplet,
    "mv_vse": MultiView,
    "pvse": Polysemous,
    "avse": Asymmetric,
    "mvam": DiverseContrastive,
    "scan": Triplet,
    "late": Triplet,
    "base_attn": Contrastive,
    "base_cls": Contrastive,
}


def build_objective(method: str, arguments: dict[str, Any]) -> Objective:
    """Builds a method's objective; raises ValueError if none exists or an argument is invalid."""
    if method not in METHODS:
        raise ValueError(unknown_name_message("method", method, OBJECTIVES))
    if method not in OBJECTIVES:
        advice = "use published weights (for CLIP: python -m polyview clip)"
        reason = f'method "{method}" has no objective, so it cannot be trained'
        raise ValueError(f"{reason}; {advice}, or add an objective in training/objectives/")
    return check(OBJECTIVES[method], arguments, "objective")
