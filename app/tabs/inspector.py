"""The panel that looks inside one picture: what a method's embedding of it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from app import heatmaps, panels
from app.api.replies import MODEL_QUEUE
from app.retriever import Retriever
from app.session import Session

PLAIN = "picture"
_SIDE = 640  # pixels of the longer side as shown


@dataclass(frozen=True)
class Subject:
    """The picture being looked at; `rank` is 0 where it was not found by a query."""

    image_id: int
    method: str
    rank: int = 0
    score: float = 0.0
    view: int = 0


class Inspector:
    """Lays itself out where it is made, within the Blocks being built.

    Attributes:
        subject: holds the `Subject`, or None.
        more: the button that searches with the picture.
        outputs: the components that `show` and `clear` update.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.subject = gr.State(None)
        self._head = gr.HTML(panels.invitation(), elem_id="pv-head")
        self._image = gr.Image(
            label="Attention over the picture",
            show_label=False,
            interactive=False,
            visible=False,
            buttons=["download", "fullscreen"],
            elem_id="pv-map",
        )
        self._layer = gr.Radio([], show_label=False, visible=False, elem_id="pv-layer")
        self._legend = gr.HTML(visible=False)
        self._captions = gr.HTML(visible=False)
        self.more = gr.Button("Search with this picture", size="sm", visible=False)
        parts = [self._head, self._image, self._layer, self._legend, self._captions, self.more]
        self.outputs = [self.subject, *parts]
        self._layer.input(
            self._switch,
            [session.pack, self.subject, self._layer],
            [self._image, self._legend],
            api_name="inspect_layer",
            api_visibility="undocumented",
            concurrency_id=MODEL_QUEUE,
            show_progress="hidden",
        )

    def show(self, key: str, subject: Subject) -> dict[Any, Any]:
        """Updates that show a picture with the map of its winning view."""
        retriever = self._session.retriever(key)
        maps = retriever.heatmap(subject.image_id, subject.method)
        picture = retriever.picture(subject.image_id)
        facts = _facts(retriever, subject, len(maps))
        captions = panels.own_captions(picture.captions)
        layer = str(subject.view)
        return {
            self.subject: subject,
            self._head: panels.subject(picture.file, facts),
            self._image: _shown(retriever, subject, maps, layer),
            self._layer: gr.Radio(_layers(len(maps), subject), value=layer, visible=True),
            self._legend: _legend(retriever, subject, maps, layer),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self.more: gr.Button(visible=True),
        }

    def clear(self) -> dict[Any, Any]:
        """Updates that ask to choose a picture."""
        hidden = gr.update(visible=False)
        rest = dict.fromkeys(self.outputs[2:], hidden)
        return {self.subject: None, self._head: panels.invitation(), **rest}

    def complain(self, sentence: str) -> dict[Any, Any]:
        """Updates that say why a picture cannot be shown."""
        return {**self.clear(), self._head: panels.problem(sentence)}

    def _switch(self, key: str, subject: Subject | None, layer: str) -> dict[Any, Any]:
        if subject is None:
            return self.clear()
        try:
            retriever = self._session.retriever(key)
            maps = retriever.heatmap(subject.image_id, subject.method)
            return {
                self._image: _shown(retriever, subject, maps, layer),
                self._legend: _legend(retriever, subject, maps, layer),
            }
        except ValueError as error:
            raise gr.Error(str(error)) from error


def _shown(retriever: Retriever, subject: Subject, maps: np.ndarray, layer: str) -> dict[str, Any]:
    """The picture, with the map of the chosen view over it unless the plain one is wanted."""
    picture = retriever.open(subject.image_id)
    seen = retriever.runtime.preprocess.visible_box(*picture.size)
    scale = _SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    if layer != PLAIN:
        picture = heatmaps.overlay(picture, maps[int(layer)], seen)
    return gr.update(value=picture, visible=True)


def _legend(retriever: Retriever, subject: Subject, maps: np.ndarray, layer: str) -> dict[str, Any]:
    if layer == PLAIN:
        return gr.update(visible=False)
    method = retriever.runtime.methods[subject.method]
    label = heatmaps.label(
        method.title, method.attention_is, maps[int(layer)], shares=method.attention_sums_to_one
    )
    return gr.update(value=panels.legend(label), visible=True)


def _layers(views: int, subject: Subject) -> list[tuple[str, str]]:
    """The choices of the layer switch: (what is read, value)."""
    if views == 1:
        return [("Attention", "0"), ("Picture", PLAIN)]
    won = f"View {subject.view + 1}, the winner" if subject.rank else f"View {subject.view + 1}"
    names = [won if view == subject.view else f"View {view + 1}" for view in range(views)]
    return [(name, str(view)) for view, name in enumerate(names)] + [("Picture", PLAIN)]


def _facts(retriever: Retriever, subject: Subject, views: int) -> list[str]:
    """What the head of the panel says of a hit."""
    title = retriever.runtime.methods[subject.method].title
    if not subject.rank:
        return [title]
    won = f"view {subject.view + 1} of {views} won" if views > 1 else ""
    return [f"rank {subject.rank}", f"score {subject.score:.3f}", title, won]
