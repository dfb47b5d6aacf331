"""How events are connected to their handlers, and what a visitor is told when one fails."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr
from gradio.blocks import Block
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
    in_turn: bool = False,
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
        in_turn: it keeps its place among the visitor's questions without being one.
        at_once: nobody waits for another visitor, as where whoever comes second is told so.
        queue: the event waits for its turn.
        preprocess: gradio reads the inputs itself.
    """
    return event(
        _turned(handler) if question or in_turn else handler,
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


def _turned(handler: Handler) -> Handler:
    """The same handler, known by `guard` as one whose answers come in turn."""

    @wraps(handler)
    def answer(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    answer.in_turn = True  # type: ignore[attr-defined]
    return answer


def on_refresh(
    events: Iterable[tuple[Event, str]],
    handler: Handler,
    inputs: Sequence[Block],
    outputs: Sequence[Block],
    prefix: str,
    *,
    in_turn: bool = False,
    queue: bool = True,
) -> None:
    """Connects events, each with its name after the prefix, to an update that nobody waits for.

    Nothing is preprocessed: gradio would refuse a choice of before while new ones are on their way.
    """
    for event, name in events:
        named = f"{prefix}_{name}"
        connect(
            event, handler, inputs, outputs, named, in_turn=in_turn, queue=queue, preprocess=False
        )


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
    _keep_order(blocks)


def _keep_order(blocks: gr.Blocks) -> None:
    """What goes in turn begins when the visitor's answer before is complete, and on its way.

    A handler alone could wait for another, but what gradio makes of its answer takes time, too.
    """
    process = blocks.process_api
    turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by session

    @wraps(process)
    async def process_in_turn(block_fn: Any, *args: Any, **given: Any) -> Any:
        session = given.get("session_hash")
        if not session or not getattr(block_fn.fn, "in_turn", False):
            return await process(block_fn, *args, **given)
        turn = turns.setdefault(session, asyncio.Lock())
        async with turn:
            return await process(block_fn, *args, **given)

    blocks.process_api = process_in_turn  # type: ignore[method-assign]


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
