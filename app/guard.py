"""What a visitor is told when an event fails: a sentence, and nothing about this machine."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gradio as gr

UNEXPECTED = "this could not be answered; check what was sent, or reload the page and ask again"

_log = logging.getLogger(__name__)


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
        raise gr.Error(str(error), print_exception=False) from error
    except Exception as error:
        _log.exception("an event failed")
        raise gr.Error(UNEXPECTED, print_exception=False) from error
