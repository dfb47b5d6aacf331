"""What the tabs of one visitor share, and how they reach the packs."""

from dataclasses import dataclass, field

import gradio as gr

from app.explain.collapse import Meters
from app.packs.open_packs import OpenPacks
from app.search.retriever import Retriever


@dataclass(frozen=True)
class Session:
    """Handed to every tab.

    Attributes:
        packs: the open packs, shared by all visitors; it is never changed by one for another.
        blocks: the page, for its load event.
        pack: holds the key of the pack that this visitor uses.
        tabs: all of them, to open another one.
        look: holds the `LookLink` that the Views tab is asked to follow, or None.
        meters: of view collapse, shared by all visitors.
    """

    packs: OpenPacks
    blocks: gr.Blocks
    pack: gr.State
    tabs: gr.Tabs
    look: gr.State
    meters: Meters = field(default_factory=Meters)

    def retriever(self, key: str) -> Retriever:
        """The pack behind the value of `pack`."""
        return self.packs.get(key)
