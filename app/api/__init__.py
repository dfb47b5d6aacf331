"""The endpoints that answer with plain JSON, for `gradio_client`, curl and other programs.

They search the pack the app was started with. An answer to a question that makes no sense is
{"error": sentence}.
"""

from __future__ import annotations

from app.api import benchmark, compare, search, views
from app.shelf import Shelf


def add_endpoints(shelf: Shelf) -> None:
    """Adds every endpoint to the Blocks being built."""
    search.add(shelf)
    compare.add(shelf)
    benchmark.add(shelf)
    views.add(shelf)
