"""What the tabs of one visitor share, and how they reach the packs."""

from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app.explain.collapse import Meters
from app.packs.open_packs import OpenPacks
from app.search.retriever import Retriever

LAB_TAB = "lab"
IN_LAB = ("views", "benchmark", "models")


@dataclass(frozen=True)
class Session:
    """Handed to every tab.

    Attributes:
        packs: the open packs, shared by all visitors; it is never changed by one for another.
        blocks: the page, for its load event.
        pack: holds the key of the pack that this visitor uses.
        tabs: all of them, to open another one.
        lab: those of the lab.
        read: begins with "reading" while images of the visitor's are read, then with "read".
        look: holds the `LookLink` that the Views tab is asked to follow, or None.
        meters: of view collapse, shared by all visitors.
    """

    packs: OpenPacks
    blocks: gr.Blocks
    pack: gr.State
    tabs: gr.Tabs
    lab: gr.Tabs
    look: gr.State
    read: gr.State = field(default_factory=lambda: gr.State(""))
    meters: Meters = field(default_factory=Meters)

    def retriever(self, key: str) -> Retriever:
        """The pack behind the value of `pack`."""
        return self.packs.get(key)

    def opened(self, tab: str) -> dict[Any, Any]:
        """Updates that open a tab, in the lab or beside it."""
        if tab not in IN_LAB:
            return {self.tabs: gr.Tabs(selected=tab)}
        return {self.tabs: gr.Tabs(selected=LAB_TAB), self.lab: gr.Tabs(selected=tab)}
