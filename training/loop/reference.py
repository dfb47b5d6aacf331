"""Every setting in words, read from the models of settings themselves.

`docs/settings.md` is what the commands print; where a setting changes, this makes it again:

    for name in train pretrain distill; do
        python -m training.$name --help-settings
    done > docs/settings.md
"""

import inspect
import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from models import METHODS, Method
from training.loop.config import RECIPES, PretrainConfig, TrainConfig, recipe_names
from training.loop.teacher import DistillConfig
from training.objectives import OBJECTIVES
from training.settings import Settings, with_new_names

_KINDS = (TrainConfig, PretrainConfig, DistillConfig)  # a recipe is of the first it fits
PAPERS = "flickr30k"  # the recipes with the papers' own settings; those for COCO are alike
_HOW = "In a recipe, or on the command line as `--set NAME=VALUE`."
_PAPERS_ARE = f"*Papers*: what `training/recipes/{PAPERS}/` says, and its comments where from."
_OF_THE_PLACE = ("method", "data", "backbone", "seed", "text.vectors")  # no paper's values
_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "int | None": "a whole number",
}
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


def recipe_lines(kind: type[Settings]) -> list[str]:
    """The recipes that hold such settings, each with what its comment begins with."""
    texts = {name: (RECIPES / f"{name}.toml").read_text("utf-8") for name in recipe_names()}
    return [f"{name}: {_subject(text)}" for name, text in texts.items() if kind == _kind_of(text)]


def _kind_of(text: str) -> type[Settings]:
    """Which settings a recipe holds; a method's where it holds unknown ones."""
    names = with_new_names(tomllib.loads(text)).keys()
    return next((kind for kind in _KINDS if names <= kind.model_fields.keys()), TrainConfig)


def settings_lines(name: str, kind: type[Settings]) -> list[str]:
    """The page of a command's settings, as Markdown that a terminal can show, too.

    Args:
        name: of the module below `training`.
        kind: its settings.
    """
    methods = kind is TrainConfig
    papers = _papers() if methods else {}
    lines = [f"# Settings of `python -m training.{name}`", "", _HOW]
    lines += [_PAPERS_ARE, ""] if methods else [""]
    lines += _fields(kind, "", papers)
    for key, method in METHODS.items() if methods else ():
        if key in OBJECTIVES:
            own = {key: papers[key]} if key in papers else {}
            lines += ["", f'## `method = "{key}"`: {method.title}', ""]
            lines += _arguments(method, own)
            lines += _fields(OBJECTIVES[key], "objective.", own)
    return [*lines, ""]


def _fields(kind: type[Settings], prefix: str, papers: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line for each setting; those of a group below one another."""
    meanings = _documented(kind, "Attributes")
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            yield from _fields(type(default), f"{prefix}{name}.", papers)
        else:
            kinds = _range(_type(field.annotation), field.metadata)
            yield from _line(prefix + name, kinds, default, meanings.get(name, ""), papers)


def _arguments(method: type[Method], papers: dict[str, dict[str, Any]]) -> Iterator[str]:
    settings = method.config_type
    meanings = _documented(settings, "Attributes") if settings else _documented(method, "Args")
    for name, parameter in inspect.signature(settings or method).parameters.items():
        if name not in ("image_dim", "text_dim"):
            kinds = _TYPES.get(parameter.annotation, str(parameter.annotation))
            meaning = meanings.get(name, "")
            yield from _line(f"arguments.{name}", kinds, parameter.default, meaning, papers)


def _line(
    name: str, kinds: str, default: Any, meaning: str, papers: dict[str, dict[str, Any]]
) -> Iterator[str]:
    facts = [kinds, f"default {_shown(default)}"]
    given = {key: values[name] for key, values in papers.items() if name in values}
    if len(set(map(repr, given.values()))) == 1 and len(given) == len(papers):
        facts.append(f"papers {_shown(next(iter(given.values())))}")
    elif given:
        each = ", ".join(f"{key} {_shown(value)}" for key, value in given.items())
        facts.append(f"papers: {each}")
    yield f"- `{name}` ({'; '.join(facts)}): {meaning}"


def _type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        *first, last = (_shown(value) for value in inside)
        return f"{', '.join(first)} or {last}"
    if origin is tuple:
        return f"a list; each {_type(inside[0])}"
    if origin is dict:
        return "named values, see each method below"
    return _TYPES.get(annotation, str(annotation))


def _range(kinds: str, metadata: list[Any]) -> str:
    """A type with its bounds."""
    words = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}
    bounds = [
        f"{words[type(bound)]} {getattr(bound, type(bound).__name__.lower()):g}"
        for bound in metadata
        if type(bound) in words
    ]
    return " ".join([kinds, " and ".join(bounds)]).strip()


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _documented(kind: type, section: str) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "").partition(f"\n{section}:\n")[2]
        body = inspect.cleandoc(re.split(r"\n\S", text)[0])
        _, *parts = _ENTRY.split(body)
        names, meanings = parts[::2], parts[1::2]
        found |= {n: " ".join(m.split()) for n, m in zip(names, meanings, strict=True)}
    return found


def _papers() -> dict[str, dict[str, Any]]:
    """For each method what its paper's recipe says, by dotted names."""
    found = {}
    for path in sorted((RECIPES / PAPERS).glob("*.toml")):
        values = tomllib.loads(path.read_text("utf-8"))
        if "extends" in values:  # with another encoder, say
            continue
        stated = {k: v for k, v in _dotted(values, "") if k not in _OF_THE_PLACE}
        found[values["method"]] = stated
    return found


def _dotted(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _subject(text: str) -> str:
    """The first sentence of the comment that a recipe begins with, as far as its first colon."""
    block = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in block)
    return re.split(r"[.:;]( |$)", comment)[0]
