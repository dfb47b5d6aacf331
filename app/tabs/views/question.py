"""A question of the Views tab: what the widgets hold, and what there is to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.inside import Look, features_of, look
from app.pictures import open_picture
from app.retriever import Retriever
from app.tabs.views.outlines import Outline, outlines
from app.tabs.views.panel import Shown

_SAMPLE = 14  # pictures to choose from


@dataclass(frozen=True)
class Chosen:
    """The picture being looked at.

    Attributes:
        key: of the pack it was chosen in; None before the first.
        image_id: of the collection, or None for an uploaded one.
        path: the uploaded file.
        token: of the `LookLink` that was last followed.
    """

    key: str | None = None
    image_id: int | None = 0
    path: str = ""
    token: str = ""


@dataclass(frozen=True)
class Asked:
    """What every question holds, in the order of `ViewsTab._asked`.

    Attributes:
        key: of the visitor's pack.
        chosen: the picture.
        words: the text beside it; may be empty.
        method: a method of the pack.
        settings: of the method's knobs.
        weights: of the lens, one for each view; None for all on.
    """

    key: str
    chosen: Chosen
    words: str
    method: str
    settings: Mapping[str, Any]
    weights: Any

    @classmethod
    def of(cls, given: Sequence[Any]) -> Asked:
        """From the values of the widgets; that of a box where nobody has typed is None."""
        key, chosen, words, method, knobs, lens = given
        settings, weights = knobs.get("settings", {}), lens.get("weights")
        return cls(key, chosen, words or "", method, settings, weights)

    def at(self, image_id: int | None, path: str = "") -> Asked:
        """The same of another picture, or of an uploaded one."""
        chosen = replace(self.chosen, key=self.key, image_id=image_id, path=path)
        return replace(self, chosen=chosen)


def first_method(retriever: Retriever) -> str:
    """A method of several views where there is one, otherwise the pack's best."""
    several = [name for name in retriever.runtime.methods if count_views(retriever, name) > 1]
    return several[0] if several else retriever.default_method


def count_views(retriever: Retriever, name: str) -> int:
    """How many views a method makes of a picture; 1 where that cannot be known."""
    shape = retriever.index.images[name].shape
    if shape is not None:
        return shape[0]
    try:  # the gallery is still being read
        features = features_of(retriever, 0, name)
    except ValueError:
        return 1
    return retriever.runtime.image_views(features, name).embeddings.shape[1]


def sample(retriever: Retriever) -> range:
    """Ids of pictures from all over the collection."""
    count = len(retriever.collection.pictures)
    return range(0, count, max(1, count // _SAMPLE))[:_SAMPLE]


def look_at(retriever: Retriever, asked: Asked) -> tuple[Shown, Look]:
    """The picture, and what there is to see of it.

    Raises:
        ValueError: there is none, or the question makes no sense.
    """
    image_id, path = asked.chosen.image_id, Path(asked.chosen.path)
    drawn: tuple[Outline, ...] = ()
    if image_id is None:
        image, name = open_picture(path), path.name
    else:
        picture = retriever.picture(image_id)
        image, name, drawn = retriever.open(image_id), picture.file, tuple(outlines(picture))
    subject = image if image_id is None else image_id
    seen = look(retriever, subject, asked.method, asked.words, asked.settings)
    return Shown(image, name, retriever.runtime.preprocess.visible_box(*image.size), drawn), seen
