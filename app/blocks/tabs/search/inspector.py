"""The part of the tab that looks inside one image: what each view of it is made of."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import gradio as gr
import numpy as np
from markupsafe import Markup
from PIL import Image

from app.blocks.tabs.events import connect, on_refresh
from app.blocks.tabs.evidence import Split, split
from app.blocks.tabs.html import problem, text
from app.blocks.tabs.saving import keep, on_save
from app.blocks.tabs.search import clip, view
from app.blocks.tabs.search.view import Layer, Result
from app.blocks.tabs.session import Session
from app.blocks.tabs.sharing import note_tab
from app.blocks.tabs.widgets import choosable, script
from app.explain import heatmaps
from app.explain.look import maps_of
from app.explain.maps import Under, drawn_as, under
from app.search.links import LookLink
from app.search.retriever import Retriever

PLAIN = "picture"
_EVIDENCE = "evidence:"  # and the place of a map of `Split.maps`
_LARGEST = 4096  # pixels of the longer side of the original as shown
_SHOW = (
    """(file) => document.dispatchEvent(new CustomEvent("pv-original", { detail: file?.url }))"""
)
_SIDE = 640  # pixels of the longer side as shown
_SMALL_SIDE = 112  # and of a small map

Maps = Mapping[str, np.ndarray]  # (V, rows, columns) for each method


class Inspector:
    """Lays itself out where it is made, within the Blocks being built.

    Attributes:
        result: holds the `Result` being looked at, or None.
        head: tells which it is.
        alone: the button that searches with the image.
        like: the one that asks for more like it.
        unlike: the one that asks for less like it.
        outputs: the components that `look` and `clear` update.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.result = gr.State(None)
        self.head = gr.HTML(view.invitation(), elem_id="pv-head", js_on_load=script("search/head"))
        self._clip, self._frame = choosable("search/clip", "pv-clip", visible=False)
        self._image = gr.Image(
            label="Attention over the picture",
            show_label=False,
            interactive=False,
            visible=False,
            buttons=["download", "fullscreen"],
            elem_id="pv-map",
            alt_text="The picture under its map",
        )
        self._layers, self._layer = choosable("search/layers", "pv-layers", visible=False)
        self._legend = gr.HTML(visible=False)
        self._captions = gr.HTML(visible=False)
        with gr.Row(visible=False, elem_id="pv-further") as self._further:
            self._inside = gr.Button("Look inside", size="sm", min_width=120)
            self.alone = gr.Button("Search with this picture", size="sm", min_width=120)
            self.like = gr.Button("More like this", size="sm", min_width=90)
            self.unlike = gr.Button("Less like this", size="sm", min_width=90)
            self._original = gr.Button("Show original", size="sm", min_width=90)
        self._file = gr.DownloadButton(visible="hidden")
        self._inner = [self._image, self._layers, self._legend]  # which differ from frame to frame
        parts = [self.head, self._clip, *self._inner, self._captions, self._further]
        self.outputs = [self.result, *parts]
        self._connect()

    def _connect(self) -> None:
        session, looked = self._session, [self._session.pack, self.result]
        shown, chosen = [self._image, self._legend], [*looked, self._layer]
        connect(self._layer.select, self._switch, chosen, shown, "inspect_layer", question=True)
        frame, follows = [*looked, self._frame], [self.result, *self._inner]
        connect(self._frame.select, self._follow, frame, follows, "inspect_frame", question=True)
        shut = [(self.head.shut, "close")]
        on_refresh(shut, self.clear, [], self.outputs, "inspect", queue=False)
        on_save(self._original, self._redrawn, looked, self._file, "inspect_original", _SHOW)
        there, click = [session.look, session.tabs, session.lab], self._inside.click
        opened = connect(click, self._look_inside, looked, there, "inspect_inside", queue=False)
        # Tabs that are opened by an update do not say that they were selected.
        opened.then(None, js=note_tab("views", waits=True), api_visibility="private")

    def look(self, key: str, result: Result | None) -> dict[Any, Any]:
        """Updates that open an image, or close what was open; of one that is gone they say so."""
        if result is None:
            return self.clear()
        try:
            return self._show(key, result)
        except ValueError as error:
            return {**self.clear(), self.head: problem(str(error))}

    def _show(self, key: str, result: Result) -> dict[Any, Any]:
        """Shows an image, or of a clip the frame that was found, with what is known about it."""
        retriever = self._session.retriever(key)
        maps, about = _maps(retriever, result), retriever.image(result.image_id)
        captions = view.captions("Its captions", about.captions)
        sent, player = self._session.packs.sends_files(key), Markup()
        if about.moment:
            player = clip.panel(clip.of(key, retriever, result, sent))
        return {
            self.head: view.head(
                about.file,
                _facts(retriever, result, maps),
                str(about.path) if self._session.packs.private else "",
            ),
            self._clip: gr.HTML(player, visible=bool(player)),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self._further: gr.Row(visible=True),
            **self._look_into(retriever, result, maps),
        }

    def _look_into(self, retriever: Retriever, result: Result, maps: Maps) -> dict[Any, Any]:
        """Shows an image with the evidence of all words.

        Where there is none, as nothing was asked, with the map of its winning view. Of several
        terms, each with a view that won, the first one counts.
        """
        shown = under(retriever, result.image_id)
        method = next(iter(maps))
        won = (*result.won.get(method, ()), 0)[0] if result.view is None else result.view
        lit = _split(retriever, result)
        chosen = f"{_EVIDENCE}0" if lit else f"{method}:{won}"
        cells = range(len(lit.names())) if lit else ()
        hidden = [f"{_EVIDENCE}{place}" for place in cells if lit and lit.is_cell(place)]
        small = view.layers(_layers(retriever, result, lit, maps, shown), chosen, hidden)
        return {
            self.result: result,
            self._layers: gr.HTML(small, visible=True),
            **(
                self._light(shown, lit, 0)
                if lit
                else self._draw(retriever, shown, method, maps[method][won])
            ),
        }

    def clear(self) -> dict[Any, Any]:
        """Updates that ask to choose an image."""
        hidden = gr.update(visible=False)
        rest = dict.fromkeys(self.outputs[2:], hidden)
        stopped = {self._clip: gr.HTML("", visible=False)}
        return {self.result: None, self.head: view.invitation(), **rest, **stopped}

    def _redrawn(self, key: str, result: Result | None) -> str:
        """Makes a file of the image, large and without metadata, that any browser shows."""
        if result is None:
            raise ValueError("no picture is open; choose one first")
        image = self._session.retriever(key).open(result.image_id)
        image.thumbnail((_LARGEST, _LARGEST))
        content = io.BytesIO()
        image.save(content, "WEBP", quality=90)
        name = f"{Path(result.image.file).stem}.webp"
        return str(keep(content.getvalue(), name, Path(self._file.GRADIO_CACHE)))

    def _look_inside(self, key: str, result: Result | None) -> dict[Any, Any]:
        """Goes to the Views tab with the image, its method and what to look for in it."""
        if result is None:
            return {self._session.look: gr.skip()}
        methods = self._session.retriever(key).methods.names(result.spec)
        look = LookLink(result.image_id, methods[0], result.words, token=uuid4().hex)
        return {self._session.look: look, **self._session.opened("views")}

    def _follow(self, key: str, result: Result | None, image_id: Any) -> dict[Any, Any]:
        """Shows another frame of the clip that is open."""
        retriever = self._session.retriever(key)
        file_id, known = retriever.collection.file_id, isinstance(image_id, int)
        if result is None or not known or file_id(image_id) != file_id(result.image_id):
            return {self.result: gr.skip()}  # another image was opened meanwhile
        try:
            moment = retriever.image(image_id).moment
            image = replace(result.image, moment=moment)
            result = replace(result, image_id=image_id, image=image, view=None, won={})
            return self._look_into(retriever, result, _maps(retriever, result))
        except ValueError as error:
            raise gr.Error(text(error)) from error

    def _switch(self, key: str, result: Result | None, value: Any) -> dict[Any, Any]:
        """Shows the map that was chosen among the small ones."""
        if result is None:
            return {self._image: gr.update(visible=False), self._legend: gr.update(visible=False)}
        try:
            retriever = self._session.retriever(key)
            shown = under(retriever, result.image_id)
            if str(value).startswith(_EVIDENCE):  # as words are pointed at, so nothing else first
                lit = _split(retriever, result)
                for place in range(len(lit.names()) if lit else 0):
                    if lit and value == f"{_EVIDENCE}{place}":
                        return self._light(shown, lit, place)
            elif value == PLAIN:
                return self._draw(retriever, shown)
            for method, found in _maps(retriever, result).items():
                for place, attention in enumerate(found):
                    if value == f"{method}:{place}":
                        return self._draw(retriever, shown, method, attention)
        except ValueError as error:
            raise gr.Error(text(error)) from error
        raise gr.Error(text(f'there is no map "{str(value)[:80]}"; choose one of those shown'))

    def _light(self, under: Under, found: Split, place: int) -> dict[Any, Any]:
        """Updates that show an image lit by one of the maps of its evidence."""
        shown, score, rest = found.maps(0)[place], found.scores[0], found.rest[0]
        top = found.tops_of(0)[place]
        words, total = found.spoken()[place], float(shown.sum())
        does = f"takes {-total:.3f} from" if total < 0 else f"brings {total:.3f} of"
        if words == "the words together":
            words, does = "all words together", does.replace("s ", " ", 1)
        words = words[:1].upper() + words[1:]
        spot = found.where(0, shown)
        far = "" if spot == "nowhere" else f", mostly from {spot}"
        sentence = f"{words} {does} the score {score:.3f}{far}."
        sentence += f" {rest:.3f} of it belongs to no part." if abs(rest) >= 0.0005 else ""
        small = _resized(under.image, _SIDE)
        drawn = heatmaps.spotlight(small, shown, top, under.seen, smooth=under.smooth)
        return {
            self._image: gr.update(value=drawn, visible=True),
            self._legend: gr.update(value=view.lit_legend(top, sentence), visible=True),
        }

    def _draw(
        self, retriever: Retriever, under: Under, name: str = "", shown: np.ndarray | None = None
    ) -> dict[Any, Any]:
        """Updates that show an image, with a map of the method `name` and its legend if any."""
        drawn = gr.update(value=_drawn(under, shown, _SIDE), visible=True)
        if shown is None:
            return {self._image: drawn, self._legend: gr.update(visible=False)}
        method = retriever.methods[name]
        label = heatmaps.label(
            method.title, method.attention_is, shown, shares=method.attention_sums_to_one
        )
        label = f"{label} {drawn_as(retriever, name)}".strip()
        return {self._image: drawn, self._legend: gr.update(value=view.legend(label), visible=True)}


def _maps(retriever: Retriever, result: Result) -> Maps:
    methods = retriever.methods.names(result.spec)
    return {method: maps_of(retriever, result.image_id, method) for method in methods}


def _drawn(under: Under, shown: np.ndarray | None, side: int) -> Image.Image:
    """The image with a map over it, if any; `side` is its longer side in pixels."""
    image = _resized(under.image, side)
    if shown is None:
        return image
    return heatmaps.overlay(image, shown, under.seen, smooth=under.smooth)


def _resized(image: Image.Image, side: int) -> Image.Image:
    """An image whose longer side has so many pixels."""
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _split(retriever: Retriever, result: Result) -> Split | None:
    """The evidence of a hit; None of what answers no question, or cannot be split."""
    if not result.rank:
        return None
    try:
        question = result.question
        by_cell = not (question.more or question.less)
        terms = question.terms(retriever)
        return split(retriever, terms, result.spec, [result.image_id], by_cell=by_cell)
    except ValueError:
        return None


def _layers(
    retriever: Retriever, result: Result, lit: Split | None, maps: Maps, under: Under
) -> dict[str, list[Layer]]:
    """The small maps of evidence and of every method, and the plain image at the end."""
    groups: dict[str, list[Layer]] = {}
    if lit:
        image = _resized(under.image, _SMALL_SIDE)
        what = "words find" if lit.has_words else "picture asked with finds"
        groups[f"What the {what}"] = [
            Layer(
                f"{_EVIDENCE}{place}",
                name,
                name,
                heatmaps.spotlight(image, shown, top, under.seen, smooth=under.smooth),
            )
            for place, (name, shown, top) in enumerate(
                zip(lit.names(), lit.maps(0), lit.tops_of(0), strict=True)
            )
            if not lit.is_cell(place)
        ]
    for method, found in maps.items():
        won = set(result.won.get(method, ())) if result.rank and len(found) > 1 else set()
        group = groups.setdefault(retriever.methods[method].title, [])
        for place, shown in enumerate(found):
            name, short = view.view_names(len(found), place)
            small = _drawn(under, shown, _SMALL_SIDE)
            group.append(Layer(f"{method}:{place}", name, short, small, won == {place}))
    if len(groups) > 1:
        group = groups.setdefault("Without a map", [])
    small = _drawn(under, None, _SMALL_SIDE)
    group.append(Layer(PLAIN, "Picture", "Picture", small))
    return groups


def _facts(retriever: Retriever, result: Result, maps: Maps) -> list[str]:
    """What the head of the panel says of a hit."""
    title = retriever.methods.title(result.spec)
    if not result.rank:
        return [title]
    facts = [f"rank {result.rank}", f"score {result.score:.3f}", title]
    for method, won in result.won.items():
        views = len(maps[method])
        of = f"{retriever.methods[method].title}: " if len(result.won) > 1 else ""
        if views > 1 and len(set(won)) == 1:
            facts.append(f"{of}view {won[0] + 1} of {views} won")
        elif views > 1:
            each = ", ".join(
                f"view {place + 1} for “{term}”"
                for term, place in zip(result.terms, won, strict=True)
            )
            facts.append(f"{of}of {views} views, {each}")
    return facts
