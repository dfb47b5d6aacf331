"""A look inside: what a method makes of one image and of one text, view by view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from app.explain.maps import attention_maps, drawn_as
from app.search.retriever import Retriever
from models import Method, Views
from models.panel import Panel, Settings


@dataclass(frozen=True)
class Look:
    """What there is to see; what needs a text is None where there is none.

    Attributes:
        method: the method's name in the pack.
        maps: (V, rows, columns) what each view is made of, see `Method.attention_is`; None where
            the method has no attention.
        similarity: (V, V) cosines between the image's views.
        drawn_as: how `maps` are drawn, where that is not cell by cell.
        text: what was asked, as typed; empty where nothing was.
        words: the text as its encoder reads it.
        word_maps: (W, M) the same as `maps` for each view of the text over its words.
        text_similarity: (W, W) cosines between the text's views.
        view_scores: (V,) see `Method.view_scores_are`.
        score: the method's score of image and text.
        mentioned: which objects of the image the text mentions, where it is one of the image's
            captions and that is known.
        panels: what the method shows beside, see `Method.inside`.
    """

    method: str
    maps: np.ndarray | None
    similarity: np.ndarray
    drawn_as: str = ""
    text: str = ""
    words: tuple[str, ...] = ()
    word_maps: np.ndarray | None = None
    text_similarity: np.ndarray | None = None
    view_scores: np.ndarray | None = None
    score: float | None = None
    mentioned: frozenset[int] = frozenset()
    panels: tuple[Panel, ...] = ()

    @property
    def winner(self) -> int | None:
        """The view that scores highest, the first of equals."""
        return None if self.view_scores is None else int(self.view_scores.argmax())


def look(
    retriever: Retriever,
    image: int | Image.Image,
    name: str,
    text: str = "",
    settings: Settings | None = None,
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
    method = retriever.methods.one(name)
    images = retriever.views(image, name, attention=True)
    maps, drawn = attention_maps(retriever, images, image, name), drawn_as(retriever, name)
    if not text.strip():
        panels = _panels(method, images, None, settings)
        return Look(name, maps, _cosines(images.embeddings[0]), drawn, panels=panels)
    texts = retriever.views(text, name, attention=True)
    word_maps = None if texts.attention is None else texts.attention[0].float().cpu().numpy()
    with torch.inference_mode():
        view_scores = method.view_scores(images, texts)[:, 0, 0].float().cpu().numpy()
        score = float(method.score(images, texts))
    return Look(
        method=name,
        maps=maps,
        similarity=_cosines(images.embeddings[0]),
        drawn_as=drawn,
        text=text,
        words=tuple(retriever.read(text).words),
        word_maps=word_maps,
        text_similarity=_cosines(texts.embeddings[0]),
        view_scores=view_scores,
        score=score,
        mentioned=mentioned(retriever, image, text) if isinstance(image, int) else frozenset(),
        panels=_panels(method, images, texts, settings),
    )


def maps_of(retriever: Retriever, image: int | Image.Image, name: str) -> np.ndarray:
    """The maps (V, rows, columns) of an image by themselves, see `Look`.

    Raises:
        ValueError: there is no such image or method, or it has no attention.
    """
    seen = retriever.views(image, name, attention=True)
    maps = attention_maps(retriever, seen, image, name)
    if maps is None:
        raise ValueError(f"{retriever.methods[name].title} has no attention to show")
    return maps


def mentioned(retriever: Retriever, image_id: int, text: str) -> frozenset[int]:
    """Which objects of an image a text mentions, where it is known to be a caption of it."""
    truth = retriever.image(image_id).truth
    words = " ".join(text.split())
    captions = truth.captions if truth else ()
    return frozenset(i for caption in captions if caption.text == words for i in caption.mentions)


def _panels(
    method: Method, images: Views, texts: Views | None, settings: Settings | None
) -> tuple[Panel, ...]:
    with torch.inference_mode():
        return tuple(method.inside(images, texts, **(settings or {})))


def _cosines(views: Tensor) -> np.ndarray:
    """Cosines between the rows of (V, D), as (V, V)."""
    unit = torch.nn.functional.normalize(views.float(), dim=1)
    return (unit @ unit.T).cpu().numpy()
