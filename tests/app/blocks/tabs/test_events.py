"""Events in a row: what is asked first is answered first."""

import asyncio
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from app.blocks.tabs.events import connect, guard, on_refresh
from tests.app.loops import run


@pytest.mark.parametrize("refreshed", [False, True])
def test_an_older_answer_never_replaces_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, refreshed: bool
) -> None:
    def slow(words: str) -> dict[object, str]:
        return {line: words}

    def quick(words: str) -> dict[object, str]:
        return {line: words}

    other = asyncio.Event()  # another visitor, whom nobody keeps waiting, was answered

    async def postprocess(block_fn: Any, predictions: Any, _: Any) -> list[Any]:
        if block_fn.api_name == "slow_s":
            await other.wait()
        return [predictions]

    with gr.Blocks() as blocks:
        words, line, button = gr.Textbox(), gr.HTML(), gr.Button()
        if refreshed:
            on_refresh([(words.submit, "s")], slow, [words], [line], "slow", in_turn=True)
        else:
            connect(words.submit, slow, [words], [line], "slow_s", question=True)
        connect(button.click, quick, [words], [line], "quick", question=True)
    guard(blocks)
    monkeypatch.setattr(blocks, "postprocess_data", postprocess)
    events = {fn.api_name: fn for fn in blocks.fns.values()}
    answered: list[str] = []

    async def visit(session: str, name: str) -> None:
        given = [f"{session} {name}"]
        await blocks.process_api(block_fn=events[name], inputs=given, session_hash=session)
        answered.append(given[0])
        if session == "b":
            other.set()

    async def visits() -> None:
        asked = (("a", "slow_s"), ("a", "quick"), ("b", "quick"))
        await asyncio.gather(*(visit(session, name) for session, name in asked))

    run(visits())
    assert answered == ["b quick", "a slow_s", "a quick"]


def test_a_choice_of_before_is_no_error() -> None:
    with gr.Blocks() as blocks:
        box, line, button = gr.Dropdown(["old"]), gr.HTML(), gr.Button()
        connect(button.click, lambda: {box: gr.Dropdown(["new"])}, [], [box], "swap")
        on_refresh([(box.change, "it")], lambda chosen: {line: chosen}, [box], [line], "follow")
    guard(blocks)
    events, state = {fn.api_name: fn for fn in blocks.fns.values()}, SessionState(blocks)

    async def visit() -> list[Any]:
        await blocks.process_api(block_fn=events["swap"], inputs=[], state=state)
        answer = await blocks.process_api(block_fn=events["follow_it"], inputs=["old"], state=state)
        return list(answer["data"])

    assert run(visit()) == ["old"]
