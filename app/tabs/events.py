"""How events are connected to their handlers, and what a visitor is told when one fails."""

import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr
from gradio.blocks import Block
from gradio.context import LocalContext
from gradio.events import Dependency

MODEL_QUEUE = "model"  # the concurrency group of every event that runs a model
UNEXPECTED = "this could not be answered; check what was sent, or reload the page and ask again"
Event = Callable[..., Dependency]
Handler = Callable[..., Any]

_LONGEST = 2000  # characters of a sentence, which may repeat what was sent
_log = logging.getLogger(__name__)


def connect(
    event: Event,
    handler: Handler,
    inputs: Sequence[Block],
    outputs: Sequence[Block],
    name: str,
    *,
    line: Block | None = None,
    question: bool = False,
    at_once: bool = False,
    queue: bool = True,
    preprocess: bool = True,
) -> Dependency:
    """Connects an event to a handler; it is no documented endpoint.

    Args:
        event: of a widget.
        handler: answers with {widget: update}. That of a question must not read the event's own
            data, which would be that of the first event in a row; see `choosable`.
        inputs: what the handler gets.
        outputs: what it may update.
        name: of the event.
        line: shows that an answer is on its way; without one, nothing does.
        question: a model is run; of many in a row, the last one counts. A visitor's questions are
            answered in the order in which they were asked, so that none replaces a newer answer.
        at_once: nobody waits for another visitor, as where whoever comes second is told so.
        queue: the event waits for its turn.
        preprocess: gradio reads the inputs itself.
    """
    return event(
        _in_turn(handler) if question else handler,
        list(inputs),
        list(outputs),
        api_name=name,
        api_visibility="undocumented",
        concurrency_id=MODEL_QUEUE if question else None,
        concurrency_limit=None if at_once else "default",
        trigger_mode="always_last" if question else None,
        show_progress="hidden" if line is None else "minimal",
        show_progress_on=line and [line],
        queue=queue,
        preprocess=preprocess,
    )


class _Turn:
    """Held while a visitor's question is answered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()  # by session


def _in_turn(handler: Handler) -> Handler:
    """A handler that waits until the same visitor's earlier questions are answered."""

    @wraps(handler)
    def answer(*args: Any, **kwargs: Any) -> Any:
        request = LocalContext.request.get(None)
        session = request.session_hash if request else None
        turn = _turns.setdefault(session, _Turn()) if session else _Turn()
        with turn.lock:
            return handler(*args, **kwargs)

    return answer


def on_refresh(
    events: Iterable[tuple[Event, str]],
    handler: Handler,
    inputs: Sequence[Block],
    outputs: Sequence[Block],
    prefix: str,
    *,
    queue: bool = True,
) -> None:
    """Connects events, each with its name after the prefix, to an update that nobody waits for."""
    for event, name in events:
        connect(event, handler, inputs, outputs, f"{prefix}_{name}", queue=queue)


def guard(blocks: gr.Blocks) -> None:
    """Puts every event of a page under guard.

    A refusal (`ValueError`) reaches the visitor as it is. Anything else is written to the log, and
    the visitor gets a sentence without it: its text may name files of this machine.

    Args:
        blocks: complete; served with `show_error=False`, for what fails before our code is reached.
    """
    for event in blocks.fns.values():
        if event.fn is not None:
            event.fn = _guarded(event.fn)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _sentences():
                yield from function(*args, **kwargs)

        return steps

    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        with _sentences():
            return function(*args, **kwargs)

    return answer


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except gr.Error:
        raise
    except ValueError as error:
        raise gr.Error(str(error)[:_LONGEST], print_exception=False) from error
    except Exception as error:
        _log.exception("an event failed")
        raise gr.Error(UNEXPECTED, print_exception=False) from error
