"""The Search tab's widgets, and what happens between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app import filters, links, panels
from app.api.replies import MODEL_QUEUE
from app.asking import Answer, Ask, algebra_example, answer, examples
from app.history import identify, remember, title
from app.links import Link
from app.pictures import PictureError
from app.retriever import Retriever
from app.session import Session
from app.tabs.events import on_question, on_refresh
from app.tabs.search import panel
from app.tabs.search.inspector import Inspector, Subject
from app.tabs.search.question import (
    Choices,
    filter_drawer,
    has_several_views,
    looked_for,
    method_choices,
    preview,
    wanted_of,
)
from app.tabs.sharing import ASK_FIRST, COPIES, link, share
from app.tabs.widgets import choosable, question_row

_CHIPS = 5
_COUNT = 12
_MOST = 60
_FACTS = 4  # facts of a collection that can be filtered by
_HEAVIEST = 3.0
_TAB = "search"
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
        self._words, self._go = question_row(
            "pv",
            "Search",
            "What should the picture show?",
            "Describe a picture, or combine: 2: dog + beach - people",
            autofocus=True,
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
                drawn = panel.history({})
                self._history, self._earlier = choosable(panel.HISTORY_JS, "pv-history", drawn)
            with gr.Accordion("What am I looking at?", open=False, elem_id="pv-about"):
                self._about = gr.HTML()

    def _lay_out_answer(self) -> None:
        with gr.Row(elem_classes="pv-answer-row"):
            self._line = gr.HTML(panels.line("One moment …"), elem_id="pv-answer")
            self._link = share(_TAB)
        self._captions = gr.HTML(visible=False)
        self._grid, self._tile = choosable(panel.TILES_JS, "pv-grid")

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
        self._on(self._earlier.select, self.by_history, [self._earlier], "show_earlier")
        for event, name in (
            (self._method.input, "show_again"),
            (self._count.input, "show_again_count"),
            *((fact.input, f"show_again_fact{i}") for i, fact in enumerate(self._facts)),
        ):
            self._on(event, self.again, [self._ask], name)
        self._on(self._weight.input, self.reweigh, [self._ask], "show_again_weight")
        kept = [self._asked, self._history, self._history_drawer]
        on_refresh([(self._history.forget, "questions")], self.forget, [], kept, "forget")
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
        looked = [self._session.pack, self._shown, self._tile]
        opened = on_question(
            self._tile.select,
            self.look,
            looked,
            self._inspector.outputs,
            "inspect",
            line=self._inspector.head,
        )
        opened.then(None, js=_SCROLL_TO_INSPECTOR, api_visibility="private")
        swapped = [self._session.pack, self._asked]
        on_refresh([(self._session.pack.change, "swap")], self.swap, swapped, self._page, "search")

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
        on_question(
            event,
            handler,
            [self._session.pack, *inputs, *self._choices],
            self._outputs,
            name,
            line=self._line,
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
        shown = preview(picture)
        ask = replace(picture, words=words or "", weight=choices.weight)
        return {
            self._upload: shown,
            self._picture: Ask() if shown is None else picture,
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

    def by_history(self, key: str, name: str, *given: Any) -> dict[Any, Any]:
        """Answers an earlier question again, as things are chosen now."""
        choices = Choices.of(given)
        ask = next((ask for ask in choices.asked if identify(ask) == name), Ask())
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
            wanted = wanted_of(retriever, choices.values)
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
            self._link: link(_TAB, query, COPIES if query else _NO_LINK.get(ask.kind, ASK_FIRST)),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self._filter_drawer: filter_drawer(wanted),
            **self._list(remember(choices.asked, ask)),
            **self._show(retriever, answered, choices.method, looked_for(ask)),
        }

    def look(self, key: str, shown: list[Subject], image_id: Any) -> dict[Any, Any]:
        """Opens the picture that was clicked, unless the results were replaced since."""
        subject = next((one for one in shown if one.image_id == image_id), None)
        if subject is None:
            return self._inspector.clear()
        try:
            return self._inspector.show(key, subject)
        except ValueError as error:
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
            self._method: gr.Dropdown(method_choices(retriever, method), value=method),
            self._count: count,
            self._about: panel.about(retriever.runtime.methods),
            **self._offer(retriever),
            **self._filters(facts, values),
            self._filter_drawer: filter_drawer(link.wanted, visible=bool(facts)),
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
            self._upload: preview(picture),
            self._weight: ask.weight,
        }

    def _list(self, asked: tuple[Ask, ...]) -> dict[Any, Any]:
        """Shows the history."""
        label = f"Earlier questions ({len(asked)})" if asked else "Earlier questions"
        return {
            self._asked: asked,
            self._history: panel.history({identify(ask): title(ask) for ask in asked}),
            self._history_drawer: gr.Accordion(label=label),
        }

    def _show(
        self, retriever: Retriever, answered: Answer, method: str, words: str
    ) -> dict[Any, Any]:
        """Fills the grid and closes what was open; pictures that are gone are left out."""
        found, shown = [], []
        for place, hit in enumerate(answered.hits):
            try:
                path = retriever.thumbnail(hit.image_id)
            except PictureError:
                continue
            views = {name: tuple(won[:, place].tolist()) for name, won in answered.winners.items()}
            picture = retriever.picture(hit.image_id)
            caption = picture.captions[0] if picture.captions else Path(picture.file).name
            badge = hit.view if has_several_views(retriever, method) else None
            satisfies = hit.image_id in answered.satisfying
            found.append(
                panel.Tile(hit.image_id, path, caption, hit.rank, hit.score, badge, satisfies)
            )
            subject = Subject(hit.image_id, method, hit.rank, hit.score, hit.view)
            shown.append(replace(subject, terms=answered.terms, won=views, words=words))
        return {self._grid: panel.tiles(found), self._shown: shown, **self._inspector.clear()}
