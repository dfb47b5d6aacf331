"""The HTML of the Search tab: tiles, the way a question was read, small maps, history."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from app.asking import Answer
from app.panels import text, thumbnail_address
from app.query import MINUS
from models import Method

# The scripts that make the pieces of HTML below work with mouse and keyboard.
TILES_JS, LAYERS_JS, HEAD_JS, HISTORY_JS = (
    (Path(__file__).parent / f"{name}.js").read_text("utf-8")
    for name in ("tiles", "layers", "head", "history")
)
_FEW = 4  # views whose small maps have room for "View 1"


@dataclass(frozen=True)
class Tile:
    """One picture of the results.

    Attributes:
        image_id: of the collection; what choosing it sends.
        thumbnail: a file that may be fetched.
        words: its caption or its name.
        rank: 1 for the best; 0 in a sample, which has no scores.
        score: the method's.
        view: counted from 0; None where there is no winner to speak of.
        satisfies: it is known to satisfy the question.
    """

    image_id: int
    thumbnail: Path
    words: str
    rank: int = 0
    score: float = 0.0
    view: int | None = None
    satisfies: bool = False

    @property
    def name(self) -> str:
        """What is read aloud for it."""
        if not self.rank:
            return self.words
        parts = [f"{self.rank} · {self.score:.3f} · {self.words}"]
        if self.view is not None:
            parts.append(f"view {self.view + 1} won")
        if self.satisfies:
            parts.append("satisfies the caption")
        return ", ".join(parts)


@dataclass(frozen=True)
class Layer:
    """A small map to choose: a view of a method, or the plain picture.

    Attributes:
        value: what choosing it sends.
        name: what it is.
        short: what there is room for beneath it.
        map: what it looks like.
        won: the view won.
    """

    value: str
    name: str
    short: str
    map: Image.Image
    won: bool = False


def answer_line(answer: Answer) -> str:
    """What was found, how the question was read, and smaller remarks."""
    chips = "".join(
        f'<span class="pv-term{_sign(part)}">{text(part)}</span>' for part in answer.reading
    )
    reading = f'<span class="pv-reading" aria-label="read as">{chips}</span>' if chips else ""
    small = "".join(f"<span>{text(detail)}</span>" for detail in answer.details if detail)
    found = f"<strong>{text(answer.summary)}</strong>"
    return f'<p class="pv-line" role="status">{found}{reading}{small}</p>'


def tiles(found: Sequence[Tile]) -> str:
    """The pictures, best first, as buttons in reading order."""
    if not found:
        return (
            '<div class="pv-empty"><h3>No picture</h3>'
            "<p>No picture satisfies all the filters; take one of them away.</p></div>"
        )
    cells = "".join(_tile(place, tile) for place, tile in enumerate(found))
    return f'<div class="pv-tiles" role="group" aria-label="Results">{cells}</div>'


def head(file: str, facts: Iterable[str]) -> str:
    """The head of the panel that looks inside one picture, with the button that closes it."""
    small = "".join(f"<span>{text(fact)}</span>" for fact in facts if fact)
    return (
        f'<div class="pv-subject"><h3>{text(file)}</h3><p>{small}</p>'
        '<button type="button" class="pv-close" aria-label="Close" title="Close (Esc)">'
        f"{_CROSS}</button></div>"
    )


def layers(groups: Mapping[str, Sequence[Layer]], chosen: str) -> str:
    """Small maps to choose from.

    Args:
        groups: for each heading its maps; a single group needs none.
        chosen: the value of the one that is shown.
    """
    parts = []
    for heading, maps in groups.items():
        shown = f"<h4>{text(heading)}</h4>" if len(groups) > 1 else ""
        cells = "".join(_layer(layer, layer.value == chosen) for layer in maps)
        many = " pv-many" if len(maps) > _FEW + 1 else ""
        parts.append(f'{shown}<div class="pv-layers{many}">{cells}</div>')
    return f'<fieldset class="pv-strip"><legend>Choose a map</legend>{"".join(parts)}</fieldset>'


def view_names(views: int, view: int) -> tuple[str, str]:
    """A view's name, and as much of it as there is room for."""
    if views == 1:
        return "Attention", "Attention"
    return f"View {view + 1}", f"View {view + 1}" if views <= _FEW else str(view + 1)


def history(titles: Mapping[str, str]) -> str:
    """Earlier questions, to be asked again.

    Args:
        titles: what each question is called, by what choosing it sends.
    """
    if not titles:
        return '<p class="pv-none">What you ask is listed here until you leave the page.</p>'
    button = '<button type="button" class="pv-again" data-name="{}">{}</button>'
    rows = "".join(
        f"<li>{button.format(text(name), text(title))}</li>" for name, title in titles.items()
    )
    return (
        f'<ol class="pv-history">{rows}</ol>'
        '<button type="button" class="pv-forget">Clear the list</button>'
    )


def about(methods: Mapping[str, Method]) -> str:
    """What a visitor is looking at, in plain words, and whose ideas it shows."""
    rows = "".join(
        f"<li><strong>{text(method.title)}</strong> {text(method.paper)}</li>"
        for method in methods.values()
    )
    return f'<div class="pv-about">{_ABOUT}<ul>{rows}</ul></div>'


def _tile(place: int, tile: Tile) -> str:
    badge = "" if tile.view is None else f'<b class="pv-view">view {tile.view + 1}</b>'
    mark = '<i class="pv-true" title="Known to satisfy the caption">✓</i>' if tile.satisfies else ""
    rank = (
        f'<span class="pv-rank"><span>{tile.rank} · {tile.score:.3f}</span>{badge}</span>'
        if tile.rank
        else ""
    )
    address = thumbnail_address(tile.thumbnail)
    return (
        f'<button type="button" class="pv-tile" data-picture="{tile.image_id}" '
        f'tabindex="{-min(place, 1)}">'
        f'<span class="pv-shot"><img src="{text(address)}" alt="{text(tile.name)}">{mark}</span>'
        f'<span class="pv-foot" aria-hidden="true">{rank}'
        f'<span class="pv-words">{text(tile.words)}</span></span></button>'
    )


def _layer(layer: Layer, chosen: bool) -> str:
    name = f"{layer.name}, the winner" if layer.won else layer.name
    checked = " checked" if chosen else ""
    return (
        f'<label class="pv-layer{" pv-won" if layer.won else ""}" title="{text(name)}">'
        f'<input type="radio" name="pv-layer" value="{text(layer.value)}" '
        f'aria-label="{text(name)}"{checked}>'
        f'<img src="{_inline(layer.map)}" alt=""><span>{text(layer.short)}</span></label>'
    )


def _inline(picture: Image.Image) -> str:
    """A small picture as an address of its own."""
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", quality=70)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _sign(part: str) -> str:
    return " pv-less" if part.startswith(MINUS) else ""


_CROSS = (
    '<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">'
    '<path d="M3 3l10 10M13 3L3 13" stroke="currentColor" stroke-width="2" '
    'stroke-linecap="round"/></svg>'
)
_ABOUT = """
<p>A method turns every picture, and every sentence, into lists of numbers, called embeddings.
Close embeddings belong together: the score says how close, and the best scores come first. No tags
are looked up, so a sentence may be worded freely.</p>
<p>One picture can be described in many ways: by its animals, its weather, what stands next to what.
One embedding can hardly be close to all of these. Some methods therefore give a picture several,
called <em>views</em>, and the one that fits your words best wins. The badge on a picture says
which. Where several methods or terms decide together and no single view won, there is no badge.</p>
<p>Choose a picture to see what each view is made of. The map shows which parts of the picture went
into the embedding. It does not outline objects: a method that was never told where things are may
know a dog by the grass around it.</p>
<p>A tick marks pictures that are known to satisfy the caption you asked for. With + and - between
words, and weights such as 2: in front, scores are added and taken away.</p>
<p>The methods here, and the papers they come from:</p>
"""
