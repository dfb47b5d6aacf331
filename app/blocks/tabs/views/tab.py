"""The Views tab's widgets, and what happens between them."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.blocks.server.uploads import path_of
from app.blocks.tabs.events import Event, connect, on_refresh
from app.blocks.tabs.html import line, problem
from app.blocks.tabs.session import Session
from app.blocks.tabs.sharing import COPIES, link, share
from app.blocks.tabs.views import charts, evidence, view
from app.blocks.tabs.views.question import (
    Current,
    Inputs,
    count_views,
    first_method,
    look_at,
    sample,
)
from app.blocks.tabs.widgets import (
    chips,
    choosable,
    fill,
    preview,
    question_row,
    script,
    upload_box,
)
from app.explain.lens import rank
from app.search import links
from app.search.answers import remark
from app.search.links import LookLink
from app.search.retriever import Retriever

_TAB = "views"
_NO_LINK = "A link cannot hold an uploaded picture, nor a very long text"
_CHIPS = 5  # captions of the image
_HITS = 12
_OPACITY = 60  # percent
_MODES = [("Overlay", "overlay"), ("Map alone", "raw"), ("Contours", "contour")]
_SET_MODE, _SET_OPACITY, _SET_OBJECTS = (
    f'(value) => {{ document.getElementById("pv-v-maps").{change}; }}'
    for change in (
        "dataset.mode = value",
        'style.setProperty("--pv-opacity", value / 100)',
        'dataset.objects = value ? "on" : "off"',
    )
)
_SCROLL_UP = """() => {
    const maps = document.getElementById("pv-v-maps");
    if (maps.getBoundingClientRect().top < 0) maps.scrollIntoView({behavior: "smooth"});
}"""
# Of HTML that a visitor changes: its value also holds what was changed.
_TEMPLATE = "${value.html}"
_EXPLAINED = (Path(__file__).parent / "explained.md").read_text("utf-8")


class ViewsTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, selected: Event) -> None:
        self._session = session
        self._selected = selected
        self._current = gr.State(Current())
        self._lay_out_question()
        self._lay_out_maps()
        self._lay_out_inside()
        self._lay_out_meter()
        with gr.Accordion("What am I looking at?", open=False):
            gr.Markdown(_EXPLAINED)
        self._inputs = [
            self._session.pack, self._current, self._words, self._method, self._knobs, self._lens,
        ]  # fmt: skip
        self._answer = [
            self._current, self._line, self._link, self._strip, self._number, *self._chips,
            self._maps, self._evidence, self._read, self._panels, self._hits,
        ]  # fmt: skip
        self._connect_question()
        self._connect_rest()

    def _lay_out_question(self) -> None:
        self._strip, self._strip_choice = choosable("views/pictures", "pv-v-pictures")
        with gr.Row(elem_id="pv-v-choices"):
            self._method = gr.Dropdown([], label="Method", min_width=220, elem_id="pv-v-method")
            self._number = gr.Number(
                label="Picture number", precision=0, minimum=0, min_width=120, elem_id="pv-v-number"
            )
            self._random = gr.Button("Another picture", min_width=120, elem_id="pv-v-random")
        self._words, self._go = question_row(
            "pv-v", "Look", "Text", "A sentence to look at beside the picture, or none"
        )
        self._chips = chips("pv-v-chips", _CHIPS, visible=False)
        with gr.Accordion("A picture of yours", open=False, elem_id="pv-v-own"):
            self._upload = upload_box("pv-v-upload")

    def _lay_out_maps(self) -> None:
        with gr.Row(elem_classes="pv-answer-row"):
            self._line = gr.HTML(line("One moment …"), elem_id="pv-v-answer")
            self._link, self._visited = share(_TAB, waits=True)
        with _section("What each view is made of: the paper's own maps", "pv-v-maps", open=True):
            with gr.Row(elem_id="pv-v-controls"):
                self._mode = gr.Radio(
                    _MODES, value="overlay", label="Show", min_width=260, elem_id="pv-v-mode"
                )
                self._opacity = gr.Slider(
                    0, 100, _OPACITY, step=5, label="Opacity of the map, %", min_width=180,
                    elem_id="pv-v-opacity",
                )  # fmt: skip
                self._objects = gr.Checkbox(
                    False, label="Outline known objects", min_width=180, elem_id="pv-v-objects-on"
                )
            self._maps = gr.HTML(elem_id="pv-v-grid")
        with _section("View lens"):
            self._lens = _changeable("pv-v-lens", "views/lens")
            self._hits, self._hits_choice = choosable("views/pictures", "pv-v-hits")
        with _section("Evidence: where the score comes from", open=True):
            self._evidence = gr.HTML(elem_id="pv-v-evidence", js_on_load=evidence.SCRIPT)
        with _section("What each view of the text is made of"):
            self._read = gr.HTML(elem_id="pv-v-read")

    def _lay_out_inside(self) -> None:
        with _section("Inside the method"):
            self._knobs = _changeable("pv-v-turns", "views/knobs")
            self._panels = gr.HTML(elem_id="pv-v-panels")

    def _lay_out_meter(self) -> None:
        with _section("View collapse"):
            self._meter = gr.HTML(elem_id="pv-v-meter")
        self._clock = gr.Timer(1.0, active=False)

    def _connect_question(self) -> None:
        self._on(self._words.submit, self.show, "views_words")
        self._on(self._go.click, self.show, "views_button")
        for i, chip in enumerate(self._chips):
            self._on(chip.click, self.by_caption, f"views_caption{i + 1}", [chip], [self._words])
        self._on(self._random.click, self.at_random, "views_random")
        self._on(self._number.input, self.by_number, "views_number", [self._number])
        self._on(self._strip_choice.select, self.by_number, "views_choose", [self._strip_choice])
        chosen = self._on(
            self._hits_choice.select, self.by_number, "views_choose_hit", [self._hits_choice]
        )
        chosen.then(None, js=_SCROLL_UP, api_visibility="private")
        uploaded = [self._upload]
        self._on(self._upload.upload, self.by_upload, "views_upload", uploaded, uploaded)
        anew = [self._knobs, self._lens, self._meter, self._clock]
        self._on(self._method.input, self.by_method, "views_method", [], anew)
        anew += [self._words, self._method]
        look, outputs = self._session.look, [*self._answer, *anew]
        for event, handler, name, given in (
            (self._session.blocks.load, self.open_by_link, "views_link", []),
            (self._selected, self.open, "views_open", [look]),
            (look.change, self.open, "views_follow_link", [look]),
            (self._session.pack.change, self.open, "views_swap", [look]),
            (self._visited.select, self.visit, "views_visit", [self._visited]),
        ):
            connect(
                event, handler, [*given, *self._inputs], outputs, name, line=self._line,
                question=True, preprocess=False,
            )  # fmt: skip

    def _connect_rest(self) -> None:
        turned = [self._panels, self._line]
        self._on(self._knobs.turn, self.turn, "views_turn", [], turned, alone=True)
        self._on(self._lens.weigh, self.weigh, "views_weigh", [], [self._hits], alone=True)
        followed = [self._session.pack, self._method]
        meter = [self._meter, self._clock]
        on_refresh([(self._clock.tick, "follow")], self.follow, followed, meter, "views")
        for widget, change in (
            (self._mode, _SET_MODE),
            (self._opacity, _SET_OPACITY),
            (self._objects, _SET_OBJECTS),
        ):
            widget.input(None, widget, js=change, api_visibility="private")

    def _on(
        self,
        event: Any,
        handler: Callable[..., dict[Any, Any]],
        name: str,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        *,
        alone: bool = False,
    ) -> Any:
        """Connects an event to what answers it.

        Nothing is preprocessed: gradio would open an image without our limits and our sentences,
        and refuse a method of the pack before, where another event's answer is on its way.

        Args:
            event: of a widget.
            handler: gets an `Inputs`, then the values of `inputs`.
            name: of the event.
            inputs: beside those of every question.
            outputs: beside those of every answer.
            alone: nothing but `outputs` is drawn.
        """
        count = len(self._inputs)

        def answer(*given: Any) -> dict[Any, Any]:
            return handler(Inputs.of(given[:count]), *given[count:])

        return connect(
            event,
            answer,
            [*self._inputs, *inputs],
            list(outputs) if alone else [*self._answer, *outputs],
            name,
            line=None if alone else self._line,
            preprocess=False,
            question=True,
        )

    def open_by_link(self, request: gr.Request, *given: Any) -> dict[Any, Any]:
        """Fills the tab where the page's address names it, which selects it without a click."""
        if request.query_params.get("tab") != _TAB:
            return {self._current: Inputs.of(given).current}
        return self.visit(str(request.query_params), *given)

    def visit(self, address: str, *given: Any) -> dict[Any, Any]:
        """Looks at what an address holds, as the visitor goes back to it."""
        named, _ = links.parts(address)
        inputs = Inputs.of(given)
        look = links.read_look(named, self._session.retriever(inputs.key))
        return self._follow(look, inputs, visited=address)

    def open(self, look: LookLink | None, *given: Any) -> dict[Any, Any]:
        """Fills the tab when it is first seen, for another pack, and as another tab asks.

        Several events may ask for this at once, in any order; all do the same.
        """
        inputs = Inputs.of(given)
        current = inputs.current
        if look is not None and look.token != current.token:
            inputs = replace(inputs, current=replace(current, token=look.token))
            return self._follow(look, inputs)
        if current.key == inputs.key:
            return {self._current: current}
        return self._follow(LookLink(), inputs)

    def _follow(
        self, look: LookLink, inputs: Inputs, *, visited: str | None = None
    ) -> dict[Any, Any]:
        """Looks at what a link holds; `visited` is the address that the visitor went back to."""
        retriever = self._session.retriever(inputs.key)
        image_id = look.image_id
        if image_id is None:
            image_id = next(iter(sample(retriever)), 0)
        method = look.method or first_method(retriever)
        words = look.words
        if words is None:
            captions = retriever.image(image_id).captions
            words = captions[0] if captions else inputs.words
        methods = retriever.methods
        choices = [(f"{m.title} ({m.paper})", name) for name, m in methods.items()]
        inputs = replace(inputs, words=words, method=method).at(image_id)
        opened = self.by_method(inputs)
        if visited is not None:
            query = links.write_look(image_id, method, words)
            opened[self._link] = link(_TAB, query, visited=visited)
        if look.problems:
            opened[self._line] = problem(*look.problems) + opened[self._line]
        return {self._words: words, self._method: gr.Dropdown(choices, value=method), **opened}

    def by_method(self, inputs: Inputs) -> dict[Any, Any]:
        """Looks with another method; its knobs and its lens begin anew."""
        try:
            retriever = self._session.retriever(inputs.key)
            method = retriever.methods.one(inputs.method)
        except ValueError as error:
            return self._complain(inputs, error)
        count, method_key = count_views(retriever, inputs.method), f"{inputs.key} {inputs.method}"
        return {
            **self.show(replace(inputs, settings={}, weights=None)),
            self._knobs: {"html": view.knobs(method.knobs, {})},
            self._lens: {"html": view.lens(method_key, count)},
            **self.follow(inputs.key, inputs.method),
        }

    def by_caption(self, inputs: Inputs, caption: Any) -> dict[Any, Any]:
        """Looks at one of the image's own captions."""
        caption = caption if isinstance(caption, str) else ""
        return {self._words: caption, **self.show(replace(inputs, words=caption))}

    def by_number(self, inputs: Inputs, number: Any) -> dict[Any, Any]:
        """Looks at the image of that number, typed or clicked."""
        known = isinstance(number, int | float) and abs(number) < 2**31
        return self.show(inputs.at(int(number) if known else -1))

    def at_random(self, inputs: Inputs) -> dict[Any, Any]:
        """Looks at any image."""
        shown = self._session.retriever(inputs.key).shown_images()
        return self.show(inputs.at(random.choice(shown).image_id if shown else 0))

    def by_upload(self, inputs: Inputs, upload: dict[str, Any] | None) -> dict[Any, Any]:
        """Looks at an uploaded image, and shows it as it was understood: upright, in RGB."""
        path = path_of(upload)
        return {self._upload: preview(path), **self.show(inputs.at(None, path))}

    def show(self, inputs: Inputs) -> dict[Any, Any]:
        """Looks; what goes wrong becomes a sentence above the maps."""
        try:
            retriever = self._session.retriever(inputs.key)
            shown, seen = look_at(retriever, inputs)
            how_read = remark(retriever, inputs.words) if inputs.words.strip() else ""
        except (ValueError, OSError) as error:
            return self._complain(inputs, error)
        method, current = retriever.methods[inputs.method], inputs.current
        score = "" if seen.score is None else f"score {seen.score:.3f}"
        alike = self._session.meters.collapsed(retriever, inputs.method)
        winner = "" if alike else view.winner(seen, method)
        query = links.write_look(current.image_id, inputs.method, inputs.words)
        captions = () if current.image_id is None else retriever.image(current.image_id).captions
        return {
            self._current: current,
            self._line: line(shown.name, method.title, score, winner, how_read),
            self._link: link(_TAB, query, COPIES if query else _NO_LINK),
            self._strip: view.strip(retriever, sample(retriever), current.image_id),
            self._number: current.image_id,
            **fill(self._chips, captions),
            self._maps: view.maps(seen, method, shown, alike=alike),
            self._evidence: evidence.draw(
                retriever,
                shown,
                current.image_id,
                inputs.method,
                inputs.words,
                len(seen.similarity),
            ),
            self._read: view.words(seen, method),
            self._panels: charts.cards(seen),
            **self._rank(retriever, inputs),
        }

    def turn(self, inputs: Inputs) -> dict[Any, Any]:
        """Draws the panels with other settings of the knobs."""
        try:
            _, seen = look_at(self._session.retriever(inputs.key), inputs)
        except (ValueError, OSError) as error:
            return {self._line: problem(str(error))}
        return {self._panels: charts.cards(seen)}

    def weigh(self, inputs: Inputs) -> dict[Any, Any]:
        """Ranks anew with other weights."""
        try:
            return self._rank(self._session.retriever(inputs.key), inputs)
        except ValueError as error:
            return {self._hits: problem(str(error))}

    def follow(self, key: str, method: Any) -> dict[Any, Any]:
        """Shows how far the view-collapse meter is."""
        try:
            retriever = self._session.retriever(key)
            retriever.methods.one(str(method))
        except ValueError as error:
            return {self._meter: problem(str(error)), self._clock: gr.Timer(active=False)}
        reading = self._session.meters.read(retriever, method)
        captioned = bool(retriever.collection.captions)
        return {
            self._meter: view.meter(reading, captioned),
            self._clock: gr.Timer(active=not reading.finished),
        }

    def _rank(self, retriever: Retriever, inputs: Inputs) -> dict[Any, Any]:
        """Updates of the ranking through the lens."""
        if not inputs.words.strip():
            sentence = "Type a sentence above, and the pictures it finds are ranked here."
            return {self._hits: charts.note(sentence)}
        try:
            count = count_views(retriever, inputs.method)
            weights = [1.0] * count if inputs.weights is None else inputs.weights
            found = rank(retriever, inputs.words, inputs.method, weights, _HITS)
        except ValueError as error:
            return {self._hits: problem(str(error))}
        drawn = view.ranking(retriever, found, inputs.current.image_id, count)
        return {self._hits: drawn}

    def _complain(self, inputs: Inputs, error: Exception) -> dict[Any, Any]:
        return {self._current: inputs.current, self._line: problem(str(error))}


@contextmanager
def _section(title: str, elem_id: str | None = None, *, open: bool = False) -> Iterator[None]:
    """A part of the tab; on a phone, its title opens and closes it."""
    with gr.Column(elem_id=elem_id, elem_classes="pv-v-section"):
        box = f'<input type="checkbox" {"checked" if open else ""}>'
        gr.HTML(f'<h2 class="pv-v-head"><label>{title}{box}</label></h2>')
        yield


def _changeable(elem_id: str, name: str) -> gr.HTML:
    """HTML whose value is {"html": ...} and, beside it, what the script of that name notes."""
    start = {"html": ""}
    return gr.HTML(start, html_template=_TEMPLATE, js_on_load=script(name), elem_id=elem_id)
