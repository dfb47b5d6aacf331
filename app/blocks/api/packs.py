"""/info and /benchmark."""

from collections.abc import Callable
from typing import Any

from app.packs.description import describe
from app.packs.measured import as_json
from app.packs.open_packs import OpenPacks
from app.search.filters import offered


def endpoints(opened: OpenPacks) -> list[Callable[..., dict[str, Any]]]:
    """The functions behind the endpoints."""
    retriever = opened.first

    def info() -> dict[str, Any]:
        """Says what is being searched: pack, methods, gallery, device and providers in use."""
        return {**describe(retriever), "facts": offered(retriever.collection)}

    def benchmark() -> dict[str, Any]:
        """Says what every method of the pack reached and cost.

        For each method its numbers with the command, the seed and the hardware that made them, what
        each number means, milliseconds of a text query where they are recorded, and ablations.
        """
        return as_json(retriever)

    return [info, benchmark]
