"""How a method represents one image and one text, view by view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.explain.places import attention_maps
from polyview.app.search.retriever import Retriever
from polyview.models.views import NamedArray


@dataclass(frozen=True)
class Look:
    """The views of an image, and of a text if any; attributes that need a text are else None.

    Attributes:
        maps: (V, rows, columns) attention of each view, see `Method.attention_is`; None if the
            method has none.
        similarity: (V, V) cosines between the image's views.
        arrays: intermediate arrays of the method, see `Method.inside`.
        words: the text as its encoder reads it.
        word_maps: (W, M) attention of each view of the text over its words.
        text_similarity: (W, W) cosines between the text's views.
        view_scores: (V,) see `Method.view_scores_are`.
        score: the method's score of image and text.
        mentioned: the objects of the image that the text mentions, if it is one of the image's
            captions and they are recorded.
    """

    maps: np.ndarray | None
    similarity: np.ndarray
    arrays: tuple[NamedArray, ...]
    words: tuple[str, ...] = ()
    word_maps: np.ndarray | None = None
    text_similarity: np.ndarray | None = None
    view_scores: np.ndarray | None = None
    score: float | None = None
    mentioned: frozenset[int] = frozenset()


@torch.inference_mode()
def look(
    retriever: Retriever,
    image: int | Image.Image,
    name: str,
    text: str = "",
    settings: Mapping[str, str | int] | None = None,
) -> Look:
    """Looks at an image with one method.

    Args:
        retriever: the pack and its images.
        image: the id of an image of the collection, or any image.
        name: a method of the pack.
        text: a sentence; empty for none.
        settings: values of the method's knobs, see `Method.knobs`.

    Raises:
        ValueError: the image, method or a setting is unknown, or the text cannot be read.
    """
    method, settings = retriever.methods.one(name), settings or {}
    images = retriever.views(image, name, attention=True)
    maps, similarity = attention_maps(retriever, images, image, name), _cosines(images.embeddings)
    drawn = None if maps is None else maps.numpy()
    if not text.strip():
        return Look(drawn, similarity, tuple(method.inside(images, None, **settings)))
    texts = retriever.views(text, name, attention=True)
    return Look(
        maps=drawn,
        similarity=similarity,
        arrays=tuple(method.inside(images, texts, **settings)),
        words=tuple(retriever.read(text).words),
        word_maps=None if texts.attention is None else texts.attention[0].float().cpu().numpy(),
        text_similarity=_cosines(texts.embeddings),
        view_scores=method.view_scores(images, texts)[:, 0, 0].float().cpu().numpy(),
        score=float(method.score(images, texts)),
        mentioned=_mentioned(retriever, image, text) if isinstance(image, int) else frozenset(),
    )


def _mentioned(retriever: Retriever, image_id: int, text: str) -> frozenset[int]:
    truth = retriever.image(image_id).truth
    words = " ".join(text.split())
    captions = truth.captions if truth else ()
    return frozenset(i for caption in captions if caption.text == words for i in caption.mentions)


def _cosines(views: Tensor) -> np.ndarray:
    """Cosines between the rows of (1, V, D), as (V, V)."""
    unit = torch.nn.functional.normalize(views[0].float(), dim=1)
    return (unit @ unit.T).cpu().numpy()
