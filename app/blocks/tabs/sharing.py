"""The button that copies a tab's link; the page's address follows it while the tab is open."""

import gradio as gr
from markupsafe import Markup

from app.blocks.tabs.html import render
from app.blocks.tabs.session import LAB_TAB
from app.blocks.tabs.widgets import choosable

COPIES = "Copies the page's address, which holds what you see"
ASK_FIRST = "Ask something first: the page's address then holds the question"

# A tab with a link of its own then puts it into the address.
_NOTE_TAB = """() => {
    if (!window.pvTabRestored) return;
    const address = new URL(location.href);
    const tab = %s;
    const from = address.searchParams.get("tab") ?? "search";
    if (from === tab) return;
    if (from === "search") window.pvSearch = address.search;
    if (["benchmark", "models"].includes(tab)) address.search = window.pvSearch ?? address.search;
    address.searchParams.set("tab", tab);
    history.pushState({ pvFresh: true }, "", address);
    %s
}"""
_IN_LAB = """document.querySelector("#pv-lab [role=tab][aria-selected=true]")
        .textContent.trim().toLowerCase()"""
_TELL = 'document.dispatchEvent(new Event("pv-tab"));'


def note_tab(tab: str, *, waits: bool = False) -> str:
    """A script that makes an open tab an entry of the browser's history.

    Args:
        tab: its name; that of the lab stands for the tab that is open there.
        waits: an answer is on its way, whose link the entry is to have, not the present one.
    """
    name = _IN_LAB if tab == LAB_TAB else f'"{tab}"'
    return _NOTE_TAB % (name, "" if waits else _TELL)


def share(tab: str, *, waits: bool = False) -> tuple[gr.HTML, gr.HTML]:
    """The button, which cannot copy anything yet, and a widget for what the visitor goes back to.

    Its `select` event comes when the address, its value, asks for something else than the tab
    shows; after a "#" stands the `key` of a question that no link can hold.

    Args:
        tab: the one that the link opens.
        waits: nothing is asked until the tab is opened.
    """
    return choosable("link", f"pv-share-{tab}", link(tab, "", ASK_FIRST, waits=waits), "pv-share")


def link(
    tab: str,
    query: str,
    hint: str = COPIES,
    *,
    key: str = "",
    visited: str | None = None,
    waits: bool = False,
) -> Markup:
    """The button as HTML.

    Args:
        tab: the one that the link opens.
        query: what the address holds of the question, from `app/search/links.py`; empty where no
            link can hold it.
        hint: what the button copies, or why it cannot.
        key: of the question, where no link can hold it.
        visited: the address, after "?", whose question this is; None for a new question.
        waits: see `share`.
    """
    return render(
        "copy_link", tab=tab, query=query, hint=hint, key=key, visited=visited, waits=waits
    )
