"""How the tabs connect their events: questions to a model, and updates that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.events import Dependency

from app.api.replies import MODEL_QUEUE

Event = Callable[..., Dependency]
Handler = Callable[..., Any]


def on_question(
    event: Event,
    handler: Handler,
    inputs: Sequence[Block],
    outputs: Sequence[Block],
    name: str,
    *,
    line: gr.HTML | None = None,
    preprocess: bool = True,
) -> Dependency:
    """Connects an event to what runs a model; of many in a row, the last one counts.

    Args:
        event: of a widget.
        handler: answers with {widget: update}. It must not read the event's own data, which would
            be that of the first event in a row; see `choosable`.
        inputs: what the handler gets.
        outputs: what it may update.
        name: of the event.
        line: shows that an answer is on its way; without one, nothing does.
        preprocess: gradio reads the inputs itself.
    """
    return event(
        handler,
        list(inputs),
        list(outputs),
        api_name=name,
        api_visibility="undocumented",
        concurrency_id=MODEL_QUEUE,
        show_progress="hidden" if line is None else "minimal",
        show_progress_on=line and [line],
        trigger_mode="always_last",
        preprocess=preprocess,
    )


def on_refresh(
    events: Iterable[tuple[Event, str]],
    handler: Handler,
    inputs: Sequence[Block],
    outputs: Sequence[Block],
    prefix: str,
    *,
    queue: bool = True,
) -> list[Dependency]:
    """Connects events to an update that nobody waits for, and returns them connected.

    Args:
        events: each with its name, to which `prefix` is added in front.
        handler: answers with {widget: update}.
        inputs: what the handler gets.
        outputs: what it may update.
        prefix: of the events' names.
        queue: an update waits for its turn.
    """
    return [
        event(
            handler,
            list(inputs),
            list(outputs),
            api_name=f"{prefix}_{name}",
            api_visibility="undocumented",
            show_progress="hidden",
            queue=queue,
        )
        for event, name in events
    ]
