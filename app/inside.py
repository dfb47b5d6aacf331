"""A look inside: what a method makes of one picture and of one text, view by view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from app.query import checked
from app.retriever import Retriever
from models import Method, Views
from models.panel import Panel, Settings


@dataclass(frozen=True)
class Look:
    """What there is to see; what needs a text is None where there is none.

    Attributes:
        method: the method's name in the pack.
        maps: (V, rows, columns) what each view is made of, see `Method.attention_is`; None where
            the method has no attention.
        similarity: (V, V) cosines between the picture's views.
        text: what was asked, as typed; empty where nothing was.
        words: the text as its encoder reads it.
        word_maps: (W, M) the same as `maps` for each view of the text over its words.
        text_similarity: (W, W) cosines between the text's views.
        view_scores: (V,) see `Method.view_scores_are`.
        score: the method's score of picture and text.
        mentioned: which objects of the picture the text mentions, where it is one of the picture's
            captions and that is known.
        panels: what the method shows beside, see `Method.inside`.
    """

    method: str
    maps: np.ndarray | None
    similarity: np.ndarray
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
    picture: int | Image.Image,
    name: str,
    text: str = "",
    settings: Settings | None = None,
) -> Look:
    """Looks at a picture with one method.

    Args:
        retriever: the pack and its pictures.
        picture: one of the collection by id, or any picture.
        name: a method of the pack.
        text: a sentence to look at beside it; without words, there is none.
        settings: of the method's knobs, see `Method.knobs`.

    Raises:
        ValueError: there is no such picture, method or setting, or the text cannot be read.
    """
    method = method_of(retriever, name)
    runtime = retriever.runtime
    images = runtime.image_views(features_of(retriever, picture, name), name, attention=True)
    maps = None
    if images.attention is not None:
        maps = runtime.on_grid(images.attention[0]).float().cpu().numpy()
    if not text.strip():
        panels = _panels(method, images, None, settings)
        return Look(name, maps, _cosines(images.embeddings[0]), panels=panels)
    texts = runtime.text_views([checked(text)], name, attention=True)
    word_maps = None if texts.attention is None else texts.attention[0].float().cpu().numpy()
    with torch.inference_mode():
        view_scores = method.view_scores(images, texts)[:, 0, 0].float().cpu().numpy()
        score = float(method.score(images, texts))
    return Look(
        method=name,
        maps=maps,
        similarity=_cosines(images.embeddings[0]),
        text=text,
        words=tuple(runtime.tokens(text)),
        word_maps=word_maps,
        text_similarity=_cosines(texts.embeddings[0]),
        view_scores=view_scores,
        score=score,
        mentioned=mentioned(retriever, picture, text) if isinstance(picture, int) else frozenset(),
        panels=_panels(method, images, texts, settings),
    )


def method_of(retriever: Retriever, name: str) -> Method:
    """One method of a pack, by name.

    Raises:
        ValueError: there is none of this name, or several are named.
    """
    names = retriever.methods_of(name)
    if len(names) > 1:
        raise ValueError(f'"{name}" names {len(names)} methods; look through one at a time')
    return retriever.runtime.methods[names[0]]


def features_of(retriever: Retriever, picture: int | Image.Image, name: str) -> Tensor:
    """The features (1, N, d) of a picture that a method reads.

    Raises:
        ValueError: there is no such picture, or its file cannot be used.
    """
    if not isinstance(picture, int):
        return retriever.runtime.image_features([picture], name)
    found, refused = retriever.index.encoder.features([retriever.picture(picture)], name)
    if refused:
        raise ValueError(refused[0].reason)
    return next(iter(found.values()))[None]


def mentioned(retriever: Retriever, image_id: int, text: str) -> frozenset[int]:
    """Which objects of a picture a text mentions, where it is known to be a caption of it."""
    truth = retriever.picture(image_id).truth
    words = " ".join(text.split())
    captions = truth.captions if truth else ()
    return frozenset(i for caption in captions if caption.text == words for i in caption.mentions)


def _panels(
    method: Method, images: Views, texts: Views | None, settings: Settings | None
) -> tuple[Panel, ...]:
    with torch.inference_mode():
        return tuple(method.inside(images, texts, settings))


def _cosines(views: Tensor) -> np.ndarray:
    """Cosines between the rows of (V, D), as (V, V)."""
    unit = torch.nn.functional.normalize(views.float(), dim=1)
    return (unit @ unit.T).cpu().numpy()
