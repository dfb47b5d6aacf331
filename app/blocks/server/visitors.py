"""What gradio keeps of visitors: their questions, answers that nobody fetched, and states.

gradio keeps an answer until its client fetches it, and a state until so many others were used
after it. So whoever never fetches, or makes up sessions, would fill the memory or push out what
others need. Everything here runs in the server's event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from app.blocks.server.limits import client_of

UNREAD = 300  # answers of all clients that nobody has fetched yet
UNREAD_SECONDS = 300.0  # after which an answer that nobody has fetched is forgotten
SESSIONS = 1000  # whose state is kept
OWN_SESSIONS = 100  # of one client


def keep_little(blocks: Any) -> None:
    """Has new sessions begin without a description of every component.

    gradio makes one for each session, so for each call without a session, too: 16 ms and 340 KB of
    this page. Only its deep links read them, which have no address here.

    Args:
        blocks: the page, once gradio serves it.
    """
    blocks.state_holder.blocks = SimpleNamespace(default_config=blocks.default_config, blocks={})


@dataclass
class _Question:
    """A question from when it is asked until its answer has been fetched.

    Attributes:
        client: who asked.
        session: in which answers are fetched.
        event: gradio's, until it is answered.
        answered: at what time; None until then.
    """

    client: str
    session: str
    event: Any
    answered: float | None = None


class Visitors:
    """Watches gradio's queue.

    Args:
        blocks: the page, with a queue.
        clock: gives seconds.
    """

    def __init__(self, blocks: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._blocks = blocks
        self._clock = clock
        self._questions: dict[str, _Question] = {}  # by event id, the oldest first
        self._sessions: OrderedDict[str, str] = OrderedDict()  # their clients, the latest last
        queue = blocks._queue
        push = queue.push

        async def noted(body: Any, request: Any, username: Any) -> Any:
            answer = await push(body=body, request=request, username=username)
            if answer[0]:
                self._note(answer[1], body.session_hash, client_of(request.scope))
            return answer

        queue.push = noted

    def waiting(self) -> Iterator[str]:
        """The client of each question that is not answered, or whose answer nobody has fetched."""
        self._tidy()
        return iter([question.client for question in self._questions.values()])

    def enter(self, client: str, session: str) -> None:
        """Notes who uses a session; of one client, the states used last are kept."""
        self._sessions[session] = client
        self._sessions.move_to_end(session)
        own = [name for name, other in self._sessions.items() if other == client]
        for name in own[:-OWN_SESSIONS]:
            self._forget_state(name)
        while len(self._sessions) > SESSIONS:
            self._forget_state(next(iter(self._sessions)))

    def _note(self, event_id: str, session: str, client: str) -> None:
        event = self._blocks._queue.event_ids_to_events.get(event_id)
        self._questions[event_id] = _Question(client, session, event)
        self._tidy()

    def _tidy(self) -> None:
        """Forgets what was fetched, and of what was not the oldest."""
        queue, now = self._blocks._queue, self._clock()
        for event_id, question in list(self._questions.items()):
            unread = queue.pending_event_ids_session.get(question.session, set())
            if question.answered is None and event_id not in queue.event_ids_to_events:
                if question.event is not None and not question.event.alive:
                    unread.discard(event_id)  # its client has left
                question.event, question.answered = None, now
            if question.answered is not None and event_id not in unread:
                self._end(event_id)
        answered = [
            (q.answered, q.session) for q in self._questions.values() if q.answered is not None
        ]
        for place, (then, session) in enumerate(answered):
            if now - then > UNREAD_SECONDS or place < len(answered) - UNREAD:
                self._drop(session)

    def _drop(self, session: str) -> None:
        """Forgets the answers of a session; questions that are not answered yet stay."""
        queue = self._blocks._queue
        messages = queue.pending_messages_per_session.get(session)
        while messages is not None and not messages.empty():
            messages.get_nowait()
        for event_id, question in list(self._questions.items()):
            if question.session == session and question.answered is not None:
                queue.pending_event_ids_session.get(session, set()).discard(event_id)
                self._end(event_id)

    def _end(self, event_id: str) -> None:
        """Forgets a question, and after the last one of a session what was kept for its answers."""
        session = self._questions.pop(event_id).session
        if any(question.session == session for question in self._questions.values()):
            return
        queue = self._blocks._queue
        queue.pending_messages_per_session.pop(session, None)
        queue.pending_event_ids_session.pop(session, None)
        if session == event_id:  # the question named none, so nobody can use it again
            self._forget_state(session)

    def _forget_state(self, session: str) -> None:
        self._sessions.pop(session, None)
        states = self._blocks.state_holder
        with states.lock:
            states.session_data.pop(session, None)
            states.time_last_used.pop(session, None)
