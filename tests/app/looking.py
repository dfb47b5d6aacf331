"""The maps of an image, for tests."""

import numpy as np
from PIL import Image

from polyview.app.explain.look import look
from polyview.app.search.retriever import Retriever


def maps_of(retriever: Retriever, image: int | Image.Image, name: str) -> np.ndarray:
    """The maps (V, rows, columns) of a method that has attention."""
    maps = look(retriever, image, name).maps
    assert maps is not None
    return maps
