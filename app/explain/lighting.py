"""An image lit where its score comes from."""

from typing import NamedTuple

import numpy as np
from PIL import Image

from app.explain.evidence import Explained
from app.explain.heatmaps import spotlight
from app.explain.maps import under
from app.search.retriever import Retriever

SIDE = 640  # pixels of the longer side of an image that is lit, at most


class Lit(NamedTuple):
    """An image lit by what its cells (rows, columns) bring; one of `top` is lit fully."""

    image: Image.Image
    cells: np.ndarray
    top: float


def light(retriever: Retriever, seen: Explained, image_id: int, word: str | None) -> Lit:
    """Lights an image by what it finds in one word, wherever it stands, or in all.

    Raises:
        ValueError: there is no such word, or the image cannot be opened.
    """
    if word is not None and word.strip():  # as the pack reads it
        word = retriever.reworded(word).text
    cells = _cells(seen, word)
    opened, box, smooth = under(retriever, image_id)
    opened.thumbnail((SIDE, SIDE))
    top = max(float(np.abs(cells).max()), 1e-9)
    return Lit(spotlight(opened, cells, top, box, smooth=smooth), cells, top)


def _cells(seen: Explained, word: str | None) -> np.ndarray:
    """What an image's cells (rows, columns) bring to one word, wherever it stands, or to all.

    Raises:
        ValueError: there is no such word.
    """
    found = np.zeros(seen.grid)
    for term in seen.terms:
        if word is None:
            found += term.cells[0].sum(axis=-1) + term.whole_sentence[0]
        else:
            alike = [one.casefold() == word.strip().casefold() for one in term.words]
            found += term.cells[0][..., alike].sum(axis=-1)
    words = [one for term in seen.terms for one in term.words]
    if word is not None and word.strip().casefold() not in map(str.casefold, words):
        known = ", ".join(dict.fromkeys(words))
        raise ValueError(f'there is no word "{word[:80]}" in the query; choose one of {known}')
    return found
