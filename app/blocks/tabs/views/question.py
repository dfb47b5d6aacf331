"""A question of the Views tab: what the widgets hold, and what there is to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.blocks.tabs.images import at
from app.blocks.tabs.views.outlines import Outline, outlines
from app.blocks.tabs.views.view import Shown
from app.explain import sheets
from app.explain.look import Look, look
from app.explain.maps import over, under
from app.gallery.images import open_image
from app.search.retriever import Retriever

_SAMPLE = 14  # images to choose from


@dataclass(frozen=True)
class Current:
    """The image being looked at.

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
class Inputs:
    """What every question holds, in the order of `ViewsTab._inputs`.

    Attributes:
        key: of the visitor's pack.
        current: the image.
        words: the text beside it; may be empty.
        method: a method of the pack.
        settings: of the method's knobs.
        weights: of the lens, one for each view; None for all on.
    """

    key: str
    current: Current
    words: str
    method: str
    settings: Mapping[str, Any]
    weights: Any

    @classmethod
    def of(cls, given: Sequence[Any]) -> Inputs:
        """From the values of the widgets, of any kind; of a box where nobody has typed None."""
        key, current, words, method, knobs, lens = given
        settings = knobs.get("settings") if isinstance(knobs, dict) else None
        weights = lens.get("weights") if isinstance(lens, dict) else None
        settings = settings if isinstance(settings, dict) else {}
        method, words = (text if isinstance(text, str) else "" for text in (method, words))
        return cls(key, current, words, method, settings, weights)

    def at(self, image_id: int | None, path: str = "") -> Inputs:
        """The same of another image, or of an uploaded one."""
        current = replace(self.current, key=self.key, image_id=image_id, path=path)
        return replace(self, current=current)


def first_method(retriever: Retriever) -> str:
    """A method of several views where there is one, otherwise the pack's best."""
    several = [name for name in retriever.methods if count_views(retriever, name) > 1]
    return several[0] if several else retriever.methods.best


def count_views(retriever: Retriever, name: str) -> int:
    """How many views a method makes of an image; 1 where that cannot be known.

    Raises:
        ValueError: the pack has no such method.
    """
    retriever.methods.one(name)
    shape = retriever.gallery(name).shape
    if shape is not None:
        return shape[0]
    try:  # the gallery is still being read
        return retriever.views(0, name).embeddings.shape[1]
    except ValueError:
        return 1


def sample(retriever: Retriever) -> list[int]:
    """Ids of images from all over the collection."""
    shown = retriever.shown_images()
    return [image.image_id for image in shown[:: max(1, len(shown) // _SAMPLE)][:_SAMPLE]]


def look_at(retriever: Retriever, inputs: Inputs) -> tuple[Shown, Look]:
    """The image, and what there is to see of it.

    Raises:
        ValueError: there is none, or the question makes no sense.
    """
    image_id, path = inputs.current.image_id, Path(inputs.current.path)
    drawn: tuple[Outline, ...] = ()
    if image_id is None:
        shown, name = over(retriever, open_image(path)), path.name
    else:
        known = retriever.image(image_id)
        shown, name = under(retriever, image_id), known.file
        if not retriever.reads_sets:
            drawn = tuple(outlines(known))
        if known.moment is not None:
            frames = sheets.moments(retriever, image_id)
            several = f"{frames[0].seconds:.1f} to {frames[-1].seconds:.1f} seconds"
            name = f"{name}, {several if len(frames) > 1 else at(known.moment)}"
    subject = shown.image if image_id is None else image_id
    seen = look(retriever, subject, inputs.method, inputs.words, inputs.settings)
    return Shown(shown.image, name, shown.seen, drawn, shown.smooth), seen
