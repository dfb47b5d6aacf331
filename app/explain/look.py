"""A look inside: what a method makes of one image and of one text, view by view."""

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
    """What a method computes of an image; what needs a text is None without one.

    Attributes:
        maps: (V, rows, columns) what each view is made of, see `Method.attention_is`; None where
            the method has no attention.
        similarity: (V, V) cosines between the image's views.
        arrays: what the method shows beside, see `Method.inside`.
        words: the text as its encoder reads it.
        word_maps: (W, M) the same as `maps` for each view of the text over its words.
        text_similarity: (W, W) cosines between the text's views.
        view_scores: (V,) see `Method.view_scores_are`.
        score: the method's score of image and text.
        mentioned: which objects of the image the text mentions, where it is one of the image's
            captions and that is known.
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
        image: one of the collection by id, or any image.
        name: a method of the pack.
        text: a sentence to look at beside it; without words, there is none.
        settings: of the method's knobs, see `Method.knobs`.

    Raises:
        ValueError: there is no such image, method or setting, or the text cannot be read.
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
