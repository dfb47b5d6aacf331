"""The button that copies a tab's link; the page's address follows it while the tab is open."""

import gradio as gr
from markupsafe import Markup

from app.tabs.html import render
from app.tabs.widgets import script

COPIES = "Copies the page's address, which holds what you see"
ASK_FIRST = "Ask something first: the page's address then holds the question"

# A tab with a link of its own then puts it into the address.
_NOTE_TAB = """() => {
    if (!window.pvTabRestored) return;
    const address = new URL(location.href);
    address.searchParams.set("tab", "%s");
    history.replaceState(history.state, "", address);
    document.dispatchEvent(new Event("pv-tab"));
}"""


def note_tab(tab: str) -> str:
    """A script that notes in the page's address which tab is open, to be opened again."""
    return _NOTE_TAB % tab


def share(tab: str) -> gr.HTML:
    """The button, which cannot copy anything yet."""
    return gr.HTML(
        link(tab, "", ASK_FIRST),
        elem_id=f"pv-share-{tab}",
        elem_classes="pv-share",
        js_on_load=script("link"),
    )


def link(tab: str, query: str, hint: str = COPIES) -> Markup:
    """The button as HTML.

    Args:
        tab: the one that the link opens.
        query: what the address holds of the question, from `app/search/links.py`; empty where no
            link can hold it.
        hint: what the button copies, or why it cannot.
    """
    return render("copy_link", tab=tab, query=query, hint=hint)
