"""The Search tab: words to pictures, a picture to captions and pictures, and a look inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from app import panels
from app.api.replies import MODEL_QUEUE
from app.asking import Ask, answer, examples
from app.pictures import PictureError, open_picture
from app.retriever import Hit, Retriever
from app.session import Session
from app.tabs.inspector import Inspector, Subject

_CHIPS = 5
_COUNT = 12
_MOST = 60
_PREVIEW = 480  # pixels of an uploaded picture's longer side as shown
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
        self._shown = gr.State([])  # the Subject of each picture in the grid
        self._lay_out_question()
        with gr.Row(elem_id="pv-results"):
            with gr.Column(scale=3, min_width=320):
                self._lay_out_answer()
            with gr.Column(scale=2, min_width=320, elem_id="pv-inspector"):
                self._inspector = Inspector(session)
        self._outputs = [
            self._ask, self._shown, self._line, self._captions, self._grid, self._words,
            self._upload,
            *self._inspector.outputs,
        ]  # fmt: skip
        self._connect_questions()
        self._connect_rest()

    def _lay_out_question(self) -> None:
        with gr.Row(elem_id="pv-question"):
            self._words = gr.Textbox(
                placeholder="Describe a picture: what is in it, where, what is next to what",
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
        with gr.Accordion("Search with a picture of yours", open=False, elem_id="pv-own"):
            self._upload = gr.Image(
                label="A picture of yours",
                show_label=False,
                sources=["upload", "clipboard"],
                height=200,
                elem_id="pv-upload",
            )

    def _lay_out_answer(self) -> None:
        self._line = gr.HTML(panels.line("One moment …"), elem_id="pv-answer")
        self._captions = gr.HTML(visible=False)
        self._grid = gr.Gallery(
            label="Results",
            show_label=False,
            columns=4,
            height="auto",
            object_fit="cover",
            allow_preview=False,
            interactive=False,
            buttons=[],
            elem_id="pv-grid",
        )

    def _connect_questions(self) -> None:
        pack, choice = self._session.pack, [self._method, self._count]
        self._on(self._words.submit, self.by_words, [pack, self._words, *choice], "show_words")
        self._on(self._go.click, self.by_words, [pack, self._words, *choice], "show_words_button")
        for i, chip in enumerate(self._chips):
            self._on(chip.click, self.by_words, [pack, chip, *choice], f"show_example_{i + 1}")
        # Unprocessed: gradio would open the picture itself, without our limits and our sentences.
        given = [pack, self._upload, *choice]
        self._on(self._upload.upload, self.by_upload, given, "show_upload", preprocess=False)
        more, subject = self._inspector.more, self._inspector.subject
        self._on(more.click, self.by_picture, [pack, subject, *choice], "show_similar")
        again = [pack, self._ask, *choice]
        self._on(self._method.input, self.answer, again, "show_again")
        self._on(self._count.release, self.answer, again, "show_again_count")

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
        settings = [self._method, *self._chips]
        for event, name in (
            (self._session.blocks.load, "open"),
            (self._session.pack.change, "swap"),
        ):
            event(
                self.refresh,
                self._session.pack,
                [*self._outputs, *settings],
                api_name=f"search_{name}",
                api_visibility="undocumented",
                show_progress="hidden",
            )

    def _on(
        self, event: Any, handler: Any, inputs: Sequence[Any], name: str, preprocess: bool = True
    ) -> None:
        """Connects a question to its answer."""
        event(
            handler,
            list(inputs),
            self._outputs,
            api_name=name,
            api_visibility="undocumented",
            concurrency_id=MODEL_QUEUE,
            show_progress="minimal",
            show_progress_on=[self._line],
            trigger_mode="always_last",
            preprocess=preprocess,
        )

    def by_words(self, key: str, words: str, method: str, count: int) -> dict[Any, Any]:
        """Answers a sentence, whether typed or an example."""
        return {self._words: words, **self.answer(key, Ask("words", words=words), method, count)}

    def by_upload(
        self, key: str, upload: dict[str, Any] | None, method: str, count: int
    ) -> dict[Any, Any]:
        """Answers an uploaded picture, and shows it as it was understood: upright, in RGB."""
        path = (upload or {}).get("path") or ""
        shown: Image.Image | None
        try:
            shown = open_picture(Path(path))
            shown.thumbnail((_PREVIEW, _PREVIEW))
        except PictureError:
            shown = None  # `answer` says why
        return {self._upload: shown, **self.answer(key, Ask("upload", path=path), method, count)}

    def by_picture(
        self, key: str, subject: Subject | None, method: str, count: int
    ) -> dict[Any, Any]:
        """Answers the picture being looked at."""
        ask = Ask() if subject is None else Ask("picture", image_id=subject.image_id)
        return self.answer(key, ask, method, count)

    def answer(self, key: str, ask: Ask, method: str, count: int) -> dict[Any, Any]:
        """Answers any question; what goes wrong becomes a sentence above the results."""
        try:
            retriever = self._session.retriever(key)
            answered = answer(retriever, ask, method, count)
        except ValueError as error:
            return {self._ask: ask, self._line: panels.problem(str(error))}
        captions = panels.caption_hits(answered.captions)
        return {
            self._ask: ask,
            self._line: panels.line(answered.summary, *answered.details),
            self._captions: gr.HTML(captions, visible=bool(captions)),
            **self._show(retriever, answered.hits, method),
        }

    def look(self, key: str, shown: list[Subject], event: gr.SelectData) -> dict[Any, Any]:
        """Opens the picture that was clicked."""
        try:
            return self._inspector.show(key, shown[int(event.index)])
        except (ValueError, IndexError) as error:
            return self._inspector.complain(str(error))

    def refresh(self, key: str) -> dict[Any, Any]:
        """Fits the tab to the visitor's pack."""
        retriever = self._session.retriever(key)
        methods = retriever.runtime.methods
        choices = [(f"{m.title} ({m.paper})", name) for name, m in methods.items()]
        method = retriever.default_method
        chips = {
            chip: gr.Button(words, visible=bool(words))
            for chip, words in zip(self._chips, examples(retriever, _CHIPS), strict=True)
        }
        start = self.answer(key, Ask(), method, _COUNT)
        return {self._method: gr.Dropdown(choices, value=method), **chips, **start}

    def _show(self, retriever: Retriever, hits: list[Hit], method: str) -> dict[Any, Any]:
        """Fills the grid and closes what was open; pictures that are gone are left out."""
        items, shown = [], []
        for hit in hits:
            try:
                path = retriever.thumbnail(hit.image_id)
            except PictureError:
                continue
            items.append((str(path), _caption(retriever, hit)))
            shown.append(Subject(hit.image_id, method, hit.rank, hit.score, hit.view))
        grid = gr.Gallery(value=items, selected_index=None)
        return {self._grid: grid, self._shown: shown, **self._inspector.clear()}


def _caption(retriever: Retriever, hit: Hit) -> str:
    """What stands under a picture and is read aloud for it."""
    picture = retriever.picture(hit.image_id)
    words = picture.captions[0] if picture.captions else Path(picture.file).name
    return f"{hit.rank} · {hit.score:.3f} · {words}" if hit.rank else words
