"""Ranks every caption of a collection, or of a file, with every method of a pack."""

from __future__ import annotations

import csv
import hashlib
import logging
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch

from polyview.app.gallery.index import Gallery
from polyview.app.search.background import Background, Reading
from polyview.app.search.query import MAX_QUERY
from polyview.app.search.ranking import shared_processors
from polyview.app.search.retriever import Retriever
from polyview.export.mistakes import PART_BYTES, Captions, Ranks, rank_captions
from polyview.models import Views
from polyview.models.files import replacing

MAX_QUERIES = 5000  # captions of one file

_log = logging.getLogger(__name__)
Ranked = tuple[dict[str, Ranks], np.ndarray]  # see `rank_captions`


class Mistakes(Background):
    """Ranks captions in the background; keeps captions of files."""

    def __init__(self) -> None:
        super().__init__("the captions could not be ranked")

    def add_queries(self, retriever: Retriever, content: bytes) -> str:
        """Adds the captions of a file for `captions`; returns their key; see `read_queries`."""
        key = hashlib.sha256(content).hexdigest()[:16]
        self.readings(retriever)[key] = Reading(read_queries(retriever, content))
        return key

    def captions(self, retriever: Retriever, queries: str = "") -> Captions | None:
        """The captions of a key from `add_queries`, or the collection's; None if forgotten.

        Raises:
            ValueError: the collection has no captions.
        """
        readings = self.readings(retriever)
        if not queries and "" not in readings:
            readings[""] = Reading(own_captions(retriever))
        return readings.get(queries, Reading()).result

    def ranks(
        self, retriever: Retriever, captions: Captions, specs: Sequence[str], queries: str = ""
    ) -> Reading:
        """The ranks by all methods of a pack, and by averages of them; see `Background.read`."""
        ranks, above = dict[str, Ranks](), np.empty(0)
        methods = (*reversed(retriever.methods.best_first),)
        for some in (*((spec,) for spec in specs if spec not in methods), methods):
            work = partial(_rank, retriever, captions, some, not queries)
            reading = self.read(retriever, (queries, some), work)
            if reading.result is None:
                return reading
            own, above = reading.result
            ranks |= own
        return Reading((ranks, above))


def _rank(
    retriever: Retriever, captions: Captions, specs: Sequence[str], own: bool, reading: Reading
) -> Ranked:
    """Ranks captions by methods or averages; of a collection's `own`, results are kept on disk."""
    index, images = retriever.index, len(retriever.collection.images)
    file = _file(retriever, captions, specs) if own else Path()
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), np.load(file) as arrays:
        return {spec: Ranks(*arrays[spec]) for spec in specs}, arrays["above"]

    def texts(name: str) -> Views:
        if own:
            return index.captions[name].views(range(len(captions.texts)))
        read = [retriever.reworded(text).text for text in captions.texts]
        return retriever.runtime.text_views(read, name)

    def tell(done: int) -> None:
        reading.progress = f"ranked {done:,} of {images:,} images for every caption"

    ranks, above = rank_all(index.images, specs, texts, captions, images, tell)
    if own:
        try:
            with replacing(file) as draft, draft.open("wb") as out:
                np.savez_compressed(out, above=above, **ranks)  # type: ignore[arg-type]
        except OSError as error:
            _log.warning("ranks of captions are not kept: %s", error)
    return ranks, above


@torch.inference_mode()
def rank_all(
    galleries: Mapping[str, Gallery],
    specs: Sequence[str],
    texts: Callable[[str], Views],
    captions: Captions,
    files: int,
    tell: Callable[[int], object] = lambda _: None,
) -> Ranked:
    """Ranks all captions by methods and averages of methods; see `rank_captions`.

    Args:
        galleries: galleries of images by method.
        specs: "a", or "a+b" for the average of two methods' scores.
        texts: returns the views (Q, W, D) of the captions by a method.
        captions: Q captions, whose rows are file ids.
        files: number of files in the collection; a clip ranks by its best window.
        tell: called with the number of images done.
    """
    views = {name: texts(name) for spec in specs for name in spec.split("+")}

    def scores(spec: str, rows: np.ndarray, part: slice) -> np.ndarray:
        with shared_processors(files):
            names = spec.split("+")
            return reduce(
                np.add, (_scores(galleries[n], views[n][part], rows, files) for n in names)
            )

    return rank_captions(captions, specs, files, scores, tell)


def _scores(gallery: Gallery, texts: Views, rows: np.ndarray, files: int) -> np.ndarray:
    """Scores (n, q) of the files `rows`, ascending; -inf for files that are not in the gallery."""
    scores, ids = torch.full((len(rows), len(texts)), -torch.inf), gallery.ids()
    ids = ids[np.isin(ids % files, rows)]
    if len(ids):
        images = gallery.views(ids)
        pairs = len(ids) * images.embeddings.shape[1] * texts.embeddings.shape[1]
        step, device = max(1, PART_BYTES // (4 * pairs)), images.embeddings.device
        blocks = (texts[i : i + step].to(device) for i in range(0, len(texts), step))
        part = torch.cat([gallery.method.score(images, each).float() for each in blocks], 1)
        place = torch.from_numpy(np.searchsorted(rows, ids % files))
        scores.scatter_reduce_(0, place[:, None].expand_as(part), part.cpu(), "amax")
    return scores.numpy()


def _file(retriever: Retriever, captions: Captions, specs: Sequence[str]) -> Path:
    """The file of ranks; its name changes with the pack, the captions and the images."""
    state = hashlib.sha256(f"{retriever.info.checksum} {specs} {captions.texts}".encode())
    state.update(b"".join(rows.tobytes() for rows in (captions.labelled, *captions.right)))
    for ids, views in retriever.gallery(retriever.methods.best).chunks():
        state.update(ids.tobytes() + views.embeddings.cpu().numpy().tobytes())
    return retriever.index.encoder.folder / "mistakes" / f"{state.hexdigest()[:24]}.npz"


def own_captions(retriever: Retriever) -> Captions:
    """The captions of a collection.

    Raises:
        ValueError: there are none.
    """
    collection = retriever.collection
    if not collection.captions:
        raise ValueError("these images have no captions; send a CSV file of queries and images")
    texts, owners = zip(*collection.captions, strict=True)
    truths = [image.truth.captions if image.truth else () for image in collection.images]
    kinds = {(i, fact.text): fact.view for i, facts in enumerate(truths) for fact in facts}
    relevant = [collection.relevant.get(text, {own}) for text, own in collection.captions]
    right = [np.array(sorted(ids), np.int64) for ids in relevant]
    of_kinds = [kinds.get((own, text)) for text, own in collection.captions]
    return Captions(texts, np.array(owners, np.int64), right, of_kinds)


def read_queries(retriever: Retriever, content: bytes) -> Captions:
    """Reads captions from a CSV file with the columns query, image and, optionally, kind.

    An image is a file name, with or without its folders, or an id. Several lines with the same
    query name several right images, the labelled one first.

    Raises:
        ValueError: a line cannot be read, or there are too many.
    """
    names = dict[str, int]()
    for image in retriever.collection.images:
        forms = (str(image.image_id), Path(image.file).name, image.file)
        names |= dict.fromkeys(forms, image.image_id)
    right = dict[str, dict[int, str | None]]()
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
        right.setdefault(text, {})[names[name]] = kind or None
    if not 0 < len(right) <= MAX_QUERIES:
        raise ValueError(f"the file has {len(right):,} queries; send 1 to {MAX_QUERIES:,}")
    labelled, kinds = zip(*(next(iter(own.items())) for own in right.values()), strict=True)
    rows = [np.array(list(own), np.int64) for own in right.values()]
    return Captions(list(right), np.array(labelled, np.int64), rows, kinds)
