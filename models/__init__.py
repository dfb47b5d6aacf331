"""Polyview's methods: heads and scores over sets of features."""

from __future__ import annotations

import inspect
import math
from typing import Any

from models.avse import AVSE
from models.baselines import VSEPP
from models.clip import CLIP
from models.method import Method
from models.mv_vse import MVVSE
from models.mvam import MVAM, BaseAttention, BaseSummary
from models.pvse import PVSE
from models.scan import SCAN
from models.views import Views
from models.vse_infty import VSEInfinity

__all__ = ["METHODS", "Method", "Views", "build", "complete_arguments", "former_arguments"]

METHODS: dict[str, type[Method]] = {
    "vsepp": VSEPP,
    "vse_infty": VSEInfinity,
    "mv_vse": MVVSE,
    "pvse": PVSE,
    "avse": AVSE,
    "mvam": MVAM,
    "scan": SCAN,
    "base_attn": BaseAttention,
    "base_cls": BaseSummary,
    "clip": CLIP,
}


MAX_WIDTH = 65_536  # of features, embeddings and hidden layers
_MOST = {"views": 256, "iterations": 1000}  # arguments that count what is built or repeated


def build(name: str, image_dim: int, text_dim: int, arguments: dict[str, Any]) -> Method:
    """Builds a method by name.

    Args:
        name: a key of `METHODS`.
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        arguments: the method's own named arguments.

    Raises:
        ValueError: an unknown method or argument, of which the sentence lists the known ones, or a
            value of another type or beyond any use.
    """
    if name not in METHODS:
        raise ValueError(f'there is no method "{name}"; choose one of {", ".join(METHODS)}')
    parameters = inspect.signature(METHODS[name].__init__).parameters
    known = set(parameters) - {"self", "image_dim", "text_dim"}
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise ValueError(
            f'method "{name}" has no argument "{unknown[0]}"; it takes {", ".join(sorted(known))}'
        )
    for dim, value in (("image_dim", image_dim), ("text_dim", text_dim)):
        _check(name, dim, value, 1)
    for argument, value in arguments.items():
        default = parameters[argument].default
        if value != default:
            _check(name, argument, value, 0 if default is None else default)
    return METHODS[name](image_dim=image_dim, text_dim=text_dim, **arguments)


_FORMER: dict[str, dict[str, Any]] = {
    "mv_vse": {"own_projections": False},
    "mvam": {"code_space": "view", "map_text": False},
    "base_attn": {"map_text": False},
}
"""Arguments whose default was another one once: what weights that do not say were made with."""


def former_arguments(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the named arguments of weights that were written before mean.

    >>> former_arguments("mv_vse", {"views": 2})
    {'own_projections': False, 'views': 2}
    """
    return {**_FORMER.get(name, {}), **arguments}


def complete_arguments(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as they are to be written: those whose default was another one once are said."""
    parameters = inspect.signature(METHODS[name].__init__).parameters
    return {**{key: parameters[key].default for key in _FORMER.get(name, {})}, **arguments}


def _check(method: str, argument: str, value: Any, like: Any) -> None:
    """Refuses a value that is of another type than `like`, or a size that nothing has."""
    start = f'method "{method}": {argument} must be'
    if isinstance(like, bool | str):
        if type(value) is not type(like):
            what = "true or false" if isinstance(like, bool) else "a text"
            raise ValueError(f"{start} {what}, not {value!r:.60}")
    elif isinstance(like, int):
        most = _MOST.get(argument, MAX_WIDTH)
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"{start} a whole number from 0 to {most}, not {value!r:.60}")
    elif type(value) not in (int, float) or not abs(value) < math.inf:
        raise ValueError(f"{start} a number, not {value!r:.60}")
