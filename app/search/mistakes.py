"""Ranks every caption with every method of a pack, once, in the background.

Images are scored in parts, so that the full score matrix is never in memory. Ranks stay in memory
with the retriever, and on disk beside the encoded views.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch

from polyview.app.gallery.index import Gallery
from polyview.app.search.hits import NotReadyError
from polyview.app.search.query import MAX_QUERY
from polyview.app.search.ranking import shared_processors
from polyview.app.search.retriever import Retriever
from polyview.export import mistakes
from polyview.export.mistakes import Captions, Ranks
from polyview.models import Views
from polyview.models.files import replacing

MAX_QUERIES = 5000  # captions of one file
PART_BYTES = 4 * 2**20  # bytes of scores, and of products of views, at a time
_BLOCK = 64  # captions whose right images are scored at a time
_TABLES = 4  # query files for one retriever

_log = logging.getLogger(__name__)
Texts = Callable[[str], Views]  # views (Q, W, D) of captions by a method


@torch.inference_mode()
def rank_all(
    galleries: Mapping[str, Gallery],
    specs: Sequence[str],
    texts: Texts,
    captions: Captions,
    files: int,
    tell: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Ranks], np.ndarray]:
    """Ranks all captions by methods and averages of methods; see `rank_captions`.

    Args:
        galleries: galleries of images by method.
        specs: "a", or "a+b" for the average of two methods' scores.
        texts: returns views of the captions.
        captions: Q captions, whose rows are file ids.
        files: number of files in the collection; a clip ranks by its best window.
        tell: called with the number of images done.
    """
    views = {name: texts(name) for spec in specs for name in spec.split("+")}
    count, (right, owner) = len(captions.texts), captions.pairs

    def scores(rows: np.ndarray, places: slice) -> dict[str, np.ndarray]:
        with shared_processors(files):
            own = {n: _scores(galleries[n], views[n][places], rows, files) for n in views}
        return {spec: reduce(np.add, (own[n] for n in spec.split("+"))) for spec in specs}

    own = {spec: np.empty(len(right), np.float32) for spec in specs}
    for start in range(0, count, _BLOCK):
        inside = slice(*np.searchsorted(owner, (start, start + _BLOCK)))
        rows, place = np.unique(right[inside], return_inverse=True)
        for spec, part in scores(rows, slice(start, start + _BLOCK)).items():
            own[spec][inside] = part[place, owner[inside] - start]

    def parts() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        step = max(1, PART_BYTES // (4 * count))
        for start in range(0, files, step):
            yield start, scores(np.arange(start, min(start + step, files)), slice(None))
            tell(min(start + step, files))

    return mistakes.rank_captions(captions, own, parts())


def _scores(gallery: Gallery, texts: Views, rows: np.ndarray, files: int) -> np.ndarray:
    """Scores (n, Q) of the files `rows`, ascending; -inf for files that are not in the gallery."""
    scores, ids = torch.full((len(rows), len(texts)), -torch.inf), gallery.ids()
    ids = ids[np.isin(ids % files, rows)]
    if len(ids):
        images = gallery.views(ids)
        pairs = len(ids) * images.embeddings.shape[1] * texts.embeddings.shape[1]
        step = max(1, PART_BYTES // (4 * pairs))
        blocks = (texts[i : i + step] for i in range(0, len(texts), step))
        device = images.embeddings.device
        part = torch.cat(
            [gallery.method.score(images, each.to(device)).float() for each in blocks], 1
        )
        place = torch.from_numpy(np.searchsorted(rows, ids % files))
        scores.scatter_reduce_(0, place[:, None].expand_as(part), part.cpu(), "amax")
    return scores.numpy()


@dataclass
class Table:
    """Captions of a collection, whose rows are file ids, and their ranks so far.

    Attributes:
        captions: Q captions.
        texts: returns their views.
        ranks: by method or average.
        above: (Q,) see `rank_all`, for all methods.
        running: the specs that are being ranked.
        done: number of images scored for them.
        problem: the error that stopped the ranking; empty otherwise.
    """

    captions: Captions
    texts: Texts
    ranks: dict[str, Ranks] = field(default_factory=dict)
    above: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    running: set[str] = field(default_factory=set)
    done: int = 0
    problem: str = ""


class Mistakes:
    """Ranks captions in the background, one table at a time; safe to use from threads."""

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()  # tables; one ranking at a time
        self._tables: WeakKeyDictionary[Retriever, OrderedDict[str, Table]]
        self._tables = WeakKeyDictionary()

    def read(self, retriever: Retriever, specs: Sequence[str], queries: str = "") -> Table | None:
        """The table of captions; starts ranking missing specs without waiting.

        Args:
            retriever: a pack over its images.
            specs: averages that are needed in addition to the pack's methods.
            queries: a key from `add_queries`; empty for the collection's captions.

        Returns:
            The table; None for a key that is no longer known.

        Raises:
            NotReadyError: the images are still being read.
            ValueError: there are no captions.
        """
        if not retriever.index.progress.finished:
            raise NotReadyError(f"waits for the gallery ({retriever.index.progress})")
        with self._lock:
            tables = self._tables.setdefault(retriever, OrderedDict())
            if not queries and "" not in tables:
                tables[""] = own_table(retriever)
            table = tables.get(queries)
            if table is not None:
                missing = {*retriever.methods, *specs} - {*table.ranks, *table.running}
                if missing and not table.problem:
                    table.running |= missing
                    work = (retriever, table, missing, not queries)
                    threading.Thread(target=self._rank, args=work, daemon=True).start()
            return table

    def add_queries(self, retriever: Retriever, content: bytes) -> str:
        """Adds the captions of a file for `read`; returns their key; see `read_queries`."""
        table, key = read_queries(retriever, content), hashlib.sha256(content).hexdigest()[:16]
        with self._lock:
            tables = self._tables.setdefault(retriever, OrderedDict())
            tables[key] = tables.pop(key, table)
            for old in [name for name in tables if name][:-_TABLES]:
                del tables[old]
        return key

    def _rank(self, retriever: Retriever, table: Table, missing: set[str], own: bool) -> None:
        methods = [*reversed(retriever.methods.best_first)]
        try:
            with self._turn:
                file = RankFile(retriever, table.captions) if own else None
                if file and not table.ranks:
                    table.ranks, table.above = file.load()
                for specs in (methods, sorted(missing - set(methods))):
                    if set(specs) <= table.ranks.keys():
                        continue
                    ranks, above = rank_all(
                        retriever.index.images,
                        specs,
                        table.texts,
                        table.captions,
                        len(retriever.collection.images),
                        partial(setattr, table, "done"),
                    )
                    table.above = above if specs is methods else table.above
                    table.ranks |= ranks
                    if file:
                        file.save(table)
        except Exception as error:  # the page shows the sentence
            _log.exception("captions could not be ranked")
            table.problem = f"the captions could not be ranked: {error}"
        finally:
            table.running -= missing


class RankFile:
    """The ranks of a collection's captions on disk, in a file for each pack."""

    def __init__(self, retriever: Retriever, captions: Captions) -> None:
        folder, checksum = retriever.index.encoder.folder, retriever.info.checksum
        self._file = folder / "mistakes" / f"{checksum[:24]}.npz"
        state = hashlib.sha256(f"{checksum} {captions.texts}".encode())
        state.update(b"".join(rows.tobytes() for rows in (captions.labelled, *captions.right)))
        for ids, views in retriever.gallery(retriever.methods.best).chunks():
            state.update(ids.tobytes() + views.embeddings.cpu().numpy().tobytes())
        self._state = np.frombuffer(state.digest(), np.uint8)

    def load(self) -> tuple[dict[str, Ranks], np.ndarray]:
        """Stored ranks and images above; empty if images, captions or the file have changed."""
        with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
            with np.load(self._file) as arrays:
                saved = dict(arrays)
            if np.array_equal(saved.pop("state"), self._state):
                above = saved.pop("above")
                return {name: Ranks(*both) for name, both in saved.items()}, above
        return {}, np.empty(0, np.int32)

    def save(self, table: Table) -> None:
        """Replaces the file."""
        try:
            with replacing(self._file) as draft, draft.open("wb") as out:
                np.savez_compressed(out, state=self._state, above=table.above, **table.ranks)  # type: ignore[arg-type]
        except OSError as error:
            _log.warning("ranks of captions are not kept: %s", error)


def own_table(retriever: Retriever) -> Table:
    """The table of a collection's captions, whose views are in its index.

    Raises:
        ValueError: there are no captions.
    """
    collection, views = retriever.collection, retriever.index.captions
    if not collection.captions:
        raise ValueError("these images have no captions; send a CSV file of queries and images")
    texts, owners = zip(*collection.captions, strict=True)
    truths = [image.truth.captions if image.truth else () for image in collection.images]
    kinds = {(i, fact.text): fact.view for i, facts in enumerate(truths) for fact in facts}
    relevant = [collection.relevant.get(text, {own}) for text, own in collection.captions]
    right = [np.array(sorted(ids), np.int64) for ids in relevant]
    of_kinds = [kinds.get((own, text)) for text, own in collection.captions]
    captions = Captions(texts, np.array(owners, np.int64), right, of_kinds)
    return Table(captions, lambda name: views[name].views(range(len(texts))))


def read_queries(retriever: Retriever, content: bytes) -> Table:
    """Reads captions from a CSV file with the columns query, image and, optionally, kind.

    An image is a file name, with or without its folders, or an id. Several lines with the same
    query name several right images, the labelled one first.

    Raises:
        ValueError: a line cannot be read, or there are too many.
    """
    names = {str(image.image_id): image.image_id for image in retriever.collection.images}
    for image in retriever.collection.images:
        names |= {Path(image.file).name: image.image_id, image.file: image.image_id}
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
        right.setdefault(text, {})[names[name]] = kind or None
    if not 0 < len(right) <= MAX_QUERIES:
        raise ValueError(f"the file has {len(right):,} queries; send 1 to {MAX_QUERIES:,}")
    labelled, kinds = zip(*(next(iter(own.items())) for own in right.values()), strict=True)
    rows = [np.array(list(own), np.int64) for own in right.values()]
    captions = Captions(list(right), np.array(labelled, np.int64), rows, kinds)
    read = [retriever.reworded(text).text for text in right]
    return Table(captions, partial(retriever.runtime.text_views, read))
