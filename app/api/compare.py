"""/compare."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.api.replies import MODEL_QUEUE, sentences
from app.comparison import as_json
from app.lineup import Lineup
from app.query import checked, parse
from app.shelf import Shelf


def add(shelf: Shelf) -> None:
    """Adds the endpoint to the Blocks being built."""

    @sentences
    def compare(query: str, methods: list[str], k: int = 10) -> dict[str, Any]:
        """Ranks the pictures for one query by several methods and says how far they agree.

        Answers with the columns (each with its hits, the rank of every right picture where the
        query is a caption of the gallery, and milliseconds), overlap@k and Kendall's tau-b between
        all columns, and the pictures that one column alone found.

        Args:
            query: words, a sentence or several terms such as "2: dog + beach - people".
            methods: 2 to 8 methods of the pack, see /info; "a+b" averages the scores of two or
                more, and "pack/a" is a method of another open pack over the same pictures.
            k: how many pictures each column lists, 1 to 100.
        """
        lineup = Lineup(shelf, "")
        comparison = lineup.ask(parse(checked(query)), methods, k)
        pictures = {image_id: lineup.home.picture(image_id) for image_id in comparison.ranks}
        known = {
            image_id: {"file": picture.file, "captions": list(picture.captions)}
            for image_id, picture in pictures.items()
        }
        return as_json(comparison, known)

    gr.api(compare, api_name="compare", concurrency_id=MODEL_QUEUE)
