"""Widgets that several tabs have: a question, examples, an upload, and HTML to choose from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from app.gallery.images import ImageError, open_image

_PREVIEW = 480  # pixels of an uploaded image's longer side as shown
_CHOOSE = """const choose = (detail) =>
  element.dispatchEvent(new CustomEvent("pv-choose", { bubbles: true, detail }));
"""
_CHOSEN = """document.addEventListener("pv-choose", (event) => {
  if (!event.target.closest("#%s")) return;
  props.value = event.detail;
  trigger("select");
});"""


def question_row(
    prefix: str, button: str, label: str, placeholder: str, *, autofocus: bool = False
) -> tuple[gr.Textbox, gr.Button]:
    """One line to type in, and the button that asks it.

    Args:
        prefix: of the three elements' ids: `-question`, `-words` and `-go` follow.
        button: what stands on the button.
        label: of the line, for those who cannot see it.
        placeholder: shown while the line is empty.
        autofocus: the line has the focus when the page opens.
    """
    with gr.Row(elem_id=f"{prefix}-question"):
        words = gr.Textbox(
            placeholder=placeholder,
            label=label,
            show_label=False,
            container=False,
            lines=1,
            max_lines=1,
            scale=6,
            autofocus=autofocus,
            elem_id=f"{prefix}-words",
        )
        go = gr.Button(button, variant="primary", scale=1, min_width=96, elem_id=f"{prefix}-go")
    return words, go


def chips(elem_id: str, count: int, *, visible: bool = True) -> list[gr.Button]:
    """A row of buttons for sentences to ask, which `fill` puts on them."""
    with gr.Row(elem_id=elem_id):
        return [
            gr.Button("…", size="sm", min_width=40, visible=visible, elem_classes="pv-chip")
            for _ in range(count)
        ]


def fill(buttons: Sequence[gr.Button], sentences: Sequence[str]) -> dict[Any, Any]:
    """Updates that put sentences on `chips`; those without one are hidden."""
    filled = [*sentences, *[""] * len(buttons)]
    return {
        button: gr.Button(words or "…", visible=bool(words))
        for button, words in zip(buttons, filled, strict=False)
    }


def upload_box(elem_id: str) -> gr.Image:
    """Where a visitor puts an image of their own."""
    return gr.Image(
        label="A picture of yours",
        show_label=False,
        sources=["upload", "clipboard"],
        height=200,
        elem_id=elem_id,
    )


def preview(path: str) -> Image.Image | None:
    """An uploaded image as it was understood, upright and in RGB; None where it is no image."""
    try:
        shown = open_image(Path(path))
    except ImageError:
        return None
    shown.thumbnail((_PREVIEW, _PREVIEW))
    return shown


def script(name: str) -> str:
    """A script of a tab: "search/tiles" is `search/tiles.js`."""
    return (Path(__file__).parent / f"{name}.js").read_text("utf-8")


def choosable(
    name: str, elem_id: str, content: str = "", classes: str = "", *, visible: bool = True
) -> tuple[gr.HTML, gr.HTML]:
    """HTML in which something is chosen, and a hidden widget whose value is the choice.

    The script calls `choose(value)`, upon which the hidden widget's `select` event comes. Handlers
    have that widget among their inputs: an event's own data would be that of the first of several
    events in a row, and a value of the HTML itself would be lost as soon as it is drawn anew.

    Args:
        name: of the script that makes the HTML work with mouse and keyboard, see `script`.
        elem_id: of the HTML.
        content: HTML to begin with.
        classes: of the HTML.
        visible: it is shown from the start.
    """
    shown = gr.HTML(
        content,
        js_on_load=_CHOOSE + script(name),
        elem_id=elem_id,
        elem_classes=classes,
        visible=visible,
    )
    chosen = gr.HTML("", html_template="", js_on_load=_CHOSEN % elem_id, visible="hidden")
    return shown, chosen
