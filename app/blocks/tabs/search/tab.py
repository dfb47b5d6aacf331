"""The Search tab's widgets, and what happens between them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from app.blocks.server.uploads import path_of
from app.blocks.tabs.events import Event, connect
from app.blocks.tabs.html import line, problem
from app.blocks.tabs.search import view
from app.blocks.tabs.search.grid import PAGE, Grid
from app.blocks.tabs.search.history import History
from app.blocks.tabs.search.inspector import Inspector
from app.blocks.tabs.search.question import Inputs, filter_drawer, filters_of, method_choices
from app.blocks.tabs.search.results import chosen_of, meant, result_of
from app.blocks.tabs.search.view import Result
from app.blocks.tabs.session import Session
from app.blocks.tabs.sharing import ASK_FIRST, COPIES, link, share
from app.blocks.tabs.widgets import chips, fill, preview, question_row, upload_box
from app.search import filters, links
from app.search.answers import answer
from app.search.links import Link
from app.search.questions import Question, algebra_example, examples, remember

_CHIPS = 5
_FACTS = 4  # facts of a collection that can be filtered by
_HEAVIEST = 3.0
_TAB = "search"
_NO_LINK = {
    "upload": "A link cannot hold an uploaded picture.",
    "words": "This question is too long for a link.",
    "image": "This question is too long for a link.",
}


class SearchTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, _: Event) -> None:
        self._session = session
        self._current = gr.State(Question())
        self._path = gr.State("")  # of the uploaded image that is part of the next question
        self._lay_out_question()
        self._lay_out_drawers()
        with gr.Row(elem_id="pv-results"):
            with gr.Column(scale=3, min_width=320):
                self._lay_out_answer()
            with gr.Column(scale=2, min_width=320, elem_id="pv-inspector"):
                self._inspector = Inspector(session)
        self._inputs = [
            self._method, self._history.questions, self._path, self._weight, *self._facts,
        ]  # fmt: skip
        self._outputs = [
            self._current, self._path, self._line, self._link, self._captions,
            *self._grid.outputs, self._words, self._upload, self._weight,
            *self._history.outputs, self._filter_drawer,
            *self._inspector.outputs,
        ]  # fmt: skip
        self._connect_questions()
        self._grid.connect(self._current, self._inputs, self._inspector)

    def _lay_out_question(self) -> None:
        self._words, self._go = question_row(
            "pv",
            "Search",
            "What should the picture show?",
            "Describe a picture; combine terms with + and -, as in the last example",
            autofocus=True,
        )
        self._chips = chips("pv-chips", _CHIPS)

    def _lay_out_drawers(self) -> None:
        with gr.Row(elem_id="pv-drawers"):
            self._method = gr.Dropdown([], label="Method", elem_id="pv-method")
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
            self._history = History()
            with gr.Accordion("What am I looking at?", open=False, elem_id="pv-about"):
                self._about = gr.HTML()

    def _lay_out_answer(self) -> None:
        with gr.Row(elem_classes="pv-answer-row"):
            self._line = gr.HTML(line("One moment …"), elem_id="pv-answer")
            self._link, self._visited = share(_TAB)
        self._captions = gr.HTML(visible=False)
        self._grid = Grid(self._session)

    def _connect_questions(self) -> None:
        pack = self._session.pack
        self._on(self._words.submit, self.by_words, [self._words], "show_words")
        self._on(self._go.click, self.by_words, [self._words], "show_words_button")
        for i, chip in enumerate(self._chips):
            self._on(chip.click, self.by_words, [chip], f"show_example_{i + 1}")
        given = [self._upload, self._words]
        self._on(self._upload.upload, self.by_upload, given, "show_upload")
        self._on(self._upload.clear, self.without_upload, [self._words], "show_without_upload")
        looked = self._inspector
        self._on(looked.alone.click, self.by_image, [looked.result], "show_similar")
        for button, more, name in ((looked.like, True, "more"), (looked.unlike, False, "less")):
            given = [self._current, looked.result]
            self._on(button.click, partial(self.by_example, more), given, f"show_{name}_like")
        for more, button in self._grid.likes.items():
            given = [self._current, self._grid.shown, self._grid.picked]
            name = f"show_{'more' if more else 'less'}_like_these"
            self._on(button.click, partial(self.by_examples, more), given, name)
        earlier = self._history.chosen
        self._on(earlier.select, self.by_history, [earlier], "show_earlier")
        for event, name in (
            (self._method.input, "show_again"),
            *((fact.input, f"show_again_fact{i}") for i, fact in enumerate(self._facts)),
        ):
            self._on(event, self.again, [self._current, self._inspector.result], name)
        read = [self._current, self._inspector.result, self._session.read, self._words]
        self._on(self._session.read.change, self.when_read, read, "show_read")
        self._on(self._weight.input, self.reweigh, [self._current], "show_again_weight")
        everything, asked = self._everything, self._history.questions
        load, visit = self._session.blocks.load, self._visited.select
        connect(load, self.open, [pack, asked], everything, "search_open", question=True)
        given = [pack, self._visited, asked]
        connect(
            visit, self.visit, given, everything, "search_visit", line=self._line, question=True
        )
        given = [pack, asked, self._current]
        connect(pack.change, self.swap, given, everything, "search_swap", question=True)

    @property
    def _everything(self) -> list[Any]:
        """Everything that depends on the visitor's pack."""
        return [
            *self._outputs, self._method, self._about, *self._chips, *self._facts,
        ]  # fmt: skip

    def _on(self, event: Any, handler: Any, inputs: Sequence[Any], name: str) -> None:
        """Connects a question to its answer.

        Nothing is preprocessed: gradio would open an image without our limits and our sentences,
        and refuse a method that only the pack before has, which the page may still hold.
        """
        connect(
            event,
            handler,
            [self._session.pack, *inputs, *self._inputs],
            self._outputs,
            name,
            line=self._line,
            preprocess=False,
            question=True,
        )

    def by_words(self, key: str, words: Any, *given: Any) -> dict[Any, Any]:
        """Answers words, typed or an example, together with an uploaded image if there is one."""
        words, inputs = str(words or ""), Inputs.of(given)
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

    def without_upload(self, key: str, words: Any, *given: Any) -> dict[Any, Any]:
        """Answers the words alone once the uploaded image was taken away."""
        words = str(words or "")
        question = Question("words", words) if words.strip() else Question()
        return {self._path: "", **self.answer(key, question, Inputs.of(given))}

    def by_image(self, key: str, result: Result | None, *given: Any) -> dict[Any, Any]:
        """Answers the image being looked at."""
        question = Question() if result is None else Question("image", image_id=result.image_id)
        return {**self._question(question), **self.answer(key, question, Inputs.of(given))}

    def by_example(
        self, more: bool, key: str, question: Question, result: Result | None, *given: Any
    ) -> dict[Any, Any]:
        """Asks the same for images more, or less, like the one being looked at."""
        shown = [] if result is None else [result]
        ids = [one.image_id for one in shown]
        return self.by_examples(more, key, question, shown, ids, *given)

    def by_examples(
        self,
        more: bool,
        key: str,
        question: Question,
        shown: list[Result],
        picked: Any,
        *given: Any,
    ) -> dict[Any, Any]:
        """The same of several images that were picked."""
        if not (chosen := chosen_of(shown, picked)):
            return {self._current: question}
        try:
            question = question.with_examples(more, *(one.image_id for one in chosen))
        except ValueError as error:
            return {self._line: problem(str(error))}
        return self.answer(key, question, Inputs.of(given))

    def by_history(self, key: str, name: str, *given: Any) -> dict[Any, Any]:
        """Answers an earlier question again, as things are chosen now."""
        inputs = Inputs.of(given)
        question = next((one for one in inputs.questions if one.key == name), Question())
        return {**self._question(question), **self.answer(key, question, inputs)}

    def again(
        self, key: str, question: Question, looked: Result | None, *given: Any
    ) -> dict[Any, Any]:
        """Answers the present question after something beside it was changed.

        The image that is open stays open.
        """
        opened = None if looked is None else looked.image_id
        return self.answer(key, question, Inputs.of(given), opened)

    def when_read(
        self,
        key: str,
        question: Question,
        looked: Result | None,
        read: str,
        words: str,
        *given: Any,
    ) -> dict[Any, Any]:
        """Answers the present question again once all images are read, unless another is typed."""
        if read != f"read {key}" or words.split() != question.words.split():
            return {self._line: gr.skip()}
        return self.again(key, question, looked, *given)

    def reweigh(self, key: str, question: Question, *given: Any) -> dict[Any, Any]:
        """Answers the present question with another weight, if that changes anything."""
        inputs = Inputs.of(given)
        if question.kind != "upload" or not question.words.strip():
            return {self._current: question}
        return self.answer(key, replace(question, weight=inputs.weight), inputs)

    def answer(
        self,
        key: str,
        question: Question,
        inputs: Inputs,
        image_id: int | None = None,
        visited: str | None = None,
    ) -> dict[Any, Any]:
        """Answers any question; what goes wrong becomes a sentence above the results.

        Args:
            key: of the visitor's pack.
            question: what is asked.
            inputs: what stands beside it.
            image_id: of the image that is to be open, if it is found.
            visited: the address that the visitor went back to, after "?"; None for a new question.
        """
        try:
            retriever = self._session.retriever(key)
            if not retriever.methods.keys() >= set(str(inputs.method).split("+")):
                # asked before the page had been told the pack's methods
                inputs = replace(inputs, method=retriever.methods.best)
            wanted = filters_of(retriever, inputs.values)
            answered = answer(retriever, question, inputs.method, PAGE, wanted)
            opened = result_of(retriever, self._session.meters, answered, inputs.method, image_id)
        except ValueError as error:
            return {self._current: question, self._line: problem(str(error))}
        captions = view.captions("Captions that fit", answered.captions)
        known = meant(question, inputs.method, wanted, answered)
        shown, trouble = self._grid.show(retriever, answered, inputs.method, opened)
        answered = replace(answered, details=(*answered.details, trouble))
        image_id = opened.image_id if opened else None
        query = links.write(question, inputs.method, wanted, image_id)
        hint = COPIES if query else _NO_LINK.get(question.kind, ASK_FIRST)
        if not query and question.kind in _NO_LINK:
            answered = replace(answered, details=(*answered.details, _NO_LINK[question.kind]))
        return {
            self._current: question,
            self._line: view.answer_line(answered, known),
            self._link: link(_TAB, query, hint, key="" if query else question.key, visited=visited),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            self._filter_drawer: filter_drawer(wanted),
            **self._history.show(remember(inputs.questions, question)),
            **shown,
            **self._inspector.look(key, opened),
        }

    def open(
        self, key: str, questions: tuple[Question, ...], request: gr.Request
    ) -> dict[Any, Any]:
        """Fits the tab to the visitor's pack, and asks what the page's address holds."""
        opened = self.visit(key, str(request.query_params), tuple(questions))
        if not {"q", "like", "more", "less"} & request.query_params.keys():
            for box in self._question(Question()):  # what is typed or uploaded meanwhile stays
                del opened[box]
        return opened

    def visit(self, key: str, address: str, questions: tuple[Question, ...]) -> dict[Any, Any]:
        """Asks what an address holds, or the earlier question whose key stands after its "#"."""
        named, name = links.parts(address)
        link = links.read(named, self._session.retriever(key))
        if dict(named).get("tab", _TAB) != _TAB:  # whose image it is
            link = replace(link, image_id=None)
        earlier = (one for one in questions if name and one.key == name)
        link = replace(link, question=next(earlier, link.question))
        started = self._start(key, link, questions, address)
        return {**self._question(link.question), **started}

    def swap(self, key: str, questions: tuple[Question, ...], asked: Question) -> dict[Any, Any]:
        """Fits the tab to another pack or to other images; what was asked in words stays."""
        asked_again = tuple(one for one in questions if not one.own)
        question = asked if asked.kind == "words" and not asked.own else Question()
        shown = {**self._question(question), **self._start(key, Link(question), asked_again)}
        if question.kind != "words":  # what is typed meanwhile stays
            del shown[self._words]
        return shown

    def _start(
        self, key: str, link: Link, questions: tuple[Question, ...] = (), visited: str | None = None
    ) -> dict[Any, Any]:
        retriever = self._session.retriever(key)
        method = link.method or retriever.methods.best
        known = filters.offered(retriever.collection)
        facts = dict(list(known.items())[:_FACTS])
        values = tuple(list(link.filters.wanted.get(fact, [])) for fact in facts)
        inputs = Inputs(method, questions, "", 1.0, values)
        started = self.answer(key, link.question, inputs, link.image_id, visited)
        if link.problems:
            started[self._line] = problem(*link.problems) + started[self._line]
        return {
            **started,
            self._method: gr.Dropdown(method_choices(retriever, method), value=method),
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
