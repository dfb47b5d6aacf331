"""Events in a row: what is asked first is answered first."""

import asyncio
import time
from typing import Any

import gradio as gr
import pytest

from app.tabs.events import connect, guard


def test_an_older_answer_never_replaces_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(words: str) -> dict[object, str]:
        time.sleep(0.3)
        return {line: words}

    def quick(words: str) -> dict[object, str]:
        return {line: words}

    async def postprocess(block_fn: Any, predictions: Any, _: Any) -> list[Any]:
        await asyncio.sleep(0.3 if block_fn.api_name == "slow" else 0)
        return [predictions]

    with gr.Blocks() as blocks:
        words, line, button = gr.Textbox(), gr.HTML(), gr.Button()
        for event, handler in ((words.submit, slow), (button.click, quick)):
            connect(event, handler, [words], [line], handler.__name__, question=True)
    guard(blocks)
    monkeypatch.setattr(blocks, "postprocess_data", postprocess)
    events = {fn.api_name: fn for fn in blocks.fns.values()}
    answered: list[str] = []

    async def visit(session: str, name: str) -> None:
        given = [f"{session} {name}"]
        await blocks.process_api(block_fn=events[name], inputs=given, session_hash=session)
        answered.append(given[0])

    async def visits() -> None:
        asked = []
        for session, name in (("a", "slow"), ("a", "quick"), ("b", "quick")):
            asked.append(asyncio.ensure_future(visit(session, name)))
            await asyncio.sleep(0.05)
        await asyncio.gather(*asked)

    asyncio.run(visits())
    assert answered == ["b quick", "a slow", "a quick"]
