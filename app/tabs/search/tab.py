"""The Search tab's widgets, and what happens between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from app import filters, links, panels
from app.api.replies import MODEL_QUEUE
from app.asking import Answer, Ask, algebra_example, answer, examples
from app.filters import Wanted
from app.history import remember, title
from app.links import Link
from app.pictures import PictureError, open_picture
from app.retriever import Retriever
from app.session import Session
from app.tabs.search import panel
from app.tabs.search.inspector import Inspector, Subject

_CHIPS = 5
_COUNT = 12
_MOST = 60
_FACTS = 4  # facts of a collection that can be filtered by
_ENSEMBLES = 3
_HEAVIEST = 3.0
_PREVIEW = 480  # pixels of an uploaded picture's longer side as shown
_COPIES = "Copies the page's address, which holds the question, the method and the filters"
_ASK_FIRST = "Ask something first: the page's address then holds the question"
_NO_LINK = {
    "upload": "A link cannot hold an uploaded picture.",
    "words": "This question is too long for a link.",
    "picture": "This question is too long for a link.",
}
# On a narrow screen the panel lies below the results.
_SCROLL_TO_INSPECTOR = """() => {
    const panel = document.getElementById("pv-inspector");
    if (panel.getBoundingClientRect().top > window.innerHeight * 0.7)
        panel.scrollIntoView({behavior: "smooth", block: "start"});
}"""


def build(session: Session, _: gr.Tab) -> None:
    """Lays out the tab and connects it."""
    SearchTab(session)


@dataclass(frozen=True)
class Choices:
    """What stands beside a question, in the order of `SearchTab._choices`.

    Attributes:
        method: a method or an ensemble.
        count: how many pictures.
        asked: the questions so far.
        picture: the uploaded picture that is part of the next question, or a sample for none.
        weight: of that picture.
        values: what is wanted of each fact, in the order of `filters.offered`.
    """

    method: str
    count: int
    asked: tuple[Ask, ...]
    picture: Ask
    weight: float
    values: tuple[list[str], ...]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Choices:
        """From the values of the widgets."""
        method, count, asked, picture, weight, *values = given
        return cls(method, count, tuple(asked), picture, weight, tuple(v or [] for v in values))


class SearchTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = gr.State(Ask())
        self._picture = gr.State(Ask())
        self._asked = gr.State(())
        self._shown = gr.State([])  # the Subject of each picture in the grid
        self._lay_out_question()
        self._lay_out_drawers()
        with gr.Row(elem_id="pv-results"):
            with gr.Column(scale=3, min_width=320):
                self._lay_out_answer()
            with gr.Column(scale=2, min_width=320, elem_id="pv-inspector"):
                self._inspector = Inspector(session)
        self._choices = [
            self._method, self._count, self._asked, self._picture, self._weight, *self._facts,
        ]  # fmt: skip
        self._outputs = [
            self._ask, self._picture, self._asked, self._shown, self._line, self._link,
            self._captions, self._grid, self._words, self._upload, self._weight, self._history,
            self._history_drawer, self._filter_drawer,
            *self._inspector.outputs,
        ]  # fmt: skip
        self._connect_questions()
        self._connect_rest()

    def _lay_out_question(self) -> None:
        with gr.Row(elem_id="pv-question"):
            self._words = gr.Textbox(
                placeholder="Describe a picture, or combine: 2: dog + beach - people",
                label="What should the picture show?",
                show_label=False,
                container=False,
                lines=1,
                max_lines=1,
                scale=6,
                autofocus=True,
                elem_id="pv-words",
            )
            self._go = gr.Button(
                "Search", variant="primary", scale=1, min_width=96, elem_id="pv-go"
            )
        with gr.Row(elem_id="pv-chips"):
            self._chips = [
                gr.Button("…", size="sm", min_width=40, elem_classes="pv-chip")
                for _ in range(_CHIPS)
            ]
        with gr.Row(elem_id="pv-choices"):
            self._method = gr.Dropdown([], label="Method", min_width=240, elem_id="pv-method")
            self._count = gr.Slider(
                1, _MOST, _COUNT, step=1, label="Results", min_width=240, elem_id="pv-count"
            )

    def _lay_out_drawers(self) -> None:
        with gr.Row(elem_id="pv-drawers"):
            with gr.Accordion("Filters", open=False, elem_id="pv-filters") as drawer:
                self._filter_drawer = drawer
                with gr.Row():
                    self._facts = [
                        gr.Dropdown(multiselect=True, visible=False, elem_id=f"pv-fact-{i}")
                        for i in range(_FACTS)
                    ]
            with gr.Accordion("A picture of yours", open=False, elem_id="pv-own"):
                self._upload = gr.Image(
                    label="A picture of yours",
                    show_label=False,
                    sources=["upload", "clipboard"],
                    height=200,
                    elem_id="pv-upload",
                )
                self._weight = gr.Slider(
                    0.1,
                    _HEAVIEST,
                    1.0,
                    step=0.1,
                    label="Weight of the picture beside words",
                    info="Its scores are multiplied by this and added to those of the words above.",
                    elem_id="pv-weight",
                )
            with gr.Accordion("Earlier questions", open=False, elem_id="pv-earlier") as drawer:
                self._history_drawer = drawer
                self._history = gr.HTML(panel.history([]), js_on_load=panel.HISTORY_JS)
            with gr.Accordion("What am I looking at?", open=False, elem_id="pv-about"):
                self._about = gr.HTML()

    def _lay_out_answer(self) -> None:
        with gr.Row(elem_id="pv-answer-row"):
            self._line = gr.HTML(panels.line("One moment …"), elem_id="pv-answer")
            self._link = gr.HTML(
                panel.link("", _ASK_FIRST),
                elem_id="pv-share",
                js_on_load=panel.LINK_JS,
            )
        self._captions = gr.HTML(visible=False)
        self._grid = gr.HTML(elem_id="pv-grid", js_on_load=panel.TILES_JS)

    def _connect_questions(self) -> None:
        pack = self._session.pack
        self._on(self._words.submit, self.by_words, [self._words], "show_words")
        self._on(self._go.click, self.by_words, [self._words], "show_words_button")
        for i, chip in enumerate(self._chips):
            self._on(chip.click, self.by_words, [chip], f"show_example_{i + 1}")
        # Unprocessed: gradio would open the picture itself, without our limits and our sentences.
        given = [self._upload, self._words]
        self._on(self._upload.upload, self.by_upload, given, "show_upload", preprocess=False)
        self._on(self._upload.clear, self.without_upload, [self._words], "show_without_upload")
        more = self._inspector.more
        self._on(more.click, self.by_picture, [self._inspector.subject], "show_similar")
        self._on(self._history.select, self.by_history, [], "show_earlier")
        for event, name in (
            (self._method.input, "show_again"),
            (self._count.input, "show_again_count"),
            *((fact.input, f"show_again_fact{i}") for i, fact in enumerate(self._facts)),
        ):
            self._on(event, self.again, [self._ask], name)
        self._on(self._weight.input, self.reweigh, [self._ask], "show_again_weight")
        self._history.forget(
            self.forget,
            None,
            [self._asked, self._history, self._history_drawer],
            api_name="forget_questions",
            api_visibility="undocumented",
            show_progress="hidden",
        )
        self._session.blocks.load(
            self.open,
            pack,
            self._page,
            api_name="search_open",
            api_visibility="undocumented",
            concurrency_id=MODEL_QUEUE,
            show_progress="hidden",
        )

    def _connect_rest(self) -> None:
        opened = self._grid.select(
            self.look,
            [self._session.pack, self._shown],
            self._inspector.outputs,
            api_name="inspect",
            api_visibility="undocumented",
            concurrency_id=MODEL_QUEUE,
            show_progress="minimal",
        )
        opened.then(None, js=_SCROLL_TO_INSPECTOR, api_visibility="private")
        self._session.pack.change(
            self.swap,
            [self._session.pack, self._asked],
            self._page,
            api_name="search_swap",
            api_visibility="undocumented",
            show_progress="hidden",
        )

    @property
    def _page(self) -> list[Any]:
        """Everything that depends on the visitor's pack."""
        return [
            *self._outputs, self._method, self._count, self._about, *self._chips, *self._facts,
        ]  # fmt: skip

    def _on(
        self, event: Any, handler: Any, inputs: Sequence[Any], name: str, preprocess: bool = True
    ) -> None:
        """Connects a question to its answer."""
        event(
            handler,
            [self._session.pack, *inputs, *self._choices],
            self._outputs,
            api_name=name,
            api_visibility="undocumented",
            concurrency_id=MODEL_QUEUE,
            show_progress="minimal",
            show_progress_on=[self._line],
            trigger_mode="always_last",
            preprocess=preprocess,
        )

    def by_words(self, key: str, words: str, *given: Any) -> dict[Any, Any]:
        """Answers words, typed or an example, together with an uploaded picture if there is one."""
        choices = Choices.of(given)
        ask = Ask("words", words=words)
        if choices.picture.pictured:
            ask = replace(choices.picture, words=words, weight=choices.weight)
        return {self._words: words, **self.answer(key, ask, choices)}

    def by_upload(
        self, key: str, upload: dict[str, Any] | None, words: str, *given: Any
    ) -> dict[Any, Any]:
        """Answers an uploaded picture, and shows it as it was understood: upright, in RGB."""
        choices = Choices.of(given)
        picture = Ask("upload", path=(upload or {}).get("path") or "")
        preview = _preview(picture)
        ask = replace(picture, words=words or "", weight=choices.weight)
        return {
            self._upload: preview,
            self._picture: Ask() if preview is None else picture,
            **self.answer(key, ask, choices),
        }

    def without_upload(self, key: str, words: str, *given: Any) -> dict[Any, Any]:
        """Answers the words alone once the uploaded picture was taken away."""
        ask = Ask("words", words=words) if words.strip() else Ask()
        return {self._picture: Ask(), **self.answer(key, ask, Choices.of(given))}

    def by_picture(self, key: str, subject: Subject | None, *given: Any) -> dict[Any, Any]:
        """Answers the picture being looked at."""
        ask = Ask() if subject is None else Ask("picture", image_id=subject.image_id)
        return {**self._question(ask), **self.answer(key, ask, Choices.of(given))}

    def by_history(self, key: str, event: gr.SelectData, *given: Any) -> dict[Any, Any]:
        """Answers an earlier question again, as things are chosen now."""
        choices = Choices.of(given)
        place = int(event.index)
        ask = choices.asked[place] if 0 <= place < len(choices.asked) else Ask()
        return {**self._question(ask), **self.answer(key, ask, choices)}

    def again(self, key: str, ask: Ask, *given: Any) -> dict[Any, Any]:
        """Answers the present question after something beside it was changed."""
        return self.answer(key, ask, Choices.of(given))

    def reweigh(self, key: str, ask: Ask, *given: Any) -> dict[Any, Any]:
        """Answers the present question with another weight, if that changes anything."""
        choices = Choices.of(given)
        if ask.kind != "upload" or not ask.words.strip():
            return {self._ask: ask}
        return self.answer(key, replace(ask, weight=choices.weight), choices)

    def answer(self, key: str, ask: Ask, choices: Choices) -> dict[Any, Any]:
        """Answers any question; what goes wrong becomes a sentence above the results."""
        try:
            retriever = self._session.retriever(key)
            wanted = _wanted(retriever, choices.values)
            answered = answer(retriever, ask, choices.method, choices.count, wanted)
        except ValueError as error:
            return {self._ask: ask, self._line: panels.problem(str(error))}
        captions = panels.caption_hits(answered.captions)
        query = links.write(ask, choices.method, choices.count, wanted)
        if not query and ask.kind in _NO_LINK:
            answered = replace(answered, details=(*answered.details, _NO_LINK[ask.kind]))
        return {
            self._ask: ask,
            self._line: panel.answer_line(answered),
            self._link: panel.link(query, _COPIES if query else _NO_LINK.get(ask.kind, _ASK_FIRST)),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self._filter_drawer: _filter_drawer(wanted),
            **self._list(remember(choices.asked, ask)),
            **self._show(retriever, answered, choices.method),
        }

    def look(self, key: str, shown: list[Subject], event: gr.SelectData) -> dict[Any, Any]:
        """Opens the picture that was clicked."""
        try:
            return self._inspector.show(key, shown[int(event.index)])
        except (ValueError, IndexError) as error:
            return self._inspector.complain(str(error))

    def forget(self) -> dict[Any, Any]:
        """Empties the history."""
        return self._list(())

    def open(self, key: str, request: gr.Request) -> dict[Any, Any]:
        """Fits the tab to the visitor's pack, and asks what the page's address holds."""
        retriever = self._session.retriever(key)
        return self._start(key, links.read(request.query_params.multi_items(), retriever, _MOST))

    def swap(self, key: str, asked: tuple[Ask, ...]) -> dict[Any, Any]:
        """Fits the tab to another pack; its pictures are others, what was asked in words stays."""
        kept = tuple(ask for ask in asked if ask.kind != "picture")
        return self._start(key, Link(), kept)

    def _start(self, key: str, link: Link, asked: tuple[Ask, ...] = ()) -> dict[Any, Any]:
        retriever = self._session.retriever(key)
        method, count = link.method or retriever.default_method, link.count or _COUNT
        known = filters.offered(retriever.collection)
        facts = dict(list(known.items())[:_FACTS])
        values = tuple(list(link.wanted.get(fact, [])) for fact in facts)
        choices = Choices(method, count, asked, Ask(), 1.0, values)
        started = {**self._question(link.ask), **self.answer(key, link.ask, choices)}
        if link.problems:
            sentences = "".join(map(panels.problem, link.problems))
            started[self._line] = sentences + started[self._line]
        return {
            **started,
            self._method: gr.Dropdown(_methods(retriever, method), value=method),
            self._count: count,
            self._about: panel.about(retriever.runtime.methods),
            **self._offer(retriever),
            **self._filters(facts, values),
            self._filter_drawer: _filter_drawer(link.wanted, visible=bool(facts)),
        }

    def _offer(self, retriever: Retriever) -> dict[Any, Any]:
        """Examples to try: sentences, and at the end a query of several terms."""
        offered = [*examples(retriever, _CHIPS - 1), algebra_example(retriever)]
        return {
            chip: gr.Button(words, visible=bool(words))
            for chip, words in zip(self._chips, offered, strict=True)
        }

    def _filters(
        self, facts: Mapping[str, Mapping[str, int]], values: Sequence[list[str]]
    ) -> dict[Any, Any]:
        """The dropdowns of the facts that there are."""
        updates: dict[Any, Any] = dict.fromkeys(self._facts, gr.Dropdown(value=[], visible=False))
        for box, (fact, counts), chosen in zip(self._facts, facts.items(), values, strict=False):
            choices = [(f"{value} ({count:,})", value) for value, count in counts.items()]
            updates[box] = gr.Dropdown(choices, value=chosen, label=fact.capitalize(), visible=True)
        return updates

    def _question(self, ask: Ask) -> dict[Any, Any]:
        """Shows a question where questions are asked."""
        picture = Ask("upload", path=ask.path) if ask.kind == "upload" else Ask()
        return {
            self._words: ask.words,
            self._picture: picture,
            self._upload: _preview(picture),
            self._weight: ask.weight,
        }

    def _list(self, asked: tuple[Ask, ...]) -> dict[Any, Any]:
        """Shows the history."""
        label = f"Earlier questions ({len(asked)})" if asked else "Earlier questions"
        return {
            self._asked: asked,
            self._history: panel.history([title(ask) for ask in asked]),
            self._history_drawer: gr.Accordion(label=label),
        }

    def _show(self, retriever: Retriever, answered: Answer, method: str) -> dict[Any, Any]:
        """Fills the grid and closes what was open; pictures that are gone are left out."""
        found, shown = [], []
        for place, hit in enumerate(answered.hits):
            try:
                path = retriever.thumbnail(hit.image_id)
            except PictureError:
                continue
            views = {name: tuple(won[:, place].tolist()) for name, won in answered.winners.items()}
            picture = retriever.picture(hit.image_id)
            words = picture.captions[0] if picture.captions else Path(picture.file).name
            badge = hit.view if _has_views(retriever, method) else None
            satisfies = hit.image_id in answered.satisfying
            found.append(panel.Tile(path, words, hit.rank, hit.score, badge, satisfies))
            shown.append(
                Subject(hit.image_id, method, hit.rank, hit.score, hit.view, answered.terms, views)
            )
        return {self._grid: panel.tiles(found), self._shown: shown, **self._inspector.clear()}


def _has_views(retriever: Retriever, spec: str) -> bool:
    """Whether a picture has several views, of which one can win."""
    names = retriever.methods_of(spec)
    shape = retriever.index.images[names[0]].shape
    return len(names) == 1 and shape is not None and shape[0] > 1


def _methods(retriever: Retriever, chosen: str) -> list[tuple[str, str]]:
    """What can be chosen as the method: (what is read, value)."""
    single = [(f"{m.title} ({m.paper})", name) for name, m in retriever.runtime.methods.items()]
    specs = dict.fromkeys(retriever.ensembles(_ENSEMBLES))
    if chosen not in retriever.runtime.methods:
        specs[chosen] = None
    return single + [(f"{retriever.title_of(spec)} (ensemble)", spec) for spec in specs]


def _filter_drawer(wanted: Wanted, visible: bool = True) -> gr.Accordion:
    """The drawer's label, which tells of filters that are set even while it is closed."""
    chosen = sum(map(len, wanted.values()))
    return gr.Accordion(label=f"Filters ({chosen})" if chosen else "Filters", visible=visible)


def _wanted(retriever: Retriever, values: Sequence[list[str]]) -> dict[str, list[str]]:
    """Filters by the names of their facts."""
    facts = zip(retriever.collection.facts, values, strict=False)
    return {fact: chosen for fact, chosen in facts if chosen}


def _preview(picture: Ask) -> Image.Image | None:
    """An uploaded picture as shown; None where there is none that can be."""
    if picture.kind != "upload":
        return None
    try:
        shown = open_picture(Path(picture.path))
    except PictureError:
        return None  # the answer says why
    shown.thumbnail((_PREVIEW, _PREVIEW))
    return shown
