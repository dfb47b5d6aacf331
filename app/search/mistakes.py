"""Ranks every caption of a collection, or of a file, with every method of a pack."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch

from polyview.app.gallery.index import Gallery, shared_processors
from polyview.app.search.answers import MAX_QUERY
from polyview.app.search.readings import Reading
from polyview.app.search.retriever import Retriever
from polyview.export.mistakes import Caption, rank_captions
from polyview.models import Views

MAX_QUERIES = 5000  # captions of one file
_IMAGES, _LOWEST = 512, -1e9  # images scored at once; the score of a file outside the gallery


def add_queries(retriever: Retriever, content: bytes) -> str:
    """Stores the captions of a file, see `read_queries`; returns their key for `captions_of`."""
    key = hashlib.sha256(content).hexdigest()[:16]
    retriever.readings.keep(key, Reading(read_queries(retriever, content)))
    return key


def captions_of(retriever: Retriever, queries: str = "") -> list[Caption] | None:
    """The captions of a key from `add_queries`, or the collection's; None if no longer stored.

    Raises ValueError if the collection has no captions.
    """
    if queries:
        return retriever.readings.get(queries, Reading()).result
    collection = retriever.collection
    if not collection.captions:
        raise ValueError("these images have no captions; send a CSV file of queries and images")
    truths = [image.truth.captions if image.truth else () for image in collection.images]
    kinds = {(i, fact.text): fact.view for i, facts in enumerate(truths) for fact in facts}
    return [
        Caption(text, (i, *collection.relevant.get(text, ())), kinds.get((i, text)) or "")
        for text, i in collection.captions
    ]


def read_ranks(
    retriever: Retriever, captions: list[Caption], specs: Iterable[str], queries: str = ""
) -> Reading:
    """Ranks captions by all methods and by averages; see `rank_captions`, `Readings.compute`."""
    ranks, methods = dict[str, np.ndarray](), (*reversed(retriever.methods.best_first),)
    for group in (methods, *((spec,) for spec in specs if spec not in methods)):
        work = partial(_rank, retriever, captions, group, not queries)
        failure = "the captions could not be ranked"
        reading = retriever.readings.compute((queries, group), work, failure)
        if reading.result is None:
            return reading
        ranks |= reading.result
    return Reading(ranks)


def _rank(
    retriever: Retriever, captions: list[Caption], specs: Sequence[str], own: bool, reading: Reading
) -> dict[str, np.ndarray]:
    """Ranks captions by methods or averages; stores the ranks of the collection's own captions."""
    index = retriever.index
    texts = [] if own else [retriever.reworded(caption.text) for caption in captions]
    id_range, encode = range(len(captions)), retriever.runtime.text_views

    def scores(spec: str, part: slice) -> np.ndarray:
        reading.progress, values = f"ranked {part.start:,} of {len(captions):,} captions", []
        for name in spec.split("+"):
            views = index.captions[name].views(id_range[part]) if own else encode(texts[part], name)
            values.append(file_scores(index.images[name], views, index.files))
        return reduce(np.add, values)

    rank = partial(rank_captions, captions, specs, index.files, scores)
    if not own:
        return rank()
    state = hashlib.sha256(repr((retriever.info.checksum, specs, captions)).encode())
    for ids, images in retriever.gallery(retriever.methods.best).chunks():
        state.update(ids.tobytes() + images.embeddings.cpu().numpy().tobytes())
    stored = index.encoder.store.cached(state.hexdigest(), specs, lambda _: rank().values())
    return {spec: stored[spec].astype(np.int32) for spec in specs}


@torch.inference_mode()
def file_scores(gallery: Gallery, texts: Views, files: int) -> np.ndarray:
    """Scores (q, N) of texts (q, W, D) and all N files of a collection.

    A clip has the score of its best window; a file that is not in the gallery has `_LOWEST`.
    """
    scores = torch.full((len(texts), files), _LOWEST)
    with shared_processors(files):
        for ids in torch.from_numpy(gallery.ids()).split(_IMAGES):
            images = gallery.views(ids.numpy())
            part = gallery.method.score(images, texts.to(images.embeddings.device))  # (n, q)
            rows = (ids % files).expand(len(texts), -1)  # (q, n)
            scores.scatter_reduce_(1, rows, part.T.float().cpu(), "amax")
    return scores.numpy()


def read_queries(retriever: Retriever, content: bytes) -> list[Caption]:
    """Reads captions from a CSV file with the columns query, image and, optionally, kind.

    An image is a file name, with or without its folders, or an id. Several lines with the same
    query name several right images, the labelled one first.

    Raises:
        ValueError: a line cannot be read, or there are no queries or too many.
    """
    captions, names = dict[str, Caption](), dict[str, int]()
    for image in retriever.collection.images:
        forms = (str(image.image_id), Path(image.file).name, image.file)
        names |= dict.fromkeys(forms, image.image_id)
    for number, line in enumerate(csv.reader(content.decode(errors="replace").splitlines()), 1):
        text, name, kind = (*(cell.strip("\ufeff ") for cell in line), "", "", "")[:3]
        if not text + name or (number == 1 and name.lower() == "image"):
            continue
        if not text or len(text) > MAX_QUERY or name not in names:
            raise ValueError(
                f'line {number} must name a query and an image of the collection, as in "a dog,'
                f'dog.jpg", not "{text[:80]}" and "{name[:80]}"'
            )
        retriever.reworded(text)
        right = captions[text].right if text in captions else ()
        captions[text] = Caption(text, (*right, names[name]), kind)
    if not 0 < len(captions) <= MAX_QUERIES:
        raise ValueError(f"the file has {len(captions):,} queries; send 1 to {MAX_QUERIES:,}")
    return [*captions.values()]
