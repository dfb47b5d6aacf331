"""The part of the tab that looks inside one picture: what each view of it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

import gradio as gr
import numpy as np
from PIL import Image

from app import heatmaps, panels
from app.links import LookLink
from app.retriever import Retriever
from app.session import Session
from app.tabs.events import on_question, on_refresh
from app.tabs.search import panel
from app.tabs.sharing import note_tab
from app.tabs.widgets import choosable

PLAIN = "picture"
_SIDE = 640  # pixels of the longer side as shown
_SMALL_SIDE = 112  # and of a small map


@dataclass(frozen=True)
class Subject:
    """The picture being looked at.

    Attributes:
        image_id: of the collection.
        spec: the method or ensemble that found it.
        rank: 0 where no query found it.
        score: the method's.
        view: which view won, counted from 0; None where no single one did.
        terms: what the query asked for, term by term.
        won: for each method, the view that won for each of the terms.
        words: what to look for in it; may be empty.
    """

    image_id: int
    spec: str
    rank: int = 0
    score: float = 0.0
    view: int | None = None
    terms: tuple[str, ...] = ()
    won: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    words: str = ""


class _Look(NamedTuple):
    """What is shown of a subject: its maps (V, rows, columns) for each method, and one of them."""

    maps: Mapping[str, np.ndarray]
    method: str
    view: int | None  # None is the plain picture

    @property
    def value(self) -> str:
        return PLAIN if self.view is None else f"{self.method}:{self.view}"


class Inspector:
    """Lays itself out where it is made, within the Blocks being built.

    Attributes:
        subject: holds the `Subject`, or None.
        head: tells which it is.
        more: the button that searches with the picture.
        outputs: the components that `show` and `clear` update.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.subject = gr.State(None)
        self.head = gr.HTML(panels.invitation(), elem_id="pv-head", js_on_load=panel.HEAD_JS)
        self._image = gr.Image(
            label="Attention over the picture",
            show_label=False,
            interactive=False,
            visible=False,
            buttons=["download", "fullscreen"],
            elem_id="pv-map",
        )
        self._layers, self._layer = choosable(panel.LAYERS_JS, "pv-layers", visible=False)
        self._legend = gr.HTML(visible=False)
        self._captions = gr.HTML(visible=False)
        with gr.Row(visible=False, elem_id="pv-further") as self._further:
            self._inside = gr.Button("Look inside", size="sm", min_width=120)
            self.more = gr.Button("Search with this picture", size="sm", min_width=120)
        parts = [self.head, self._image, self._layers, self._legend, self._captions, self._further]
        self.outputs = [self.subject, *parts]
        self._connect()

    def _connect(self) -> None:
        on_question(
            self._layer.select,
            self._switch,
            [self._session.pack, self.subject, self._layer],
            [self._image, self._legend],
            "inspect_layer",
        )
        on_refresh(
            [(self.head.shut, "close")], self.clear, [], self.outputs, "inspect", queue=False
        )
        [opened] = on_refresh(
            [(self._inside.click, "inside")],
            self._look_inside,
            [self._session.pack, self.subject],
            [self._session.look, self._session.tabs],
            "inspect",
            queue=False,
        )
        # Tabs that are opened by an update do not say that they were selected.
        opened.then(None, js=note_tab("views"), api_visibility="private")

    def show(self, key: str, subject: Subject) -> dict[Any, Any]:
        """Updates that show a picture with the map of its winning view."""
        retriever = self._session.retriever(key)
        look = _first_look(retriever, subject)
        picture = retriever.picture(subject.image_id)
        opened = retriever.open(subject.image_id)
        captions = panels.own_captions(picture.captions)
        small = panel.layers(_layers(retriever, subject, look, opened), look.value)
        return {
            self.subject: subject,
            self.head: panel.head(picture.file, _facts(retriever, subject, look)),
            self._image: _shown(retriever, look, opened),
            self._layers: gr.HTML(small, visible=True),
            self._legend: _legend(retriever, look),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self._further: gr.Row(visible=True),
        }

    def clear(self) -> dict[Any, Any]:
        """Updates that ask to choose a picture."""
        hidden = gr.update(visible=False)
        rest = dict.fromkeys(self.outputs[2:], hidden)
        return {self.subject: None, self.head: panels.invitation(), **rest}

    def complain(self, sentence: str) -> dict[Any, Any]:
        """Updates that say why a picture cannot be shown."""
        return {**self.clear(), self.head: panels.problem(sentence)}

    def _look_inside(self, key: str, subject: Subject | None) -> dict[Any, Any]:
        """Goes to the Views tab with the picture, its method and what to look for in it."""
        if subject is None:
            return {self._session.look: gr.skip()}
        methods = self._session.retriever(key).methods_of(subject.spec)
        look = LookLink(subject.image_id, methods[0], subject.words, token=uuid4().hex)
        return {self._session.look: look, self._session.tabs: gr.Tabs(selected="views")}

    def _switch(self, key: str, subject: Subject | None, value: Any) -> dict[Any, Any]:
        if subject is None:
            return {self._image: gr.update(visible=False), self._legend: gr.update(visible=False)}
        try:
            retriever = self._session.retriever(key)
            look = _look(retriever, subject, value)
            opened = retriever.open(subject.image_id)
        except ValueError as error:
            raise gr.Error(panels.text(error)) from error
        return {
            self._image: _shown(retriever, look, opened),
            self._legend: _legend(retriever, look),
        }


def _first_look(retriever: Retriever, subject: Subject) -> _Look:
    """The map of the winning view, or of the one that won for the query's first term."""
    maps = _maps(retriever, subject)
    method = next(iter(maps))
    won = subject.won.get(method, ())
    view = subject.view if subject.view is not None else won[0] if won else 0
    return _Look(maps, method, view)


def _look(retriever: Retriever, subject: Subject, value: object) -> _Look:
    """What a small map's value asks to be shown.

    Raises:
        ValueError: there is no such map.
    """
    maps = _maps(retriever, subject)
    if value == PLAIN:
        return _Look(maps, next(iter(maps)), None)
    for method, found in maps.items():
        for view in range(len(found)):
            if value == f"{method}:{view}":
                return _Look(maps, method, view)
    raise ValueError(f'there is no map "{str(value)[:80]}"; choose one of those shown')


def _maps(retriever: Retriever, subject: Subject) -> dict[str, np.ndarray]:
    methods = retriever.methods_of(subject.spec)
    return {method: retriever.heatmap(subject.image_id, method) for method in methods}


def _shown(retriever: Retriever, look: _Look, picture: Image.Image) -> dict[str, Any]:
    """The picture, with the map of the chosen view over it unless the plain one is wanted."""
    return gr.update(value=_drawn(retriever, look, picture, _SIDE), visible=True)


def _drawn(retriever: Retriever, look: _Look, picture: Image.Image, side: int) -> Image.Image:
    seen = retriever.runtime.preprocess.visible_box(*picture.size)
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    if look.view is None:
        return picture
    return heatmaps.overlay(picture, look.maps[look.method][look.view], seen)


def _legend(retriever: Retriever, look: _Look) -> dict[str, Any]:
    if look.view is None:
        return gr.update(visible=False)
    method = retriever.runtime.methods[look.method]
    shown = look.maps[look.method][look.view]
    label = heatmaps.label(
        method.title, method.attention_is, shown, shares=method.attention_sums_to_one
    )
    return gr.update(value=panels.legend(label), visible=True)


def _layers(
    retriever: Retriever, subject: Subject, look: _Look, picture: Image.Image
) -> dict[str, list[panel.Layer]]:
    """The small maps of every method, and the plain picture at the end."""
    groups: dict[str, list[panel.Layer]] = {}
    for method, maps in look.maps.items():
        won = set(subject.won.get(method, ())) if subject.rank and len(maps) > 1 else set()
        group = groups.setdefault(retriever.runtime.methods[method].title, [])
        for view in range(len(maps)):
            name, short = panel.view_names(len(maps), view)
            part = _Look(look.maps, method, view)
            small = _drawn(retriever, part, picture, _SMALL_SIDE)
            winner = len(won) == 1 and view in won
            group.append(panel.Layer(part.value, name, short, small, winner))
    plain = _Look(look.maps, look.method, None)
    small = _drawn(retriever, plain, picture, _SMALL_SIDE)
    if len(groups) > 1:
        group = groups.setdefault("Without a map", [])
    group.append(panel.Layer(PLAIN, "Picture", "Picture", small))
    return groups


def _facts(retriever: Retriever, subject: Subject, look: _Look) -> list[str]:
    """What the head of the panel says of a hit."""
    title = retriever.title_of(subject.spec)
    if not subject.rank:
        return [title]
    facts = [f"rank {subject.rank}", f"score {subject.score:.3f}", title]
    for method, won in subject.won.items():
        views = len(look.maps[method])
        if views == 1:
            continue
        of = f"{retriever.runtime.methods[method].title}: " if len(subject.won) > 1 else ""
        if len(set(won)) == 1:
            facts.append(f"{of}view {won[0] + 1} of {views} won")
        else:
            each = ", ".join(
                f"view {view + 1} for “{term}”"
                for term, view in zip(subject.terms, won, strict=True)
            )
            facts.append(f"{of}of {views} views, {each}")
    return facts
