"""Widgets that several tabs have: the row with the question, and HTML to choose from."""

from __future__ import annotations

import gradio as gr

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


def choosable(
    script: str, elem_id: str, content: str = "", *, visible: bool = True
) -> tuple[gr.HTML, gr.HTML]:
    """HTML in which something is chosen, and a hidden widget whose value is the choice.

    The script calls `choose(value)`, upon which the hidden widget's `select` event comes. Handlers
    have that widget among their inputs: an event's own data would be that of the first of several
    events in a row, and a value of the HTML itself would be lost as soon as it is drawn anew.

    Args:
        script: what makes the HTML work with mouse and keyboard.
        elem_id: of the HTML.
        content: HTML to begin with.
        visible: it is shown from the start.
    """
    shown = gr.HTML(content, js_on_load=_CHOOSE + script, elem_id=elem_id, visible=visible)
    chosen = gr.HTML("", html_template="", js_on_load=_CHOSEN % elem_id, visible="hidden")
    return shown, chosen
