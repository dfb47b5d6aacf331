"""The Search tab's widgets, and what happens between them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from app.search import filters, links
from app.search.links import Link
from app.search.questions import Answer, Question, algebra_example, answer, examples, remember
from app.search.retriever import Retriever
from app.server.uploads import path_of
from app.tabs.events import connect, on_refresh
from app.tabs.evidence import split
from app.tabs.html import line, problem
from app.tabs.images import listed
from app.tabs.search import evidence, view
from app.tabs.search.evidence import Hits
from app.tabs.search.inspector import Inspector
from app.tabs.search.question import (
    Inputs,
    filter_drawer,
    filters_of,
    has_several_views,
    looked_for,
    method_choices,
)
from app.tabs.search.view import Result
from app.tabs.session import Session
from app.tabs.sharing import ASK_FIRST, COPIES, link, share
from app.tabs.widgets import chips, choosable, fill, preview, question_row, upload_box

_CHIPS = 5
_COUNT = 12
_MOST = 60
_FACTS = 4  # facts of a collection that can be filtered by
_HEAVIEST = 3.0
_TAB = "search"
_NO_LINK = {
    "upload": "A link cannot hold an uploaded picture.",
    "words": "This question is too long for a link.",
    "image": "This question is too long for a link.",
}
# On a narrow screen the panel lies below the results.
_SCROLL_TO_INSPECTOR = """() => {
    const panel = document.getElementById("pv-inspector");
    if (view.getBoundingClientRect().top > window.innerHeight * 0.7)
        view.scrollIntoView({behavior: "smooth", block: "start"});
}"""


class SearchTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, _: gr.Tab) -> None:
        self._session = session
        self._current = gr.State(Question())
        self._path = gr.State("")  # of the uploaded image that is part of the next question
        self._questions = gr.State(())
        self._shown = gr.State([])  # the Result of each image in the grid
        self._hits = gr.State(None)  # those of them that answer a question
        self._lay_out_question()
        self._lay_out_drawers()
        with gr.Row(elem_id="pv-results"):
            with gr.Column(scale=3, min_width=320):
                self._lay_out_answer()
            with gr.Column(scale=2, min_width=320, elem_id="pv-inspector"):
                self._inspector = Inspector(session)
        self._inputs = [
            self._method, self._count, self._questions, self._path, self._weight, *self._facts,
        ]  # fmt: skip
        self._outputs = [
            self._current, self._path, self._questions, self._shown, self._hits, self._line,
            self._link, self._captions, self._grid, self._words, self._upload, self._weight,
            self._history, self._history_drawer, self._filter_drawer,
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
        self._chips = chips("pv-chips", _CHIPS)
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
                self._upload = upload_box("pv-upload")
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
                drawn = view.history({})
                self._history, self._earlier = choosable("search/history", "pv-history", drawn)
            with gr.Accordion("What am I looking at?", open=False, elem_id="pv-about"):
                self._about = gr.HTML()

    def _lay_out_answer(self) -> None:
        with gr.Row(elem_classes="pv-answer-row"):
            self._line = gr.HTML(line("One moment …"), elem_id="pv-answer")
            self._link = share(_TAB)
        self._captions = gr.HTML(visible=False)
        self._evidence = gr.HTML("", elem_id="pv-evidence", js_on_load=evidence.SCRIPT)
        self._grid, self._tile = choosable("search/tiles", "pv-grid")

    def _connect_questions(self) -> None:
        pack = self._session.pack
        self._on(self._words.submit, self.by_words, [self._words], "show_words")
        self._on(self._go.click, self.by_words, [self._words], "show_words_button")
        for i, chip in enumerate(self._chips):
            self._on(chip.click, self.by_words, [chip], f"show_example_{i + 1}")
        # Unprocessed: gradio would open the image itself, without our limits and our sentences.
        given = [self._upload, self._words]
        self._on(self._upload.upload, self.by_upload, given, "show_upload", preprocess=False)
        self._on(self._upload.clear, self.without_upload, [self._words], "show_without_upload")
        more = self._inspector.more
        self._on(more.click, self.by_image, [self._inspector.result], "show_similar")
        self._on(self._earlier.select, self.by_history, [self._earlier], "show_earlier")
        for event, name in (
            (self._method.input, "show_again"),
            (self._count.input, "show_again_count"),
            *((fact.input, f"show_again_fact{i}") for i, fact in enumerate(self._facts)),
        ):
            self._on(event, self.again, [self._current], name)
        self._on(self._weight.input, self.reweigh, [self._current], "show_again_weight")
        kept = [self._questions, self._history, self._history_drawer]
        on_refresh([(self._history.forget, "questions")], self.forget, [], kept, "forget")
        load = self._session.blocks.load
        connect(load, self.open, [pack], self._page, "search_open", question=True)

    def _connect_rest(self) -> None:
        looked = [self._session.pack, self._shown, self._tile]
        opened = connect(
            self._tile.select,
            self.look,
            looked,
            self._inspector.outputs,
            "inspect",
            line=self._inspector.head,
            question=True,
        )
        opened.then(None, js=_SCROLL_TO_INSPECTOR, api_visibility="private")
        split = [self._session.pack, self._hits]
        found = self._hits.change
        connect(found, self.split, split, [self._evidence], "show_evidence", question=True)
        swapped = [self._session.pack, self._questions]
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
        connect(
            event,
            handler,
            [self._session.pack, *inputs, *self._inputs],
            self._outputs,
            name,
            line=self._line,
            preprocess=preprocess,
            question=True,
        )

    def by_words(self, key: str, words: str, *given: Any) -> dict[Any, Any]:
        """Answers words, typed or an example, together with an uploaded image if there is one."""
        inputs = Inputs.of(given)
        question = Question("words", words)
        if inputs.path:
            question = Question("upload", words, inputs.path, weight=inputs.weight)
        return {self._words: words, **self.answer(key, question, inputs)}

    def by_upload(
        self, key: str, upload: dict[str, Any] | None, words: str, *given: Any
    ) -> dict[Any, Any]:
        """Answers an uploaded image, and shows it as it was understood: upright, in RGB."""
        inputs = Inputs.of(given)
        path = path_of(upload)
        shown = preview(path)
        question = Question("upload", words or "", path, weight=inputs.weight)
        return {
            self._upload: shown,
            self._path: "" if shown is None else path,
            **self.answer(key, question, inputs),
        }

    def without_upload(self, key: str, words: str, *given: Any) -> dict[Any, Any]:
        """Answers the words alone once the uploaded image was taken away."""
        question = Question("words", words) if words.strip() else Question()
        return {self._path: "", **self.answer(key, question, Inputs.of(given))}

    def by_image(self, key: str, result: Result | None, *given: Any) -> dict[Any, Any]:
        """Answers the image being looked at."""
        question = Question() if result is None else Question("image", image_id=result.image_id)
        return {**self._question(question), **self.answer(key, question, Inputs.of(given))}

    def by_history(self, key: str, name: str, *given: Any) -> dict[Any, Any]:
        """Answers an earlier question again, as things are chosen now."""
        inputs = Inputs.of(given)
        question = next((one for one in inputs.questions if one.key == name), Question())
        return {**self._question(question), **self.answer(key, question, inputs)}

    def again(self, key: str, question: Question, *given: Any) -> dict[Any, Any]:
        """Answers the present question after something beside it was changed."""
        return self.answer(key, question, Inputs.of(given))

    def reweigh(self, key: str, question: Question, *given: Any) -> dict[Any, Any]:
        """Answers the present question with another weight, if that changes anything."""
        inputs = Inputs.of(given)
        if question.kind != "upload" or not question.words.strip():
            return {self._current: question}
        return self.answer(key, replace(question, weight=inputs.weight), inputs)

    def answer(self, key: str, question: Question, inputs: Inputs) -> dict[Any, Any]:
        """Answers any question; what goes wrong becomes a sentence above the results."""
        try:
            retriever = self._session.retriever(key)
            wanted = filters_of(retriever, inputs.values)
            answered = answer(retriever, question, inputs.method, inputs.count, wanted)
        except ValueError as error:
            return {self._current: question, self._line: problem(str(error))}
        captions = view.captions("Captions that fit", answered.captions)
        shown, trouble = self._show(retriever, answered, inputs.method, question)
        answered = replace(answered, details=(*answered.details, trouble))
        query = links.write(question, inputs.method, inputs.count, wanted)
        hint = COPIES if query else _NO_LINK.get(question.kind, ASK_FIRST)
        if not query and question.kind in _NO_LINK:
            answered = replace(answered, details=(*answered.details, _NO_LINK[question.kind]))
        return {
            self._current: question,
            self._line: view.answer_line(answered),
            self._link: link(_TAB, query, hint),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self._filter_drawer: filter_drawer(wanted),
            **self._list(remember(inputs.questions, question)),
            **shown,
        }

    def look(self, key: str, shown: list[Result], image_id: Any) -> dict[Any, Any]:
        """Opens the image that was clicked, unless the results were replaced since."""
        result = next((one for one in shown if one.image_id == image_id), None)
        if result is None:
            return self._inspector.clear()
        try:
            return self._inspector.show(key, result)
        except ValueError as error:
            return self._inspector.complain(str(error))

    def split(self, key: str, hits: Hits | None) -> dict[Any, Any]:
        """Shows what the words of the question bring to each hit."""
        if hits is None:
            return {self._evidence: ""}
        retriever = self._session.retriever(key)
        try:
            terms = hits.question.terms(retriever)
            found = split(retriever, terms, hits.spec, hits.image_ids, by_cell=True)
        except ValueError as error:
            return {self._evidence: line(str(error))}
        return {self._evidence: evidence.bar(found, hits, retriever, terms[0].image)}

    def forget(self) -> dict[Any, Any]:
        """Empties the history."""
        return self._list(())

    def open(self, key: str, request: gr.Request) -> dict[Any, Any]:
        """Fits the tab to the visitor's pack, and asks what the page's address holds."""
        retriever = self._session.retriever(key)
        link = links.read(request.query_params.multi_items(), retriever, _MOST)
        if link.question.kind == "sample":  # what is typed or uploaded meanwhile stays
            return self._start(key, link)
        return {**self._question(link.question), **self._start(key, link)}

    def swap(self, key: str, questions: tuple[Question, ...]) -> dict[Any, Any]:
        """Fits the tab to another pack; its images are others, what was asked in words stays."""
        kept = tuple(one for one in questions if one.kind != "image")
        return {**self._question(Question()), **self._start(key, Link(), kept)}

    def _start(self, key: str, link: Link, questions: tuple[Question, ...] = ()) -> dict[Any, Any]:
        retriever = self._session.retriever(key)
        method, count = link.method or retriever.methods.best, link.count or _COUNT
        known = filters.offered(retriever.collection)
        facts = dict(list(known.items())[:_FACTS])
        values = tuple(list(link.filters.wanted.get(fact, [])) for fact in facts)
        inputs = Inputs(method, count, questions, "", 1.0, values)
        started = self.answer(key, link.question, inputs)
        if link.problems:
            started[self._line] = problem(*link.problems) + started[self._line]
        return {
            **started,
            self._method: gr.Dropdown(method_choices(retriever, method), value=method),
            self._count: count,
            self._about: view.about(retriever.methods),
            # sentences to try, and at the end a query of several terms
            **fill(self._chips, [*examples(retriever, _CHIPS - 1), algebra_example(retriever)]),
            **self._filters(facts, values),
            self._filter_drawer: filter_drawer(link.filters, visible=bool(facts)),
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

    def _question(self, question: Question) -> dict[Any, Any]:
        """Shows a question where questions are asked."""
        return {
            self._words: question.words,
            self._path: question.path,
            self._upload: preview(question.path) if question.path else None,
            self._weight: question.weight,
        }

    def _list(self, questions: tuple[Question, ...]) -> dict[Any, Any]:
        """Shows the history."""
        label = f"Earlier questions ({len(questions)})" if questions else "Earlier questions"
        return {
            self._questions: questions,
            self._history: view.history({one.key: one.title for one in questions}),
            self._history_drawer: gr.Accordion(label=label),
        }

    def _show(
        self, retriever: Retriever, answered: Answer, method: str, question: Question
    ) -> tuple[dict[Any, Any], str]:
        """Fills the grid and closes what was open; images that are gone are left out.

        Returns:
            Also what is wrong with the disk, where images are missing because of it.
        """
        found, words = [], looked_for(question)
        images, trouble = listed(retriever, [hit.image_id for hit in answered.hits])
        several = has_several_views(retriever, method)
        several = several and not self._session.meters.collapsed(retriever, method)
        for place, hit in enumerate(answered.hits):
            image = images[hit.image_id]
            if image.thumbnail is None:
                continue
            result = Result(
                hit.image_id,
                image,
                method,
                hit.rank,
                hit.score,
                hit.view,
                several,
                hit.image_id in answered.satisfying,
                answered.terms,
                {name: tuple(won[:, place].tolist()) for name, won in answered.winners.items()},
                words,
                question,
            )
            found.append(result)
        grid = "" if trouble and not found else view.tiles(found)
        updates = {self._grid: grid, self._shown: found, self._hits: Hits.of(found)}
        return {**updates, **self._inspector.clear()}, trouble
