"""The Compare tab's widgets and what they do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from app import curated, panels
from app.asking import Ask, examples
from app.comparison import MAX_COLUMNS, Comparison
from app.lineup import Lineup
from app.pictures import PictureError, open_picture
from app.query import Term, checked, parse
from app.retriever import Retriever
from app.session import Session
from app.tabs.compare import files, panel
from app.tabs.compare.shown import Sheet, Shown
from app.tabs.events import Event, Handler, on_question, on_refresh
from app.tabs.saving import on_save
from app.tabs.widgets import choosable, question_row

_TRIES = 8
_RANKS, _MOST_RANKS = 10, 50
_PREVIEW = 480  # pixels of an uploaded picture's longer side as shown
_ON_THE_SHEET = 160  # pixels of the picture asked with, as kept for a download


def build(session: Session, tab: gr.Tab) -> None:
    """Lays out the tab and connects it."""
    CompareTab(session, tab)


class CompareTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, tab: gr.Tab) -> None:
        self._session = session
        self._tab = tab
        self._ask = gr.State(Ask())
        self._sheet = gr.State(None)  # the Sheet that is shown, or None
        self._lay_out_question()
        with gr.Row(elem_id="pv-cmp-answer"):
            self._line = gr.HTML(panels.line(""), scale=6, min_width=300, elem_id="pv-cmp-line")
            self._downloads = {
                kind: gr.Button(label, size="sm", min_width=80, scale=0, interactive=False)
                for kind, label in files.KINDS.items()
            }
        self._results, self._tile = choosable(panel.SCRIPT, "pv-cmp-results")
        self._file = gr.DownloadButton(visible="hidden", elem_id="pv-cmp-file")
        with gr.Accordion("What am I looking at?", open=False, elem_id="pv-cmp-about"):
            gr.HTML(panel.explanation())
        self._outputs = [
            self._ask, self._sheet, self._line, self._results, self._words, self._number,
            self._own, *self._downloads.values(),
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
        self._tries, self._try = choosable(panel.EXAMPLES_SCRIPT, "pv-cmp-tries")
        with gr.Row(elem_id="pv-cmp-choices"):
            self._columns = gr.Dropdown(
                [],
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
        # Unprocessed: gradio would open the picture itself, without our limits and our sentences.
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
        again = [pack, self._ask, *choice]
        self._on(self._columns.input, self.again, again, "compare_columns")
        self._on(self._ranks.release, self.again, again, "compare_ranks")

    def _connect_rest(self) -> None:
        pack = self._session.pack
        settings = [self._columns, self._note]
        on_refresh(
            [(self._session.blocks.load, "open"), (pack.change, "swap")],
            self.refresh,
            [pack, self._ranks],
            [*self._outputs, *settings, self._tries],
            "compare",
        )
        selected = [(self._tab.select, "select")]
        on_refresh(selected, self.offer, [pack, self._columns], settings, "compare")
        for kind, button in self._downloads.items():
            handler = partial(self.download, kind)
            on_save(button, handler, [self._sheet], self._file, f"compare_{kind}")

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
        on_question(event, handler, inputs, outputs, name, line=self._line, preprocess=preprocess)

    def by_words(self, key: str, words: str, columns: list[str], ranks: int) -> dict[Any, Any]:
        """Compares by words, whether typed or an example."""
        return {self._words: words, **self.again(key, Ask("words", words=words), columns, ranks)}

    def by_any(self, key: str, columns: list[str], ranks: int) -> dict[Any, Any]:
        """Compares by any picture of the gallery."""
        count = len(self._session.retriever(key).collection.pictures)
        return self.by_number(key, random.randrange(count), columns, ranks)

    def by_number(
        self, key: str, number: int | None, columns: list[str], ranks: int
    ) -> dict[Any, Any]:
        """Compares by a picture of the gallery, and shows which it is."""
        if number is None:
            return {self._line: panels.problem("type the number of a picture of the gallery")}
        retriever = self._session.retriever(key)
        answer = self.again(key, Ask("picture", image_id=number), columns, ranks)
        try:
            own = panel.asked_picture(_shown(retriever, number), number)
        except ValueError:
            own = ""  # the answer says why
        return {**answer, self._words: "", self._number: number, self._own: own}

    def by_upload(
        self, key: str, upload: dict[str, Any] | None, columns: list[str], ranks: int
    ) -> dict[Any, Any]:
        """Compares by an uploaded picture, and shows it as it was understood: upright, in RGB."""
        path = (upload or {}).get("path") or ""
        preview: Image.Image | None
        try:
            preview = open_picture(Path(path))
            preview.thumbnail((_PREVIEW, _PREVIEW))
        except PictureError:
            preview = None  # `again` says why
        answer = self.again(key, Ask("upload", path=path), columns, ranks)
        return {self._upload: preview, self._words: "", **answer}

    def again(self, key: str, ask: Ask, columns: list[str], ranks: int) -> dict[Any, Any]:
        """Compares by any question; what goes wrong becomes a sentence above the columns."""
        try:
            lineup = Lineup(self._session.shelf, key)
            if ask.kind == "sample":
                return {**self._empty(key, columns, ranks), self._ask: ask}
            terms, picture = _terms(lineup.home, ask)
            own = ask.image_id if ask.kind == "picture" else None
            name = "" if ask.kind == "words" else _name(lineup.home, ask)
            comparison = lineup.ask(terms, columns, ranks, own, name)
        except ValueError as error:
            return {**self._empty(key, columns, ranks, str(error)), self._ask: ask}
        sheet = _sheet(lineup.home, comparison, picture)
        asked = f"pictures like {name}" if name else f"“{_short(comparison.query)}”"
        said = f"{len(comparison.columns)} columns for {asked}"
        pictures = f"{comparison.pictures:,} pictures ranked"
        return {
            self._ask: ask,
            self._sheet: sheet,
            self._line: panels.line(said, panel.verdict(comparison), pictures, comparison.remark),
            self._results: panel.columns(comparison, sheet.pictures),
            **dict.fromkeys(self._downloads.values(), gr.Button(interactive=True)),
        }

    def offer(self, key: str, columns: list[str]) -> dict[Any, Any]:
        """Brings the choice of columns up to date with the packs that are open."""
        try:
            lineup = Lineup(self._session.shelf, key)
        except ValueError as error:
            return {self._note: gr.HTML(panels.problem(str(error)), visible=True)}
        sample = "".join(f", such as {pair}" for pair in lineup.home.ensembles(1))
        info = f"2 to {MAX_COLUMNS}, left to right; or type an average{sample}"
        note = panel.elsewhere(lineup.elsewhere)
        return {
            self._columns: gr.Dropdown(lineup.choices(), value=columns, info=info),
            self._note: gr.HTML(note, visible=bool(note)),
        }

    def refresh(self, key: str, ranks: int) -> dict[Any, Any]:
        """Fits the tab to the visitor's pack, with nothing asked yet."""
        lineup = Lineup(self._session.shelf, key)
        found = curated.load(lineup.home.runtime.info, lineup.home.collection)[:_TRIES]
        return {
            **self.offer(key, lineup.default()),
            **self.again(key, Ask(), lineup.default(), ranks),
            self._words: "",
            self._own: "",
            self._tries: panel.examples(found, examples(lineup.home, _TRIES)),
        }

    def download(self, kind: str, sheet: Sheet | None) -> str:
        """Makes a file of the comparison that is shown."""
        if sheet is None:
            raise gr.Error("There is nothing to download yet; compare something first.")
        return str(files.write(sheet, kind, Path(self._file.GRADIO_CACHE)))

    def _empty(self, key: str, columns: list[str], ranks: int, problem: str = "") -> dict[Any, Any]:
        """Columns without an answer: before the first question, or where one made no sense."""
        titles: list[tuple[str, str]] = []
        try:
            lineup = Lineup(self._session.shelf, key)
            titles = lineup.titles(lineup.default())
            titles = lineup.titles(columns)
        except ValueError as error:
            problem = problem or str(error)
        line = panels.problem(problem) if problem else panels.line("Nothing compared yet")
        return {
            self._sheet: None,
            self._line: line,
            self._results: panel.ghost(titles, ranks) if titles else "",
            **dict.fromkeys(self._downloads.values(), gr.Button(interactive=False)),
        }


def _terms(retriever: Retriever, ask: Ask) -> tuple[list[Term], Image.Image | None]:
    """What a question asks for, and the picture it asks with."""
    if ask.kind == "words":
        return parse(checked(ask.words)), None
    if ask.kind == "picture":
        picture = retriever.open(ask.image_id)
    elif ask.path:
        picture = open_picture(Path(ask.path))
    else:
        raise ValueError("there is no picture; upload one first")
    small = picture.copy()
    small.thumbnail((_ON_THE_SHEET, _ON_THE_SHEET))
    return [Term(image=picture)], small


def _name(retriever: Retriever, ask: Ask) -> str:
    if ask.kind == "upload":
        return Path(ask.path).name
    return retriever.picture(ask.image_id).file


def _sheet(retriever: Retriever, comparison: Comparison, picture: Image.Image | None) -> Sheet:
    """A comparison with what is known about its pictures."""
    with ThreadPoolExecutor(4) as pool:
        shown = pool.map(partial(_shown, retriever), comparison.ranks)
    pictures = dict(zip(comparison.ranks, shown, strict=True))
    return Sheet(comparison, pictures, retriever.collection.title, picture)


def _shown(retriever: Retriever, image_id: int) -> Shown:
    picture = retriever.picture(image_id)
    thumbnail: Path | None
    try:
        thumbnail = retriever.thumbnail(image_id)
    except (PictureError, OSError):
        thumbnail = None
    return Shown(picture.file, picture.captions, thumbnail)


def _short(words: str) -> str:
    return words if len(words) <= 80 else f"{words[:79]}…"
