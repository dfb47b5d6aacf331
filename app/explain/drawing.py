"""Draws evidence over an image, for the shell command and `/explain.png`.

A clip that is read as a set is drawn as a sheet of its frames, row by row in time order.
"""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from polyview.app.explain.evidence import NO_MAP, QueryEvidence
from polyview.app.explain.places import sheet_shape
from polyview.app.search.retriever import Retriever
from polyview.models.preprocess import Box

SIDE = 640  # pixels of the longer side of the result, at most
_DARK = np.array((10.0, 12.0, 20.0), np.float32)  # no evidence: nearly black
_AGAINST = np.array((213.0, 94.0, 0.0), np.float32)  # negative evidence: orange
_SHADE = 0.66  # opacity of both colours
_FRAME = 320  # pixels of a frame on a sheet, at most
_GAP = 2  # pixels between frames


def draw(
    retriever: Retriever, evidence: QueryEvidence, image_id: int, word: str | None
) -> Image.Image:
    """Draws the evidence of all words, or of all occurrences of one word, over an image.

    Raises ValueError if the word is unknown, there is no map, or the image cannot be opened.
    """
    if evidence.has_no_map:
        raise ValueError(NO_MAP)
    if word is not None and word.strip():  # use the form that the pack knows
        word = retriever.reworded(word)
    cells = _cells(evidence, word)
    if retriever.reads_sets and retriever.image(image_id).moment:
        image, box, smooth = draw_sheet(retriever, image_id), (0.0, 0.0, 1.0, 1.0), False
    else:
        image, smooth = retriever.open(image_id), True
        box = retriever.info.preprocess.visible_box(*image.size)
    image.thumbnail((SIDE, SIDE))
    return darken(image, cells, box, smooth=smooth)


def darken(
    image: Image.Image, evidence: np.ndarray, box: Box = (0, 0, 1, 1), *, smooth: bool = True
) -> Image.Image:
    """Darkens an image except in cells with positive evidence, which keep their colours.

    Args:
        image: RGB, any size.
        evidence: (rows, columns), drawn relative to its largest magnitude; negative evidence is
            drawn in orange.
        box: the part of the image that the cells cover, relative xyxy.
        smooth: interpolate between cells; False for the frames of a sheet.

    Returns:
        RGB of the image's size.
    """
    left, above = round(box[0] * image.width), round(box[1] * image.height)
    right = max(round(box[2] * image.width), left + 1)
    below = max(round(box[3] * image.height), above + 1)
    relative = (evidence / max(float(np.abs(evidence).max()), 1e-9)).astype(np.float32)
    resampling = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST

    def enlarged(cells: np.ndarray) -> np.ndarray:
        large = Image.fromarray(cells.clip(0, 1)).resize((right - left, below - above), resampling)
        return np.asarray(large).clip(0, 1)[..., None]  # (h, w, 1)

    shade = _SHADE * (1 - enlarged(relative))
    colours = _DARK + (_AGAINST - _DARK) * enlarged(-relative)
    out = np.asarray(image, np.float32) * (1 - _SHADE) + _DARK * _SHADE
    part = np.asarray(image, np.float32)[above:below, left:right]
    out[above:below, left:right] = part * (1 - shade) + colours * shade
    return Image.fromarray(np.rint(out.clip(0, 255)).astype(np.uint8))


def draw_sheet(retriever: Retriever, image_id: int) -> Image.Image:
    """Draws the sheet of the frames of an image's set, each cropped to the encoder's input.

    Raises ValueError if no frame can be opened.
    """
    ids = retriever.index.clips.window_of(image_id)
    rows, columns = sheet_shape(len(ids))
    side = min(_FRAME, SIDE // columns)
    sheet = Image.new("RGB", (columns * side, rows * side))
    font = ImageFont.load_default(max(10, side // 11))
    thumbnails = retriever.thumbnails(list(dict.fromkeys(ids)))
    if not thumbnails:
        raise ValueError(f"{retriever.image(image_id).file} cannot be opened any more")
    for index, frame in enumerate(ids):
        if frame not in thumbnails:
            continue
        with Image.open(thumbnails[frame]) as image:
            visible = retriever.info.preprocess.visible_box(*image.size)
            left, top, right, bottom = np.multiply(visible, 2 * image.size).tolist()
            size = (side - _GAP, side - _GAP)
            tile = image.convert("RGB").resize(size, box=(left, top, right, bottom))
        if moment := retriever.image(frame).moment:
            pen, label = ImageDraw.Draw(tile), f"{moment.seconds:.1f} s"
            pen.rectangle(pen.textbbox((4, 2), label, font), "black")
            pen.text((4, 2), label, "white", font)
        row, column = divmod(index, columns)
        sheet.paste(tile, (column * side, row * side))
    return sheet


def _cells(evidence: QueryEvidence, word: str | None) -> np.ndarray:
    """The evidence (rows, columns) of all words, or of one; raises ValueError if it is unknown."""
    total = np.zeros(evidence.grid)
    for term in evidence.terms:
        if word is None:
            total += term.cells[0].sum(axis=-1) + term.whole_sentence[0]
        else:
            matches = [token.casefold() == word.strip().casefold() for token in term.words]
            total += term.cells[0][..., matches].sum(axis=-1)
    words = [token for term in evidence.terms for token in term.words]
    if word is not None and word.strip().casefold() not in map(str.casefold, words):
        choices = ", ".join(dict.fromkeys(words))
        raise ValueError(f'there is no word "{word[:80]}" in the query; choose one of {choices}')
    return total
