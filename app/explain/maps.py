"""Where in an image its features lie: maps over the grid of an encoder, or over regions' boxes.

Of a clip that is read as a set, they lie on its sheet (`app/explain/sheets.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from app.explain import sheets
from app.search.retriever import Retriever
from models import Views
from models.preprocess import Box


def attention_maps(
    retriever: Retriever, seen: Views, image: int | Image.Image, name: str
) -> np.ndarray | None:
    """What each view of an image is made of; `Method.attention_is` says in what sense.

    Of regions, shares are spread over their boxes and add up where these overlap, and of cosines a
    cell shows that of its strongest region; see `export/pack/regions.py`.

    Args:
        retriever: the pack and its images.
        seen: views (1, V, D) of `Retriever.views`, with attention.
        image: the same image, as `Retriever.views` took it.
        name: the method.

    Returns:
        (V, rows, columns) float32 on `Retriever.grid`, or on a sheet; shares of 1, or cosines
        where `Method.attention_sums_to_one` is False. None where the method has no attention.
    """
    if seen.attention is None:
        return None
    values, regions = seen.attention[0].float(), retriever.runtime.regions
    if retriever.reads_sets:
        return sheets.on_sheet(retriever, values).cpu().numpy()
    if regions is None or not isinstance(image, int):
        return retriever.runtime.on_grid(values).cpu().numpy()
    adds_up = retriever.methods[name].attention_sums_to_one
    drawn = regions.summed if adds_up else regions.strongest
    return drawn(image, values).cpu().numpy()


def drawn_as(retriever: Retriever, name: str) -> str:
    """How a method's maps are drawn where features are no cells: a sentence, else empty."""
    regions = retriever.runtime.regions
    if retriever.reads_sets:
        return "Of a clip, all frames that the method reads are shown, in order of time."
    if regions is None:
        return ""
    if regions.boxes is None:
        return "Where the regions lie is not known, so a map is one value for the whole picture."
    if retriever.methods[name].attention_sums_to_one:
        return "A region's share is spread evenly over its box and adds up where boxes overlap."
    return "Where the boxes of regions overlap, the highest cosine is drawn."


def placed(retriever: Retriever, values: Tensor, images: Sequence[int] | Image.Image) -> Tensor:
    """What features of images bring to a score, as maps whose sums stay what they are.

    Args:
        retriever: the pack and its images.
        values: (n, ..., N) of features that have a place.
        images: n of the collection by id, or any image.

    Returns:
        (n, ..., rows, columns) on `Retriever.grid`, or on sheets.
    """
    regions = retriever.runtime.regions
    if retriever.reads_sets:
        return sheets.on_sheet(retriever, values)
    if regions is None or isinstance(images, Image.Image):
        return retriever.runtime.on_grid(values)
    pairs = zip(images, values, strict=True)
    return torch.stack([regions.summed(row, own) for row, own in pairs])


class Under(NamedTuple):
    """What maps lie over.

    Attributes:
        image: RGB, any size.
        seen: the part of it that the maps cover, relative xyxy.
        smooth: its cells lie side by side as in one picture; those of a sheet do not.
    """

    image: Image.Image
    seen: Box
    smooth: bool = True


def under(retriever: Retriever, image_id: int) -> Under:
    """What an image's maps lie over: itself, or its sheet.

    Raises:
        ValueError: there is no such image, or it cannot be opened.
    """
    if retriever.reads_sets and retriever.image(image_id).moment:
        return Under(sheets.draw(retriever, image_id), (0.0, 0.0, 1.0, 1.0), smooth=False)
    return over(retriever, retriever.open(image_id))


def over(retriever: Retriever, image: Image.Image) -> Under:
    """An image of any size, and the part of it that the encoder sees."""
    return Under(image, retriever.info.preprocess.visible_box(*image.size))
