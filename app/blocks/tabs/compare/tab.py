"""The Compare tab's widgets and what they do."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from app.blocks.server.uploads import path_of
from app.blocks.tabs.compare import evidence, files, view
from app.blocks.tabs.compare.view import Sheet
from app.blocks.tabs.events import Event, Handler, connect, on_refresh
from app.blocks.tabs.html import line, problem
from app.blocks.tabs.images import listed
from app.blocks.tabs.saving import on_save
from app.blocks.tabs.session import Session
from app.blocks.tabs.sharing import ASK_FIRST, COPIES, link, share
from app.blocks.tabs.widgets import choosable, preview, question_row
from app.packs.columns import Columns
from app.search import curated, links
from app.search.comparison import MAX_COLUMNS
from app.search.questions import Question, examples

_TAB = "compare"
_NO_LINK = "A link cannot hold an uploaded picture, nor a very long question"
_TRIES = 8
_RANKS, _MOST_RANKS = 10, 50
_ON_THE_SHEET = 160  # pixels of the image asked with, as kept for a download


class CompareTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, selected: Event) -> None:
        self._session = session
        self._selected = selected
        self._current = gr.State(Question())
        self._sheet = gr.State(None)  # the Sheet that is shown, or None
        self._lists = gr.State(None)  # what evidence.Lists has of it
        self._lay_out_question()
        with gr.Row(elem_id="pv-cmp-answer"):
            self._line = gr.HTML(line(""), scale=6, min_width=300, elem_id="pv-cmp-line")
            self._link, self._visited = share(_TAB)
            self._downloads = {
                kind: gr.Button(label, size="sm", min_width=80, scale=0, interactive=False)
                for kind, label in files.KINDS.items()
            }
        self._evidence = gr.HTML(elem_id="pv-cmp-evidence", js_on_load=evidence.SCRIPT)
        self._results, self._tile = choosable("compare/compare", "pv-cmp-results")
        self._file = gr.DownloadButton(visible="hidden", elem_id="pv-cmp-file")
        with gr.Accordion("What am I looking at?", open=False, elem_id="pv-cmp-about"):
            gr.HTML(view.explanation())
        self._outputs = [
            self._current, self._sheet, self._lists, self._line, self._evidence, self._results,
            self._link, self._words, self._number, self._own, *self._downloads.values(),
        ]  # fmt: skip
        self._connect_questions()
        self._connect_rest()

    def _lay_out_question(self) -> None:
        self._words, self._go = question_row(
            "pv-cmp",
            "Compare",
            "What should the picture show?",
            "One query for all: a caption, or 2: dog + beach - people",
        )
        self._tries, self._try = choosable("compare/examples", "pv-cmp-tries")
        offered = Columns(self._session.packs, "")
        with gr.Row(elem_id="pv-cmp-choices"):
            self._columns = gr.Dropdown(
                offered.choices(),
                value=offered.default(),  # who asks before the page is complete asks all
                label="Columns",
                multiselect=True,
                allow_custom_value=True,
                max_choices=MAX_COLUMNS,
                scale=4,
                min_width=280,
                elem_id="pv-cmp-columns",
            )
            self._ranks = gr.Slider(
                1, _MOST_RANKS, _RANKS, step=1, label="Ranks", min_width=200, elem_id="pv-cmp-ranks"
            )
        self._note = gr.HTML(visible=False, elem_id="pv-cmp-note")
        with (
            gr.Accordion("Compare with a picture instead", open=False, elem_id="pv-cmp-with"),
            gr.Row(),
        ):
            self._upload = gr.Image(
                label="A picture of yours",
                sources=["upload", "clipboard"],
                height=220,
                min_width=260,
                elem_id="pv-cmp-upload",
            )
            with gr.Column(min_width=260):
                self._number = gr.Number(
                    label="Or one of the gallery, by its number",
                    precision=0,
                    minimum=0,
                    elem_id="pv-cmp-number",
                )
                with gr.Row():
                    self._use = gr.Button("Compare with it", size="sm", min_width=120)
                    self._any = gr.Button("Any picture", size="sm", min_width=120)
                self._own = gr.HTML(elem_id="pv-cmp-own")

    def _connect_questions(self) -> None:
        pack, choice = self._session.pack, [self._columns, self._ranks]
        typed = [pack, self._words, *choice]
        self._on(self._words.submit, self.by_words, typed, "compare_words")
        self._on(self._go.click, self.by_words, typed, "compare_words_button")
        self._on(self._try.select, self.by_words, [pack, self._try, *choice], "compare_example")
        tile = [pack, self._tile, *choice]
        self._on(self._tile.select, self.by_number, tile, "compare_similar")
        # Unprocessed: gradio would open the image itself, without our limits and our sentences.
        given = [pack, self._upload, *choice]
        self._on(
            self._upload.upload,
            self.by_upload,
            given,
            "compare_upload",
            preprocess=False,
            also=[self._upload],
        )
        number = [pack, self._number, *choice]
        self._on(self._use.click, self.by_number, number, "compare_picture")
        self._on(self._number.submit, self.by_number, number, "compare_picture_number")
        self._on(self._any.click, self.by_any, [pack, *choice], "compare_any_picture")
        again = [pack, self._current, *choice]
        self._on(self._columns.input, self.again, again, "compare_columns")
        self._on(self._ranks.release, self.again, again, "compare_ranks")

    def _connect_rest(self) -> None:
        pack = self._session.pack
        listed = [pack, self._lists]
        connect(
            self._lists.change,
            self.light,
            listed,
            [self._evidence],
            "compare_evidence",
            question=True,
        )
        settings = [self._columns, self._note]
        page = [*self._outputs, *settings, self._ranks, self._tries]
        for event, handler, given, name in (
            (self._session.blocks.load, self.open, [], "compare_open"),
            (pack.change, self.visit, [], "compare_swap"),
            (self._visited.select, self.visit, [self._visited], "compare_visit"),
        ):
            connect(event, handler, [pack, *given], page, name, question=True)
        selected = [(self._selected, "select")]
        on_refresh(selected, self.offer, [pack], settings, "compare")
        for kind, button in self._downloads.items():
            saved = partial(self.download, kind)
            on_save(button, saved, [self._sheet], self._file, f"compare_{kind}")

    def _on(
        self,
        event: Event,
        handler: Handler,
        inputs: Sequence[gr.components.Component],
        name: str,
        *,
        preprocess: bool = True,
        also: Sequence[gr.components.Component] = (),
    ) -> None:
        """Connects a question to its answer."""
        outputs = [*self._outputs, *also]
        connect(
            event,
            handler,
            inputs,
            outputs,
            name,
            line=self._line,
            preprocess=preprocess,
            question=True,
        )

    def by_words(self, key: str, words: str, columns: list[str], ranks: int) -> dict[Any, Any]:
        """Compares by words, whether typed or an example."""
        return {
            self._words: words,
            **self.again(key, Question("words", words=words), columns, ranks),
        }

    def by_any(self, key: str, columns: list[str], ranks: int) -> dict[Any, Any]:
        """Compares by any image of the gallery."""
        shown = self._session.retriever(key).shown_images()
        image_id = random.choice(shown).image_id if shown else 0
        return self.by_number(key, image_id, columns, ranks)

    def by_number(
        self, key: str, number: int | None, columns: list[str], ranks: int
    ) -> dict[Any, Any]:
        """Compares by an image of the gallery, and shows which it is."""
        if number is None:
            return {self._line: problem("type the number of a picture of the gallery")}
        retriever = self._session.retriever(key)
        answer = self.again(key, Question("image", image_id=number), columns, ranks)
        own: str
        try:
            own = view.asked_image(listed(retriever, [number])[0][number], number)
        except ValueError:
            own = ""  # the answer says why
        return {**answer, self._words: "", self._number: number, self._own: own}

    def by_upload(
        self, key: str, upload: dict[str, Any] | None, columns: list[str], ranks: int
    ) -> dict[Any, Any]:
        """Compares by an uploaded image, and shows it as it was understood: upright, in RGB."""
        path = path_of(upload)
        answer = self.again(key, Question("upload", path=path), columns, ranks)
        return {self._upload: preview(path), self._words: "", **answer}

    def again(self, key: str, question: Question, columns: list[str], ranks: int) -> dict[Any, Any]:
        """Compares by any question; what goes wrong becomes a sentence above the columns."""
        try:
            offered = Columns(self._session.packs, key)
            if question.kind == "sample":
                return {**self._empty(key, columns, ranks), self._current: question}
            terms, name = question.terms(offered.home), question.file(offered.home)
            own = question.image_id if question.kind == "image" else None
            comparison = offered.ask(terms, columns, ranks, own, name)
        except ValueError as error:
            return {**self._empty(key, columns, ranks, str(error)), self._current: question}
        home = offered.home
        images, trouble = listed(home, list(comparison.ranks))
        sheet = Sheet(comparison, images, home.collection.title, _small(terms[0].image))
        subject = f"pictures like {name}" if name else f"“{_short(comparison.query)}”"
        count = f"{len(comparison.columns)} columns for {subject}"
        ranked = f"{comparison.pictures:,} pictures ranked"
        return {
            self._current: question,
            self._sheet: sheet,
            self._lists: evidence.Lists.of(question, comparison, images),
            self._evidence: "",  # until it is there
            self._line: line(count, view.verdict(comparison), ranked, comparison.remark, trouble),
            self._results: view.columns(comparison, sheet.images),
            self._link: self._linked(question, columns, ranks),
            **dict.fromkeys(self._downloads.values(), gr.Button(interactive=True)),
        }

    def light(self, key: str, lists: evidence.Lists | None) -> dict[Any, Any]:
        """Shows what the words of the question bring to each column's images."""
        if lists is None:
            return {self._evidence: ""}
        try:
            return {self._evidence: evidence.bar(lists, Columns(self._session.packs, key))}
        except ValueError as error:
            return {self._evidence: line(str(error))}

    def offer(self, key: str) -> dict[Any, Any]:
        """What columns can be chosen of the packs that are open; those that are chosen stay."""
        try:
            offered = Columns(self._session.packs, key)
        except ValueError as error:
            return {self._note: gr.HTML(problem(str(error)), visible=True)}
        sample = "".join(f", such as {pair}" for pair in offered.home.methods.ensembles(1))
        info = f"2 to {MAX_COLUMNS}, left to right; or type an average{sample}"
        note = view.elsewhere(offered.elsewhere)
        return {
            self._columns: gr.update(choices=offered.choices(), info=info),
            self._note: gr.HTML(note, visible=bool(note)),
        }

    def open(self, key: str, request: gr.Request) -> dict[Any, Any]:
        """Fits the tab to the visitor's pack, and asks what the page's address holds for it."""
        here = request.query_params.get("tab") == _TAB
        opened = self.visit(key, str(request.query_params) if here else "")
        if not opened[self._words]:  # what is typed meanwhile stays
            del opened[self._words]
        return opened

    def visit(self, key: str, address: str = "") -> dict[Any, Any]:
        """Fits the tab to the visitor's pack, and asks what an address holds."""
        named, _ = links.parts(address)
        offered = Columns(self._session.packs, key)
        asked = links.read_compare(named, offered.home, _MOST_RANKS)
        columns = list(asked.columns) or offered.default()
        question, ranks = asked.question, asked.ranks or _RANKS
        by_image = question.kind == "image"
        answer = (
            self.by_number(key, question.image_id, columns, ranks)
            if by_image
            else {**self.again(key, question, columns, ranks), self._own: ""}
        )
        if asked.problems:
            answer[self._line] = problem(*asked.problems) + answer[self._line]
        found = curated.load(offered.home.info, offered.home.collection)[:_TRIES]
        offer = self.offer(key)
        offer[self._columns]["value"] = columns
        return {
            **offer,
            **answer,
            self._link: self._linked(question, columns, ranks, visited=address),
            self._words: question.words,
            self._ranks: ranks,
            self._tries: view.examples(found, examples(offered.home, _TRIES)),
        }

    def _linked(
        self, question: Question, columns: list[str], ranks: int, visited: str | None = None
    ) -> str:
        """The button that copies the link of a question, or says why there is none."""
        query = links.write_compare(question, columns, ranks)
        hint = COPIES if query else ASK_FIRST if question.kind == "sample" else _NO_LINK
        return link(_TAB, query, hint, visited=visited)

    def download(self, kind: str, sheet: Sheet | None) -> str:
        """Makes a file of the comparison that is shown."""
        if sheet is None:
            raise gr.Error("There is nothing to download yet; compare something first.")
        return str(files.write(sheet, kind, Path(self._file.GRADIO_CACHE)))

    def _empty(self, key: str, columns: list[str], ranks: int, wrong: str = "") -> dict[Any, Any]:
        """Columns without an answer: before the first question, or where one made no sense."""
        titles: list[tuple[str, str]] = []
        if not (isinstance(ranks, int) and 1 <= ranks <= _MOST_RANKS):  # of an upload, anything
            ranks = _RANKS
        try:
            offered = Columns(self._session.packs, key)
            titles = offered.titles(offered.default())
            titles = offered.titles(columns)
        except ValueError as error:
            wrong = wrong or str(error)
        return {
            self._sheet: None,
            self._lists: None,
            self._evidence: "",
            self._line: problem(wrong) if wrong else line("Nothing compared yet"),
            self._results: view.ghost(titles, ranks) if titles else "",
            **dict.fromkeys(self._downloads.values(), gr.Button(interactive=False)),
        }


def _small(image: Image.Image | None) -> Image.Image | None:
    """The image that was asked with, as small as the sheet shows it."""
    if image is not None:
        image = image.copy()
        image.thumbnail((_ON_THE_SHEET, _ON_THE_SHEET))
    return image


def _short(words: str) -> str:
    return words if len(words) <= 80 else f"{words[:79]}…"
