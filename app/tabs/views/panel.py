"""The Views tab's pieces of HTML. Whatever comes from outside passes through `text` first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from app import heatmaps
from app.inside import Look
from app.panels import text, thumbnail_address
from app.retriever import Retriever
from app.tabs.views.outlines import Outline
from models import Method
from models.panel import Knob, Settings
from models.preprocess import Box

_FEW, _SOME = 4, 9  # views: so many are drawn large, so many smaller
_PICTURE_SIDE = 448  # pixels of the picture under the maps


@dataclass(frozen=True)
class Shown:
    """The picture under the maps.

    Attributes:
        image: RGB, any size.
        name: what visitors call it.
        seen: the part of it that the encoder sees, relative xyxy.
        outlines: what it is known to show.
    """

    image: Image.Image
    name: str
    seen: Box
    outlines: tuple[Outline, ...] = ()


def strip(retriever: Retriever, image_ids: Sequence[int], chosen: int | None) -> str:
    """Small pictures to choose from, as buttons."""
    buttons = "".join(
        f'<button type="button" data-picture="{i}" aria-pressed="{str(i == chosen).lower()}" '
        f'title="Picture {i}">{thumbnail(retriever, i)}</button>'
        for i in image_ids
    )
    return f'<div class="pv-v-strip" role="group" aria-label="Pictures to look at">{buttons}</div>'


def maps(look: Look, method: Method, shown: Shown) -> str:
    """Every view's map over the picture, with its score, and the mean and the maximum of all."""
    if look.maps is None:
        return (
            '<p class="pv-v-empty">This method has no attention to show; its views are compared '
            "below.</p>"
        )
    count = len(look.maps)
    names = ["Map"] if count == 1 else [f"View {view + 1}" for view in range(count)]
    cells = [
        _cell(names[view], look.maps[view], shown, method, look, view) for view in range(count)
    ]
    if count > 1:
        joined = {"Mean of all views": look.maps.mean(0), "Maximum of all views": look.maps.max(0)}
        cells += [_cell(name, values, shown, method) for name, values in joined.items()]
    picture = shown.image.copy()
    picture.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    size = "few" if count <= _FEW else "some" if count <= _SOME else "many"
    style = (
        f"--pv-picture:url({heatmaps.data_uri(picture, 'WEBP')});"
        f"--pv-ratio:{shown.image.width}/{shown.image.height};--pv-count:{len(cells)}"
    )
    return (
        f'<div class="pv-v-maps pv-v-{size}" style="{style}">{_truth(shown, look.mentioned)}'
        f"<ul>{''.join(cells)}</ul></div>{_legend(look, method, shown)}"
    )


def _cell(
    name: str,
    values: np.ndarray,
    shown: Shown,
    method: Method,
    look: Look | None = None,
    view: int = 0,
) -> str:
    """One map; with a look, that of one of its views."""
    row, column = divmod(int(values.argmax()), values.shape[1])
    peak = amount(float(values[row, column]), method)
    said = f"{name}: the highest of its cells, {peak}, is in row {row + 1}, column {column + 1}"
    badge = score = ""
    won = False
    if look is not None and look.view_scores is not None:
        score = f'<span class="pv-v-points">{look.view_scores[view]:.3f}</span>'
        said += f"; score {look.view_scores[view]:.3f}"
        won = view == look.winner and len(look.view_scores) > 1
    if won:
        badge = f'<span class="pv-v-badge">★ {_verb(method)}</span>'
        said += f", it {_verb(method)}"
    left, top, right, bottom = shown.seen
    box = f"left:{left:.2%};top:{top:.2%};width:{right - left:.2%};height:{bottom - top:.2%}"
    smooth, raw = (heatmaps.data_uri(heatmaps.tile(values, smooth=s)) for s in (True, False))
    lines = "".join(
        f'<path class="pv-v-level{level}" d="{d}"/>'
        for level, d in enumerate(heatmaps.isolines(values), start=1)
    )
    return (
        f'<li class="pv-v-view{" pv-v-won" if won else ""}"><label>'
        f'<input type="checkbox" class="pv-v-hidden" aria-label="Enlarge: {text(name)}">'
        f'<span class="pv-v-stage" role="img" aria-label="{text(said)}" title="{text(said)}">'
        f'<span class="pv-v-seen" style="{box}">'
        f'<img class="pv-v-smooth" alt="" src="{smooth}"><img class="pv-v-raw" alt="" src="{raw}">'
        f'<svg class="pv-v-lines" viewBox="0 0 100 100" preserveAspectRatio="none">{lines}</svg>'
        '</span><svg class="pv-v-objects" viewBox="0 0 100 100" preserveAspectRatio="none">'
        '<use href="#pv-v-objects"></use></svg></span></label>'
        f'<p class="pv-v-what"><strong>{text(name)}</strong>{score}{badge}</p>'
        f'<p class="pv-v-peak">peak {peak}</p></li>'
    )


def amount(value: float, method: Method) -> str:
    """A value of a map, as what it is: a share or a cosine."""
    return f"{value:.1%}".replace("%", " %") if method.attention_sums_to_one else f"{value:.2f}"


def _verb(method: Method) -> str:
    return "adds most" if method.views_add_up else "wins"


def _truth(shown: Shown, mentioned: frozenset[int]) -> str:
    """The outlines, defined once for all maps."""
    drawn = "".join(
        f'<path class="{"pv-v-told" if place in mentioned else "pv-v-there"}" d="{outline.path}">'
        f"<title>{text(outline.name)}</title></path>"
        for place, outline in enumerate(shown.outlines)
    )
    return f'<svg class="pv-v-hidden" aria-hidden="true"><g id="pv-v-objects">{drawn}</g></svg>'


def _legend(look: Look, method: Method, shown: Shown) -> str:
    levels = ", ".join(f"{level:.0%}".replace("%", " %") for level in heatmaps.LEVELS)
    low = "0" if method.attention_sums_to_one else "0 or less"
    scores = ""
    if look.view_scores is not None and len(look.view_scores) > 1:
        scores = f"<p>Numbers beside a view: {text(method.view_scores_are)}.</p>"
    objects = ""
    if shown.outlines:
        names = [shown.outlines[i].name for i in sorted(look.mentioned)]
        told = f" The text mentions {text(_listed(names))}: thick lines." if names else ""
        objects = (
            f'<p class="pv-v-if-objects">White outlines: where the objects were rendered.{told}</p>'
        )
    return (
        f'<div class="pv-legend">{scale(low, "the highest cell of each map")}'
        f"<p>{text(method.title)}: {text(method.attention_is)}. It shows what a view's embedding "
        "is made of, not where an object is.</p>"
        f'<p class="pv-v-if-contour">Lines at {levels} of each map\'s highest cell.</p>'
        f"{objects}{scores}</div>"
    )


def scale(low: str, high: str) -> str:
    """The colours from the lowest to the highest value, with names for both."""
    stops = ", ".join(f"rgb{tuple(rgb)}" for rgb in heatmaps.colour(np.linspace(0, 1, 8)).tolist())
    return (
        f'<div class="pv-scale"><span>{text(low)}</span>'
        f'<i style="background:linear-gradient(90deg, {stops})"></i><span>{text(high)}</span></div>'
    )


def _listed(names: Sequence[str]) -> str:
    """Names in a row, each once.

    >>> _listed(["dog", "cat", "dog"])
    'dog, cat'
    """
    return ", ".join(dict.fromkeys(names))


def winner(look: Look, method: Method) -> str:
    """Which view won, in words; nothing where there was none to win against."""
    if look.winner is None or len(look.similarity) == 1:
        return ""
    return f"view {look.winner + 1} of {len(look.similarity)} {_verb(method)}"


def knobs(known: Sequence[Knob], settings: Settings) -> str:
    """What a reader may change about the panels below; nothing where there is nothing."""
    if not known:
        return ""
    return f'<div class="pv-v-knobs">{"".join(_knob(knob, settings) for knob in known)}</div>'


def _knob(knob: Knob, settings: Settings) -> str:
    value = knob.read(settings)
    if knob.options:
        choices = "".join(
            f'<label><input type="radio" name="pv-v-knob-{text(knob.name)}" '
            f'data-knob="{text(knob.name)}" value="{text(option)}"'
            f"{' checked' if option == value else ''}>{text(option)}</label>"
            for option in knob.options
        )
        return f"<fieldset><legend>{text(knob.title)}</legend>{choices}</fieldset>"
    return (
        f'<label class="pv-v-knob-range">{text(knob.title)} <input type="range" '
        f'data-knob="{text(knob.name)}" min="{knob.low}" max="{knob.high}" value="{value}">'
        f"<output>{value}</output></label>"
    )


def thumbnail(retriever: Retriever, image_id: int) -> str:
    """An image tag; one without a source where the file is gone."""
    picture = retriever.picture(image_id)
    name = picture.captions[0] if picture.captions else picture.file
    try:
        address = thumbnail_address(retriever.thumbnail(image_id))
    except (OSError, ValueError):
        return f'<img alt="{text(name)}, which is not there any more">'
    return f'<img src="{address}" alt="{text(name)}" width="96" height="96">'


def note(sentence: str) -> str:
    """A smaller remark."""
    return f'<p class="pv-v-note">{text(sentence)}</p>'
