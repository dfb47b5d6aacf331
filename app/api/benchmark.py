"""/benchmark."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.measured import as_json
from app.shelf import Shelf


def add(shelf: Shelf) -> None:
    """Adds the endpoint to the Blocks being built."""
    retriever = shelf.first

    def benchmark() -> dict[str, Any]:
        """Says what every method of the pack reached and cost.

        For each method its numbers with the command, the seed and the hardware that made them, what
        each number means, milliseconds of a text query where they are recorded, and ablations.
        """
        return as_json(retriever)

    gr.api(benchmark, api_name="benchmark")
