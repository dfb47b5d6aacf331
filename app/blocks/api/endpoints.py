"""The endpoints that answer with plain JSON, for `gradio_client`, curl and other programs.

They search the pack the app was started with. An answer to a question that makes no sense is
{"error": sentence}. `app/blocks/page.py` serves them.
"""

from collections.abc import Callable
from typing import Any

from app.blocks.api import evidence, packs, search, views
from app.packs.open_packs import OpenPacks

Endpoint = Callable[..., dict[str, Any]]


def endpoints(opened: OpenPacks) -> tuple[list[Endpoint], list[Endpoint]]:
    """Those that run a model, and those that answer at once; their names are the endpoints'.

    Args:
        opened: the open packs.
    """
    asked = [*search.endpoints(opened), *views.endpoints(opened), *evidence.endpoints(opened)]
    return asked, packs.endpoints(opened)
