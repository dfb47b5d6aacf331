"""Endpoints for mistakes: captions whose image one method retrieves and another misses."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.gallery.index import Gallery, shared_processors
from polyview.app.packs.state import AppState
from polyview.app.refusal import Refusal
from polyview.app.search.computations import Computation
from polyview.app.search.retriever import Retriever
from polyview.export.mistakes import (
    Caption,
    compare,
    count_by_kind,
    count_cells,
    has_complete_labels,
    rank_captions,
    summarize,
    to_csv,
    typical_words,
)
from polyview.models import Views

MAX_QUERIES = 5000  # captions of one file
_IMAGE_BATCH = 512  # images scored at the same time


def add_queries(retriever: Retriever, content: p.Table) -> answers.Queries:
    """Stores a CSV file of queries and their correct images; returns its key for `mistakes`."""
    key = hashlib.sha256(content).hexdigest()[:16]
    retriever.computations.store(key, Computation(parse_queries(retriever, content)))
    return answers.Queries(queries=key)


def mistakes(
    state: AppState,
    retriever: Retriever,
    a: p.Method = "",
    b: p.Method = "",
    k: p.Depth = 1,
    cell: p.Cell = "a",
    kind: p.CaptionKind = "",
    order: p.Order = "gap",
    within: p.Within = p.NONE,
    start: p.Start = 0,
    count: p.Rows = 20,
    queries: p.Queries = "",
    format: p.Format = "json",
) -> answers.Mistakes | answers.Blob:
    """Groups captions by which of two methods ranks a correct image in its top k."""
    methods, galleries = retriever.methods, retriever.index.images
    # by default, compare a method of one view with a method of several views, if the pack has both
    is_multi = {name: (galleries[name].shape or (1,))[0] > 1 for name in methods.ranked_names}
    a = a or min(is_multi, key=lambda name: (name == b, is_multi[name] == is_multi.get(b)))
    b = b or min(is_multi, key=lambda name: (name == a, is_multi[name] == is_multi.get(a)))
    a, b = ("+".join(sorted(methods.names(spec), key=[*methods].index)) for spec in (a, b))
    if a == b:
        raise ValueError(f'"{a[:80]}" is compared with itself; choose two methods')
    captions = load_captions(retriever, queries)
    computation = rank_in_background(retriever, captions, (a, b), queries)
    if computation.result is None:
        return answers.Mistakes(a=a, b=b, k=k, **state.status(computation))
    ranks_a, ranks_b, ranks_best = (computation.result[spec] for spec in (a, b, methods.best))
    depth = min(k, len(retriever.index))  # files outside the gallery are never found
    all_rows = compare(captions, ranks_a[:2], ranks_b[:2], ranks_best[2], depth)
    kinds, rows = count_by_kind(all_rows), [row for row in all_rows if row.matches(kind)]
    if not rows:
        choices = ", ".join(entry["kind"] for entry in kinds)
        raise ValueError(f'no caption is of the kind "{kind}"; choose word:WORD or {choices}')
    summary, pairs = summarize(rows), Counter((row.rank_a, row.rank_b) for row in rows)
    if within:
        if len(within) != 4:
            advice = "give the lowest and highest rank by a, then by b"
            raise ValueError(f"within must have 4 ranks, not {len(within)}; {advice}")
        low_a, high_a, low_b, high_b = within
        selected = {r for r in rows if low_a <= r.rank_a <= high_a and low_b <= r.rank_b <= high_b}
        others = {*rows} - selected
        summary["words_a"] = typical_words(selected, others)
        summary["words_b"] = typical_words(others, selected)
        summary["counts"], rows = count_cells(selected), sorted(selected)
    suspects = [row for row in rows if row.suspect is not None]  # captions with label errors
    subset = suspects if cell == "labels" else [row for row in rows if cell in ("all", row.found)]
    if order == "gap":  # the largest differences first
        subset.sort(key=lambda row: row.rank_a / row.rank_b, reverse=cell == "b")
    elif order != "caption":
        subset.sort(key=lambda row: row.rank_a if order == "a" else row.rank_b)
    if format == "csv":
        table = to_csv(subset)
        return answers.Blob(media_type="text/csv; charset=utf-8", data=table.encode())
    summary |= {"exact": has_complete_labels(captions), "kinds": kinds, "labels": len(suspects)}
    summary |= {"total": len(subset), "pairs": [[*ranks, count] for ranks, count in pairs.items()]}
    page = [row._asdict() for row in subset[start : start + count]]
    return answers.Mistakes(state="ready", progress="", a=a, b=b, k=k, captions=page, **summary)


def load_captions(retriever: Retriever, queries: str = "") -> list[Caption]:
    """Returns the captions of the collection, or those stored under the key `queries`.

    In stored captions, an image that is left out as a copy is replaced by its original.
    Raises `Refusal` if the key is no longer stored, ValueError if the collection has no captions.
    """
    if queries:
        captions = retriever.computations.get(queries, Computation()).result
        if captions is None:
            raise Refusal(410, "these queries are no longer stored; send the file again")
        ids = {image.file: image.image_id for image in retriever.collection.images}
        originals = {ids[copy.file]: ids[copy.same_as] for copy in retriever.index.copies}
        return [c._replace(right=tuple(originals.get(i, i) for i in c.right)) for c in captions]
    collection = retriever.collection
    if not collection.captions:
        raise ValueError("these images have no captions; send a CSV file of queries and images")
    truths = [image.truth.captions if image.truth else () for image in collection.images]
    kinds = {(i, fact.text): fact.view for i, facts in enumerate(truths) for fact in facts}
    return [
        Caption(text, (i, *collection.relevance.get(text, ())), kinds.get((i, text)) or "")
        for text, i in collection.captions
    ]


def rank_in_background(
    retriever: Retriever, captions: list[Caption], specs: Iterable[str], queries: str = ""
) -> Computation:
    """Ranks the images for each caption in the background: by all methods, then by each of `specs`.

    Call again until `result` or `problem` is set. `result` maps a spec to ranks (`rank_captions`).
    """
    ranks, methods = dict[str, np.ndarray](), (*reversed(retriever.methods.ranked_names),)
    for group in (methods, *((spec,) for spec in specs if spec not in methods)):
        work = partial(_rank, retriever, captions, group, not queries)
        failure = "the captions could not be ranked"
        computation = retriever.computations.compute((queries, group), work, failure)
        if computation.result is None:
            return computation
        ranks |= computation.result
    return Computation(ranks)


def _rank(
    retriever: Retriever,
    captions: list[Caption],
    specs: Sequence[str],
    from_collection: bool,
    computation: Computation,
) -> dict[str, np.ndarray]:
    """Calls `rank_captions`; stores the ranks of captions of the collection on disk."""
    index, encode = retriever.index, retriever.runtime.text_views
    texts = [] if from_collection else [retriever.reword(caption.text) for caption in captions]

    def scores(spec: str, rows: slice) -> np.ndarray:  # (q captions, N files)
        computation.progress = f"ranked {rows.start:,} of {len(captions):,} captions"
        ids, by_method = range(len(captions))[rows], []
        for name in spec.split("+"):
            views = encode(texts[rows], name) if texts else index.captions[name].views(ids)
            by_method.append(file_scores(index.images[name], views, index.file_count))
        return reduce(np.add, by_method)

    rank = partial(rank_captions, captions, specs, index.file_count, scores)
    if not from_collection:
        return rank()
    # the stored ranks are valid for this pack, these captions and these views of images
    digest = hashlib.sha256(repr((retriever.info.checksum, specs, captions)).encode())
    for ids, images in retriever.index.images[retriever.methods.best].chunks():
        digest.update(ids.tobytes() + images.embeddings.cpu().numpy().tobytes())
    stored = index.encoder.store.cached(digest.hexdigest(), specs, lambda _: rank().values())
    return {spec: stored[spec].astype(np.int32) for spec in specs}


@torch.inference_mode()
def file_scores(gallery: Gallery, texts: Views, file_count: int) -> np.ndarray:
    """Returns scores (q, N) of q texts and N files; -1e9 for files outside the gallery."""
    scores = torch.full((len(texts), file_count), -1e9)
    with shared_processors(file_count):
        for ids in torch.from_numpy(gallery.ids()).split(_IMAGE_BATCH):
            images = gallery.views(ids.numpy())
            batch = gallery.method.score(images, texts.to(images.embeddings.device))  # (n, q)
            columns = (ids % file_count).expand(len(texts), -1)  # (q, n)
            scores.scatter_reduce_(1, columns, batch.T.float().cpu(), "amax")
    return scores.numpy()


def parse_queries(retriever: Retriever, content: bytes) -> list[Caption]:
    """Parses captions from a CSV file with the columns query, image and, optionally, kind.

    An image is named by its file, with or without folders, or by its id. If several lines have the
    same query, all their images are correct, and the first is the labelled one. Raises ValueError
    if a line is not valid, or if the file has no queries or more than `MAX_QUERIES`.
    """
    captions, image_ids = dict[str, tuple[dict[int, None], str]](), dict[str, int]()
    for image in retriever.collection.images:
        spellings = (str(image.image_id), Path(image.file).name, image.file)
        image_ids |= dict.fromkeys(spellings, image.image_id)
    try:
        lines = list(csv.reader(content.decode(errors="replace").splitlines()))
    except csv.Error as error:
        raise ValueError(f"the file is not valid CSV ({error}); save the table as CSV") from error
    for number, line in enumerate(lines, 1):
        text, name, kind = (*(cell.strip("\ufeff ") for cell in line), "", "", "")[:3]
        if not text + name or (number == 1 and name.lower() == "image"):  # empty or the header
            continue
        if not text or len(text) > p.MAX_QUERY or name not in image_ids:
            rule = 'must name a query and an image of the collection, such as "a dog,dog.jpg"'
            raise ValueError(f'line {number} {rule}, not "{text[:80]}" and "{name[:80]}"')
        if text not in captions:
            retriever.reword(text)  # raises ValueError for a text without a word
        right, _ = captions.get(text, ({}, ""))
        right[image_ids[name]] = None
        captions[text] = right, kind
        if len(captions) > MAX_QUERIES:
            raise ValueError(f"the file has more than {MAX_QUERIES:,} queries; send fewer")
    if not captions:
        raise ValueError(f"the file has 0 queries; send 1 to {MAX_QUERIES:,}")
    return [Caption(text, (*right,), kind) for text, (right, kind) in captions.items()]
