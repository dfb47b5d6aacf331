"""What is kept of questions that nobody fetches, and of sessions; gradio's queue is a stand-in."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import StateHolder

from app.blocks.server import visitors
from app.blocks.server.visitors import Visitors
from tests.app.blocks.server.test_limits import Clock
from tests.app.loops import run


class Queue:
    """Takes questions as gradio's does, and answers them when the test says so."""

    def __init__(self) -> None:
        self.pending_messages_per_session: dict[str, asyncio.Queue[str]] = {}
        self.pending_event_ids_session: dict[str, set[str]] = {}
        self.event_ids_to_events: dict[str, Any] = {}
        self._count = 0

    async def push(self, body: Any, request: Any, username: Any) -> tuple[bool, str, str]:
        """Takes a question."""
        assert request is not None
        assert username is None
        self._count += 1
        event_id = str(self._count)
        body.session_hash = body.session_hash or event_id
        self.pending_messages_per_session.setdefault(body.session_hash, asyncio.Queue())
        self.pending_event_ids_session.setdefault(body.session_hash, set()).add(event_id)
        self.event_ids_to_events[event_id] = SimpleNamespace(alive=True)
        return True, event_id, "success"


class Page:
    """A page whose states and questions can be looked at."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._queue = Queue()
        self.state_holder = SimpleNamespace(
            lock=threading.Lock(), session_data={}, time_last_used={}
        )
        self.visitors = Visitors(self, self.clock)

    def ask(self, client: str = "192.0.2.1", session: str | None = None) -> str:
        """Asks a question; returns its name."""
        body = SimpleNamespace(session_hash=session)
        request = SimpleNamespace(scope={"client": (client, 1)})
        _, event_id, _ = run(self._queue.push(body=body, request=request, username=None))
        self.state_holder.session_data[body.session_hash] = "state"
        return event_id

    def answer(self, event_id: str, session: str | None = None) -> None:
        """Has an answer ready."""
        del self._queue.event_ids_to_events[event_id]
        self._queue.pending_messages_per_session[session or event_id].put_nowait("answer")

    def fetch(self, event_id: str, session: str | None = None) -> None:
        """Fetches an answer."""
        self._queue.pending_event_ids_session[session or event_id].remove(event_id)

    def kept(self) -> set[str]:
        """The sessions for which anything is kept."""
        queue = self._queue
        return set(queue.pending_messages_per_session) | set(queue.pending_event_ids_session)


def test_a_question_waits_until_its_answer_was_fetched() -> None:
    page = Page()
    first, second = page.ask(), page.ask("192.0.2.2", "tab")
    page.answer(first)
    page.answer(second, "tab")
    assert list(page.visitors.waiting()) == ["192.0.2.1", "192.0.2.2"]
    page.fetch(first)
    page.fetch(second, "tab")
    assert not list(page.visitors.waiting())
    assert not page.kept()
    assert page.state_holder.session_data == {"tab": "state"}  # the other one named no session


def test_whoever_leaves_waits_for_nothing() -> None:
    page = Page()
    question = page.ask()
    page._queue.event_ids_to_events[question].alive = False
    page.answer(question)
    assert not list(page.visitors.waiting())
    assert not page.kept()


def test_answers_that_nobody_fetches_are_forgotten() -> None:
    page = Page()
    page.answer(page.ask())
    page.ask(session="tab")
    assert len(list(page.visitors.waiting())) == 2
    page.clock.now += visitors.UNREAD_SECONDS + 1
    assert len(list(page.visitors.waiting())) == 1
    assert page.kept() == {"tab"}  # not answered yet, however long that takes


def test_all_unread_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "UNREAD", 3)
    page = Page()
    asked = [page.ask() for _ in range(5)]
    for event_id in asked:
        page.answer(event_id)
    page.ask(session="tab")
    assert page.kept() == {*asked[2:], "tab"}


def test_a_client_pushes_out_its_own_sessions_alone() -> None:
    page = Page()
    page.ask("192.0.2.1", "mine")
    page.visitors.enter("192.0.2.1", "mine")
    for number in range(3 * visitors.OWN_SESSIONS):
        page.state_holder.session_data[f"made-up-{number}"] = "state"
        page.visitors.enter("192.0.2.2", f"made-up-{number}")
    kept = page.state_holder.session_data
    assert len(kept) == 1 + visitors.OWN_SESSIONS
    assert "mine" in kept
    assert f"made-up-{3 * visitors.OWN_SESSIONS - 1}" in kept


def test_a_session_begins_without_a_description_of_the_page() -> None:
    with gr.Blocks() as blocks:
        words, count = gr.Textbox("a dog"), gr.State(3)
    states = StateHolder()
    states.set_blocks(blocks)
    assert list(states["described"].components)
    visitors.keep_little(blocks)
    session = states["brief"]
    assert not list(session.components)
    assert session[count._id] == 3
    assert session[words._id].value == "a dog"
    session._update_value_in_config(words._id, "a cat")
    session[count._id] = 4
    assert (session[count._id], states["other"][count._id]) == (4, 3)
