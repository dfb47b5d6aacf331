"""The widgets above the tabs, and what they do."""

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import gradio as gr

from app.blocks.server import uploads
from app.blocks.tabs.events import connect, on_refresh
from app.blocks.tabs.fetching import fetching
from app.blocks.tabs.html import line, problem
from app.blocks.tabs.saving import keep, on_save
from app.blocks.tabs.session import Session
from app.blocks.tabs.start import view
from app.blocks.tabs.widgets import script
from app.packs.description import describe, left_out
from app.packs.jobs import CancelledError, Step
from app.packs.open_packs import MOST_FILES
from app.packs.presets import obtain, offered

Updates = dict[Any, Any]

# Whatever has data-choose, in any tab, chooses; so does what is sent.
_CHOSEN = """document.addEventListener("pv-choose-images", (event) => {
  props.value = event.detail;
  trigger("select");
});
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-choose]");
  if (!button) return;
  props.value = JSON.parse(button.dataset.choose);
  trigger("select");
  if (props.value.preset) scrollTo({ top: 0 }); // where the progress is
});"""


class Start:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._used: dict[str, str] = {}  # by whom a pack is fetched for: the key they use meanwhile
        packs = session.packs
        self._top = gr.HTML(view.header(describe(packs.first), ""), elem_id="pv-top")
        gr.HTML(
            view.choice(packs.private, packs.offers_choice, MOST_FILES),
            elem_id="pv-start",
            js_on_load=script("start/start"),
        )
        with gr.Row(elem_id="pv-start-row"):
            self._line = gr.HTML(
                "", elem_id="pv-start-line", js_on_load='watch("value", () => pvStartSaid());'
            )
            self._cancel = gr.Button("Cancel", size="sm", visible=False, elem_id="pv-start-cancel")
        self._note = gr.HTML("", elem_id="pv-note")
        with gr.Column(elem_id="pv-out"):
            self._left_out = gr.HTML()
            self._save = gr.Button("Save the list", size="sm", elem_id="pv-left-out")
            self._file = gr.DownloadButton(visible="hidden")
        self._chosen = gr.HTML("", html_template="", js_on_load=_CHOSEN, visible="hidden")
        self._clock = gr.Timer(1.0)
        self._connect()

    def _connect(self) -> None:
        pack = self._session.pack
        load = self._session.blocks.load
        events = ((self._clock.tick, "tick"), (load, "open"), (pack.change, "swap"))
        shown = [self._top, self._note, self._left_out, self._clock, self._session.read]
        known = [pack, self._session.read]
        # queued: of an answer beside the queue, the page does not notice that `read` changed
        on_refresh(events, self.follow, known, shown, "header")
        chosen = [pack, self._line, self._cancel]
        connect(
            self._chosen.select, self.choose, [pack, self._chosen], chosen, "choose_images",
            at_once=True,
        )  # fmt: skip
        connect(self._cancel.click, self.cancel, [], [self._cancel], "cancel_images", at_once=True)
        on_save(self._save, self.save, [pack], self._file, "save_left_out")

    def follow(self, key: str, read: str) -> Updates:
        """Shows the pack, how far its gallery is, what is left out of it, and whether it fits."""
        packs, retriever = self._session.packs, self._session.retriever(key)
        info, finished = describe(retriever), retriever.index.progress.finished
        if not retriever.index.complete:
            read = f"reading {key}"
        elif finished and (read or key):  # with neither, the page opened on all of them
            read = f"read {key}"
        images = retriever.collection.title if packs.keeps_images(key) else ""
        presets = offered(packs.sources.obtainer) if packs.private and images else []
        return {
            self._top: view.header(info, images),
            self._note: view.note(retriever, images, presets),
            self._left_out: view.left_out(info["gallery"]),
            self._clock: gr.Timer(active=not finished),
            self._session.read: read,
        }

    def choose(self, key: str, asked: Any, request: gr.Request) -> Iterator[Updates]:
        """Opens other images, or another pack, for this visitor."""
        packs, owner = self._session.packs, request.session_hash or uuid4().hex
        yield {self._line: line("Opening …"), self._cancel: gr.Button(visible=True)}
        shown, message = None, ""
        try:
            match asked:
                case {"images": "scenes"}:
                    shown = packs.scenes()
                case {"pack": str(name)}:
                    shown = packs.use(name, key)
                case {"preset": str(name)} if packs.private:
                    shown = yield from self._take(name, key, owner)
                case {"place": str(place)}:
                    shown = packs.show(key, place.strip(), owner)
                case {"files": list(files)}:
                    shown = packs.upload(key, [uploads.named(file) for file in files])
                case _:
                    raise ValueError("choose images or a pack")
        except CancelledError as error:
            message = line(f"{error}; nothing was kept.")
        except (ValueError, OSError) as error:
            message = problem(packs.sentence(error))
        if shown is not None and owner in self._used:
            self._used[owner] = shown
        yield {
            **({} if shown is None else {self._session.pack: shown}),
            self._line: message,
            self._cancel: gr.Button(visible=False, interactive=True),
        }

    def _take(self, name: str, key: str, owner: str) -> Generator[Updates, None, str]:
        """Has a preset come, shows how far it is, and opens it over what is searched by then."""
        packs = self._session.packs
        self._used[owner] = key
        try:
            with closing(obtain(name, packs.sources.obtainer, owner)) as steps:
                for step in steps:
                    if isinstance(step, Step):
                        yield {self._line: fetching(step), self._cancel: gr.Button(visible=True)}
                    elif isinstance(step, Path):
                        folder = step
            yield {self._line: line("Opening the pack …"), self._cancel: gr.Button(visible=False)}
            return packs.open(folder, key=self._used.get(owner, key))
        finally:
            self._used.pop(owner, None)

    def cancel(self, request: gr.Request) -> Updates:
        """Ends what this visitor opens; `choose` then says so."""
        self._session.packs.cancel(request.session_hash or "")
        return {self._cancel: gr.Button(interactive=False)}

    def save(self, key: str) -> str:
        """Makes a file of what is left out of the visitor's gallery."""
        content = left_out(self._session.retriever(key).index)
        return str(keep(content, "polyview-left-out.csv", Path(self._file.GRADIO_CACHE)))
