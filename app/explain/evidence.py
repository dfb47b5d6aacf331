"""Evidence: splits the scores of images over cells and the query's words, and draws the result.

Cells are those of an encoder's grid, or of a grid over boxes of regions. A clip that is read as a
set is shown as a sheet of its frames, row by row in time order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.search.hits import QueryTerm, image_size
from polyview.app.search.retriever import Retriever, Subject, Term, combine_terms
from polyview.models import Views
from polyview.models.evidence import Evidence, mean_evidence
from polyview.models.preprocess import Box

MAX_NUMBERS = 500_000  # maximum number of contributions of all images together
SIDE = 640  # maximum pixels of the longer side of the drawn image
_DARK = np.array((10.0, 12.0, 20.0), np.float32)  # no evidence: nearly black
_ORANGE = np.array((213.0, 94.0, 0.0), np.float32)  # negative evidence
_OPACITY = 0.66  # opacity of both colours
NO_MAP = (
    "No map can be drawn: this method reads only a summary of the whole image. "
    "If the pack was converted from CLIP, convert it again to get evidence of patches."
)


@dataclass(frozen=True)
class QueryEvidence:
    """The scores of n images for a query, split over their cells and the query's words.

    A score is the sum of `base`, `cells` and `whole_sentence`. With `per_view`, an axis V follows n
    in all arrays. `words` are the M words of all terms as the encoder reads them, without special
    tokens such as [CLS]. A query image adds "" for each cell, or one "" if the pack reads sets.
    `whole_sentence` has contributions that belong to a special token or to no single word. `base`
    has contributions without a location in the image: constants and summaries such as [CLS].
    """

    scores: np.ndarray  # (n,) the scores that a search returns
    terms: tuple[QueryTerm, ...]  # distinct terms with nonzero weights and their numbers of words
    words: tuple[str, ...]
    cells: np.ndarray  # (n, rows, columns, M)
    whole_sentence: np.ndarray  # (n, rows, columns)
    base: np.ndarray  # (n,)
    seconds: tuple[tuple[float, ...], ...] = ()  # times of the frames on each sheet

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image's cells."""
        return self.whole_sentence.shape[-2], self.whole_sentence.shape[-1]

    @property
    def has_no_map(self) -> bool:
        """True if no contribution to the score has a location in the image."""
        return bool(self.terms) and not (self.cells.any() or self.whole_sentence.any())


@torch.inference_mode()
def explain(
    retriever: Retriever,
    terms: Sequence[Term],
    spec: str,
    images: Sequence[int],
    *,
    per_view: bool = False,
) -> QueryEvidence:
    """Splits the scores of images over their cells and over the words of the terms.

    `images` and `terms` are not empty. `spec` is a method of the pack, or several joined by
    "+", whose scores are averaged. `per_view` splits the scores of each view (`Method.view_scores`)
    and requires a single method. Raises ValueError if an image or method is unknown, a term is not
    valid, the score cannot be split, or the evidence has more than `MAX_NUMBERS` numbers.
    """
    names = (spec,) if per_view else retriever.methods.names(spec)
    methods = [retriever.methods.require_single(name) for name in names]
    all_parts = [retriever.parts(images, name) for name in names]
    image_views = [Views(parts.total) for parts in all_parts]
    scores = np.zeros(image_views[0].embeddings.shape[: 2 if per_view else 1])  # (n, V) or (n,)
    words, query_terms, evidence = list[str](), list[QueryTerm](), list[Evidence]()
    for term in combine_terms(terms):
        subject, splits = retriever.subject(term), list[Evidence]()
        for name, method, parts, views in zip(names, methods, all_parts, image_views, strict=True):
            query = retriever.parts(subject, name)
            splits.append(method.evidence(parts, query, per_view=per_view).scaled(term.weight))
            score = method.view_scores if per_view else method.score
            term_scores = score(views, Views(query.total))[..., 0].movedim(-1, 0)  # (n,) or (n, V)
            scores += term.weight / len(names) * term_scores.double().cpu().numpy()
        labels, term_evidence = _locate(mean_evidence(splits), subject, retriever, images)
        words += labels
        evidence.append(term_evidence)
        if sum(item.cells.numel() for item in evidence) > MAX_NUMBERS:
            advice = "request fewer images, or use fewer example images"
            raise ValueError(f"the evidence has more than {MAX_NUMBERS:,} numbers; {advice}")
        count = len(labels) if isinstance(subject, str) else 0
        query_terms.append(QueryTerm(words=term.words, weight=term.weight, count=count))
    sets = [map(retriever.image, frame_ids) for frame_ids in sheets(retriever, images)[1]]
    seconds = tuple(tuple(f.moment.seconds for f in frames if f.moment) for frames in sets)
    grid = evidence[0].whole_sentence.shape[-2:] if evidence else retriever.grid
    tables = [np.zeros((*scores.shape, *grid, 0), np.float32)]
    whole_sentence = np.zeros((*scores.shape, *grid), np.float32)
    base = np.zeros(scores.shape)
    for term_evidence in evidence:
        tables.append(term_evidence.cells.float().cpu().numpy())
        whole_sentence += term_evidence.whole_sentence.float().cpu().numpy()
        base += term_evidence.base.cpu().numpy()
    cells = np.concatenate(tables, axis=-1)
    return QueryEvidence(
        scores, tuple(query_terms), tuple(words), cells, whole_sentence, base, seconds
    )


def _locate(
    evidence: Evidence, subject: Subject, retriever: Retriever, images: Sequence[int]
) -> tuple[list[str], Evidence]:
    """Returns a term's words and evidence as maps; evidence without a location joins the base."""
    table, sentence = evidence.cells, evidence.whole_sentence  # (n, ..., N, M), (n, ..., N)
    words: list[str] = []
    if isinstance(subject, str):
        tokens = retriever.tokenize(subject)
        special = sorted(tokens.special)
        columns = sorted({*range(len(tokens.words))} - tokens.special)
        sentence, table = sentence + table[..., special].sum(dim=-1), table[..., columns]
        words = [tokens.words[column] for column in columns]
    elif retriever.reads_sets:  # one column for the whole query image
        table = table.sum(dim=-1, keepdim=True)
    else:  # one column for each cell of the query image
        regions = retriever.runtime.regions
        count = math.prod(retriever.grid) if regions is None else table.shape[-1]
        sentence = sentence + table[..., :-count].sum(dim=-1)  # summaries of the query image
        table = to_maps(retriever, table[None], subject)[0].flatten(-2)  # (n, ..., N, cells)
    cells, whole_map = to_maps(retriever, table.mT, images), to_maps(retriever, sentence, images)
    total = table.sum((-2, -1), dtype=torch.float64) + sentence.sum(-1, dtype=torch.float64)
    map_total = cells.sum((-3, -2, -1), dtype=torch.float64)
    map_total = map_total + whole_map.sum((-2, -1), dtype=torch.float64)
    cells = cells.movedim(-3, -1)  # (n, ..., rows, columns, M)
    words = words or [""] * cells.shape[-1]
    return words, Evidence(cells, whole_map, evidence.base + total - map_total)


def to_maps(
    retriever: Retriever, values: Tensor, images: Sequence[int] | Image.Image, adds_up: bool = True
) -> Tensor:
    """Arranges N values of each of n images (n, ..., N) as maps (n, ..., rows, columns).

    A set of frames becomes a sheet (`to_sheet`). The value of a region is spread over its box. A
    cell in several boxes has the sum of their values, or the largest if `adds_up` is False.
    """
    regions = retriever.runtime.regions
    if retriever.reads_sets:
        return to_sheet(retriever, values)
    if regions is None or isinstance(images, Image.Image):
        return retriever.runtime.to_grid(values)
    to_map = regions.sum_map if adds_up else regions.max_map
    return torch.stack([to_map(i, part) for i, part in zip(images, values, strict=True)])


def sheet_shape(count: int) -> tuple[int, int]:
    """Returns rows and columns of a sheet of `count` frames, such as (3, 4) for 10."""
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def sheets(retriever: Retriever, images: Sequence[int]) -> tuple[list[int] | None, list[list[int]]]:
    """Returns [rows, columns] of a sheet and frame ids by image; (None, []) if not `reads_sets`."""
    if not retriever.reads_sets:
        return None, []
    frames = [retriever.index.clips.window_of(image_id) for image_id in images]
    return list(sheet_shape(max(map(len, frames)))), frames


def box(retriever: Retriever, image_id: int) -> list[float]:
    """Returns the area that cells cover: left, top, right, bottom as shares of the image's size."""
    size = image_size(retriever.thumbnail(image_id))
    return list(retriever.info.preprocess.visible_box(*size))


def to_sheet(retriever: Retriever, values: Tensor) -> Tensor:
    """Tiles T maps (r, c) as a sheet of R x C maps; `values` (..., T * N) has N numbers per map."""
    frames = retriever.runtime.to_grid(values.unflatten(-1, (-1, len(retriever.runtime.boxes))))
    count = frames.shape[-3]  # (..., T, r, c)
    rows, columns = sheet_shape(count)
    padded = torch.nn.functional.pad(frames, (0, 0, 0, 0, 0, rows * columns - count))
    tiles = padded.unflatten(-3, (rows, columns)).transpose(-3, -2)  # (..., R, r, C, c)
    return tiles.flatten(-4, -3).flatten(-2)  # (..., R * r, C * c)


def draw(
    retriever: Retriever, evidence: QueryEvidence, image_id: int, word: str | None
) -> Image.Image:
    """Draws the evidence of all words, or of all occurrences of one word, over an image.

    Raises ValueError if the query lacks the word, no contribution has a location in the image,
    the image is a clip that is read as a set, or the image cannot be opened.
    """
    if evidence.has_no_map:
        raise ValueError(NO_MAP)
    if retriever.reads_sets and retriever.image(image_id).moment:
        raise ValueError("this pack explains a clip by its frames; open the app to see them")
    cells = evidence.cells[0].sum(axis=-1) + evidence.whole_sentence[0]
    if word is not None:
        key = retriever.reword(word).casefold() if word.strip() else ""  # as the pack reads it
        matches = [bool(token) and token.casefold() == key for token in evidence.words]
        if not any(matches):
            words = ", ".join(dict.fromkeys(filter(None, evidence.words)))
            raise ValueError(f'there is no word "{word[:80]}" in the query; choose one of {words}')
        cells = evidence.cells[0][..., matches].sum(axis=-1)
    image = retriever.image(image_id).decode()
    box = retriever.info.preprocess.visible_box(*image.size)
    image.thumbnail((SIDE, SIDE))
    return darken(image, cells, box)


def darken(image: Image.Image, evidence: np.ndarray, box: Box = (0, 0, 1, 1)) -> Image.Image:
    """Darkens an RGB image, except in cells with positive evidence, which keep their colours.

    `evidence` (rows, columns) is drawn relative to its largest magnitude; negative evidence is
    orange. `box` is the area that the cells cover: left, top, right, bottom as shares of the size.
    """
    left, top = round(box[0] * image.width), round(box[1] * image.height)
    right = max(round(box[2] * image.width), left + 1)
    bottom = max(round(box[3] * image.height), top + 1)
    strength = (evidence / max(float(np.abs(evidence).max()), 1e-9)).astype(np.float32)

    def enlarge(cells: np.ndarray) -> np.ndarray:  # resizes to the box, limits values to 0..1
        large = Image.fromarray(cells.clip(0, 1)).resize((right - left, bottom - top))
        return np.asarray(large).clip(0, 1)[..., None]  # (h, w, 1)

    opacity = _OPACITY * (1 - enlarge(strength))
    colours = _DARK + (_ORANGE - _DARK) * enlarge(-strength)
    out = np.asarray(image, np.float32) * (1 - _OPACITY) + _DARK * _OPACITY
    area = np.asarray(image, np.float32)[top:bottom, left:right]
    out[top:bottom, left:right] = area * (1 - opacity) + colours * opacity
    return Image.fromarray(np.rint(out.clip(0, 255)).astype(np.uint8))
