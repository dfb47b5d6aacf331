"""Events in a row: what is asked first is answered first."""

import time
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
from gradio.context import LocalContext

from app.tabs.events import connect


def test_an_older_answer_never_replaces_a_newer_one() -> None:
    answered: list[str] = []

    def slow(words: str) -> dict[object, str]:
        time.sleep(0.3)
        answered.append(words)
        return {line: words}

    def quick(words: str) -> dict[object, str]:
        answered.append(words)
        return {line: words}

    with gr.Blocks() as blocks:
        words, line, button = gr.Textbox(), gr.HTML(), gr.Button()
        for event, handler in ((words.submit, slow), (button.click, quick)):
            connect(event, handler, [words], [line], handler.__name__, question=True)
    ask = {fn.api_name: fn.fn for fn in blocks.fns.values()}

    def visit(session: str, name: str) -> None:
        LocalContext.request.set(gr.Request(session_hash=session))
        ask[name](f"{session} {name}")

    with ThreadPoolExecutor() as pool:
        for session, name in (("a", "slow"), ("a", "quick"), ("b", "quick")):
            pool.submit(visit, session, name)
            time.sleep(0.05)
    assert answered == ["b quick", "a slow", "a quick"]
