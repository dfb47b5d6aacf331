"""Evidence for answers: splits the scores of images over their cells and the query's words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from polyview.app.explain.places import to_maps, to_sheet
from polyview.app.search.retriever import Retriever, Term, combine_terms
from polyview.models import Views
from polyview.models.evidence import Evidence, mean_evidence

NO_MAP = (
    "No map can be drawn: this method reads only a summary of the whole image. "
    "Convert a CLIP pack again to get evidence of patches."
)


@dataclass(frozen=True)
class TermEvidence:
    """The contributions of one query term to the scores of n images, times its weight.

    With `per_view`, an axis V follows n in all arrays.

    Attributes:
        term: the term.
        words: M words as their encoder reads them, without special tokens such as [CLS]; empty for
            an image, whose columns are its cells.
        cells: (n, rows, columns, M) for each cell and each word (or each cell of a query image).
        whole_sentence: (n, rows, columns) for each cell and the special tokens, with the part of
            the text that cannot be split over words.
        base: (n,) for constants and summaries such as [CLS], which have no location.
    """

    term: Term
    words: tuple[str, ...]
    cells: np.ndarray
    whole_sentence: np.ndarray
    base: np.ndarray


@dataclass(frozen=True)
class QueryEvidence:
    """Scores, and the evidence that adds up to them.

    Attributes:
        grid: rows and columns of an image's cells.
        scores: (n,) as in a search; (n, V) for each view with `per_view`.
        terms: the distinct terms of nonzero weight, see `app.search.retriever.combine_terms`.
        seconds: for clips that are read as sets, the times of the frames on each of n sheets
            (`app/explain/places.py`); empty for others.
    """

    grid: tuple[int, int]
    scores: np.ndarray
    terms: tuple[TermEvidence, ...]
    seconds: tuple[tuple[float, ...], ...] = ()

    @property
    def has_no_map(self) -> bool:
        """Whether no part of the evidence has a location in the image."""
        maps = (array for term in self.terms for array in (term.cells, term.whole_sentence))
        return bool(self.terms) and not any(array.any() for array in maps)


@torch.inference_mode()
def explain(
    retriever: Retriever,
    terms: Sequence[Term],
    spec: str,
    images: Sequence[int] | Image.Image,
    *,
    per_view: bool = False,
) -> QueryEvidence:
    """Splits the scores that images have for a query.

    Args:
        retriever: the pack and its images.
        terms: at least one.
        spec: a method of the pack, or several joined by "+", whose scores are averaged.
        images: the ids of images of the collection, at least one; or any decoded image.
        per_view: split the scores of each view, see `Method.view_scores`; needs a single method.

    Raises:
        ValueError: an image or method is unknown, a term is not valid, or the score cannot be
            split.
    """
    names = (spec,) if per_view else retriever.methods.names(spec)
    methods = [retriever.methods.require_single(name) for name in names]
    image_parts = [retriever.parts(images, name) for name in names]
    views = [Views(parts.total) for parts in image_parts]
    scores = np.zeros(views[0].embeddings.shape[: 2 if per_view else 1])  # (n, V) or (n,)
    evidence = []
    for term in combine_terms(terms):
        subject = retriever.subject(term)
        split = []
        for name, method, parts, image in zip(names, methods, image_parts, views, strict=True):
            query = retriever.parts(subject, name)
            split.append(method.evidence(parts, query, per_view=per_view).scaled(term.weight))
            score = method.view_scores if per_view else method.score
            rows = score(image, Views(query.total))[..., 0].movedim(-1, 0)  # (n,) or (n, V)
            scores += term.weight / len(names) * rows.double().cpu().numpy()
        evidence.append(_term_evidence(mean_evidence(split), term, retriever, images))
    seconds: tuple[tuple[float, ...], ...] = ()
    if retriever.reads_sets and not isinstance(images, Image.Image):
        clips = [map(retriever.image, retriever.index.clips.window_of(i)) for i in images]
        seconds = tuple(tuple(f.moment.seconds for f in clip if f.moment) for clip in clips)
    rows, columns = evidence[0].whole_sentence.shape[-2:] if evidence else retriever.grid
    return QueryEvidence((rows, columns), scores, tuple(evidence), seconds)


def _term_evidence(
    split: Evidence, term: Term, retriever: Retriever, images: Sequence[int] | Image.Image
) -> TermEvidence:
    """Arranges evidence on the grid; parts without a location go to the other fields."""
    subject = retriever.subject(term)
    has_words, words = isinstance(subject, str), list[str]()
    table, sentence = split.cells, split.whole_sentence  # (n, ..., N, M), (n, ..., N)
    if isinstance(subject, str):
        tokens = retriever.read(subject)
        special = sorted(tokens.special)
        columns = sorted({*range(len(tokens.words))} - tokens.special)
        sentence, table = sentence + table[..., special].sum(dim=-1), table[..., columns]
        words = [tokens.words[column] for column in columns]
    if retriever.reads_sets:  # a query image is one column
        table = table if has_words else table.sum(dim=-1, keepdim=True)
        cells, whole_map = to_sheet(retriever, table.mT), to_sheet(retriever, sentence)
        total = table.sum(dim=(-2, -1)) + sentence.sum(dim=-1)
        base = split.base + total - cells.sum(dim=(-3, -2, -1)) - whole_map.sum(dim=(-2, -1))
    else:
        count = math.prod(retriever.grid)
        if retriever.runtime.regions is not None:
            count = sentence.shape[-1]  # every region has a location
        if not isinstance(subject, str):  # the features of a query image have locations, too
            sentence = sentence + table[..., :-count].sum(dim=-1)
            table = to_maps(retriever, table[None, ..., -count:], subject)[0].flatten(-2)
        unplaced = table[..., :-count, :].sum(dim=(-2, -1)) + sentence[..., :-count].sum(dim=-1)
        base = split.base + unplaced
        cells = to_maps(retriever, table[..., -count:, :].mT, images)
        whole_map = to_maps(retriever, sentence[..., -count:], images)
    return TermEvidence(
        term,
        tuple(words),
        cells.movedim(-3, -1).float().cpu().numpy(),
        whole_map.float().cpu().numpy(),
        base.float().cpu().numpy(),
    )
