"""The Models tab: what is loaded, what it reached, where it runs, and loading another pack."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import panels
from app.description import describe
from app.session import Session
from app.tabs.events import on_refresh


def build(session: Session, tab: gr.Tab) -> None:
    """Lays out the tab and connects it."""
    ModelsTab(session, tab)


class ModelsTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, tab: gr.Tab) -> None:
        self._session = session
        self._tab = tab
        self._pack = gr.HTML()
        with gr.Row(elem_id="pv-load"):
            self._address = gr.Textbox(
                label="Load another pack",
                info=session.shelf.accepts,
                placeholder="owner/name",
                max_lines=1,
                scale=6,
                elem_id="pv-address",
            )
            self._load = gr.Button("Load", scale=1, min_width=96, elem_id="pv-load-go")
        self._message = gr.HTML(elem_id="pv-load-message")
        self._methods = gr.HTML()
        self._refused = gr.HTML()
        self._connect()

    def _connect(self) -> None:
        pack = self._session.pack
        for trigger, name in (
            (self._load.click, "load_pack"),
            (self._address.submit, "enter_pack"),
        ):
            trigger(
                self.load,
                [pack, self._address],
                [pack, self._message],
                api_name=name,
                api_visibility="undocumented",
                concurrency_id="load",
                show_progress_on=[self._message],
            )
        events = (
            (self._session.blocks.load, "open"),
            (self._tab.select, "select"),
            (pack.change, "swap"),
        )
        shown = [self._pack, self._methods, self._refused]
        on_refresh(events, self.refresh, [pack], shown, "models")

    def load(self, key: str, address: str) -> dict[Any, Any]:
        """Opens a pack for this visitor; where that fails, the present one goes on serving."""
        try:
            loaded = self._session.shelf.load(address)
        except (ValueError, OSError) as error:
            kept = self._session.retriever(key).runtime.info.title
            return {
                self._message: panels.problem(f"{str(error).rstrip('.')}. {kept} goes on serving.")
            }
        title = self._session.retriever(loaded).runtime.info.title
        return {self._message: panels.line(f"{title} is loaded."), self._session.pack: loaded}

    def refresh(self, key: str) -> dict[Any, Any]:
        """Shows the visitor's pack."""
        info = describe(self._session.retriever(key))
        return {
            self._pack: panels.pack_card(info),
            self._methods: panels.method_cards(info),
            self._refused: panels.refusals(info["gallery"]),
        }
