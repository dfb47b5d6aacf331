"""The maps of an image, for tests."""

import numpy as np
from PIL import Image

from polyview.app.explain.places import attention_maps
from polyview.app.search.retriever import Retriever


def maps_of(retriever: Retriever, image: int | Image.Image, name: str) -> np.ndarray:
    """The maps (V, rows, columns) of a method that has attention."""
    views = retriever.views(image, name, attention=True)
    maps = attention_maps(retriever, views, image, name)
    assert maps is not None
    return maps.numpy()
