"""The retrieval methods, which turn sets of image and text features into views and score them."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from typing import Any

from polyview.models.avse import AVSE
from polyview.models.clip import CLIP
from polyview.models.contextual import ContextConfig, add_contexts
from polyview.models.elements import SCAN, LateInteraction
from polyview.models.method import Method
from polyview.models.mv_vse import MVVSE
from polyview.models.mvam import MVAM, BaseAttention, BaseSummary
from polyview.models.pvse import PVSE
from polyview.models.views import Views
from polyview.models.vse_infty import VSEPP, VSEInfinity

__all__ = ["METHODS", "Method", "Views", "argument_defaults", "build"]
METHODS: dict[str, type[Method]] = {
    "vsepp": VSEPP,
    "vse_infty": VSEInfinity,
    "mv_vse": MVVSE,
    "pvse": PVSE,
    "avse": AVSE,
    "mvam": MVAM,
    "scan": SCAN,
    "late": LateInteraction,
    "base_attn": BaseAttention,
    "base_cls": BaseSummary,
    "clip": CLIP,
}
CONTEXT_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ContextConfig)}
MAX_WIDTH = 65_536  # maximum width of features, embeddings and hidden layers
# maximum values of some integer arguments; other integers have the maximum MAX_WIDTH
_MAX_COUNTS = {"views": 256, "iterations": 1000, "contextual_layers": 48}


def build(name: str, image_dim: int, text_dim: int, arguments: dict[str, Any]) -> Method:
    """Builds a method of `METHODS` for encoders whose features are `image_dim` and `text_dim` wide.

    `arguments` holds the method's keyword arguments and fields of `ContextConfig`, as in recipes.
    Raises ValueError if the method or an argument is unknown (the message lists the valid names),
    or if a value has the wrong type or is out of range.
    """
    if name not in METHODS:
        raise ValueError(f'there is no method "{name}"; choose one of {", ".join(METHODS)}')
    defaults = argument_defaults(name) | CONTEXT_DEFAULTS
    unknown = sorted(set(arguments) - set(defaults))
    if unknown:
        valid_names = ", ".join(sorted(defaults))
        raise ValueError(f'method "{name}" has no argument "{unknown[0]}"; it takes {valid_names}')
    for argument, width in (("image_dim", image_dim), ("text_dim", text_dim)):
        _check_value(name, argument, width, example=1)
    for argument, value in arguments.items():
        default = defaults[argument]
        if value != default:
            # the default None stands for an integer that depends on other arguments
            _check_value(name, argument, value, example=0 if default is None else default)
    context = ContextConfig(**{k: v for k, v in arguments.items() if k in CONTEXT_DEFAULTS})
    method_arguments = {k: v for k, v in arguments.items() if k not in CONTEXT_DEFAULTS}
    widths = [
        context.contextual_width if side in context.sides else width
        for side, width in (("image", image_dim), ("text", text_dim))
    ]
    method_class, config_type = METHODS[name], METHODS[name].config_type
    if config_type is not None:
        method = method_class(*widths, config_type(**method_arguments))
    else:
        method = method_class(*widths, **method_arguments)
    if context.sides:
        add_contexts(method, image_dim, text_dim, context)
    return method


def argument_defaults(name: str) -> dict[str, Any]:
    """Returns the names and defaults of a method's arguments, in order.

    >>> argument_defaults("vsepp")
    {'embed_dim': 1024, 'map_text': False}
    """
    method_class = METHODS[name]
    if method_class.config_type is not None:
        return {field.name: field.default for field in fields(method_class.config_type)}
    parameters = list(inspect.signature(method_class.__init__).parameters.values())
    arguments = parameters[3:]  # without self, image_dim and text_dim
    return {argument.name: argument.default for argument in arguments}


def _check_value(method_name: str, argument: str, value: Any, example: Any) -> None:
    """Raises ValueError unless `value` is in range and has `example`'s type; float includes int."""
    prefix = f'method "{method_name}": {argument} must be'
    if isinstance(example, bool | str):
        if type(value) is not type(example):
            expected = "true or false" if isinstance(example, bool) else "a string"
            raise ValueError(f"{prefix} {expected}, not {value!r:.60}")
    elif isinstance(example, int):
        maximum = _MAX_COUNTS.get(argument, MAX_WIDTH)
        if type(value) is not int or not 0 <= value <= maximum:
            raise ValueError(f"{prefix} a whole number from 0 to {maximum}, not {value!r:.60}")
    elif type(value) not in (int, float) or not abs(value) < math.inf:
        raise ValueError(f"{prefix} a finite number, not {value!r:.60}")
