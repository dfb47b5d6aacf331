"""What every method of a pack makes of every caption, computed once in the background.

Captions are scored in blocks; nothing holds the scores of all images and captions. Ranks stay in
memory with the retriever, and on disk beside what is encoded.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
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
BLOCK_BYTES, MAX_BLOCK = 12 * 2**20, 512  # of scores at a time; captions of a block
_PART = 1024  # images scored at a time
_TABLES = 4  # files of queries over one retriever
_FILES = 16  # kept on disk for one collection

_log = logging.getLogger(__name__)
Texts = Callable[[str, int, int], Views]  # views of captions start to end by a method


@torch.inference_mode()
def rank_all(
    galleries: Mapping[str, Gallery],
    specs: Sequence[str],
    texts: Texts,
    captions: Captions,
    files: int,
    tell: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Ranks], np.ndarray]:
    """Ranks of all captions by methods and averages of them.

    Args:
        galleries: of images, by method.
        specs: "a", or "a+b" for the average of two methods' scores.
        texts: gives views of captions.
        captions: Q; their rows are file ids.
        files: how many the collection has; a clip ranks by its best window.
        tell: is told how many captions are done.

    Returns:
        Ranks by spec; and (Q,) the image that all of `specs` rank above the labelled one, the last
        one's best where there are several, -1 where there is none.
    """
    count, blocks, above = len(captions.texts), dict[str, list[Ranks]](), list[np.ndarray]()
    step = max(1, min(MAX_BLOCK, BLOCK_BYTES // (4 * files)))
    for start in range(0, count, step):
        end = min(start + step, count)
        higher, own = np.ones((end - start, files), np.bool_), captions.labelled[start:end, None]
        for spec in specs:
            with shared_processors(files):
                parts = ((galleries[n], texts(n, start, end)) for n in spec.split("+"))
                scores = reduce(np.add, (_scores(*part, files) for part in parts))
            ranks = mistakes.rank_captions(scores, captions.right[start:end])
            blocks.setdefault(spec, []).append(ranks)
            higher &= scores > np.take_along_axis(scores, own, axis=1)
        scores[~higher] = -np.inf
        above.append(np.where(higher.any(axis=1), scores.argmax(axis=1), -1))
        del scores, higher
        tell(end)
    ranked = {
        spec: Ranks(*map(np.concatenate, zip(*each, strict=True))) for spec, each in blocks.items()
    }
    return ranked, np.concatenate(above).astype(np.int32)


def _scores(gallery: Gallery, texts: Views, files: int) -> np.ndarray:
    """Scores (C, files) for C captions (C, W, D); -inf for files that are not in the gallery."""
    scores, clips = torch.full((len(texts), files), -torch.inf), gallery.ids().max() >= files
    for ids, views in gallery.chunks():
        for start in range(0, len(ids), _PART):  # scoring copies views
            images = views[start : start + _PART]
            part = gallery.method.score(images, texts.to(images.embeddings.device)).float().cpu().T
            rows = torch.from_numpy(ids[start : start + _PART] % files)
            if clips:
                scores.scatter_reduce_(1, rows.expand_as(part), part, "amax")
            else:
                scores[:, rows] = part
        del views, images  # before the next ones are read
    return scores.numpy()


@dataclass
class Table:
    """Captions of a collection, whose rows are file ids, and their ranks so far.

    Attributes:
        captions: Q.
        texts: gives their views.
        ranks: by method or average.
        above: (Q,) see `rank_all`, of all methods.
        running: what is being ranked.
        done: captions of it.
        problem: why nothing more is coming; empty otherwise.
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
        self._lock, self._turn = threading.Lock(), threading.Lock()  # of the tables; of the work
        self._tables: WeakKeyDictionary[Retriever, OrderedDict[str, Table]]
        self._tables = WeakKeyDictionary()

    def read(self, retriever: Retriever, specs: Sequence[str], queries: str = "") -> Table | None:
        """What is known of captions; begins to rank what is missing, and does not wait for it.

        Args:
            retriever: a pack over its images.
            specs: averages that are needed beside the pack's methods.
            queries: key of `add_queries`; empty for the collection's own captions.

        Returns:
            None for a key that is not kept any more.

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
                    work = (retriever, table, missing)
                    threading.Thread(target=self._rank, args=work, daemon=True).start()
            return table

    def add_queries(self, retriever: Retriever, content: bytes) -> str:
        """Keeps captions of a file for `read`; returns their key; see `read_queries`."""
        table, key = read_queries(retriever, content), hashlib.sha256(content).hexdigest()[:16]
        with self._lock:
            tables = self._tables.setdefault(retriever, OrderedDict())
            tables[key] = tables.pop(key, table)
            for old in [name for name in tables if name][:-_TABLES]:
                del tables[old]
        return key

    def _rank(self, retriever: Retriever, table: Table, missing: set[str]) -> None:
        best_last = reversed(retriever.methods.best_first)
        try:
            with self._turn:
                file = _file(retriever, table.captions)
                if not table.ranks:
                    _load(table, file)
                averages = sorted(missing - set(retriever.methods))
                for specs in ([*best_last], averages):
                    if not set(specs) - table.ranks.keys():
                        continue
                    ranks, above = rank_all(
                        retriever.index.images,
                        specs,
                        table.texts,
                        table.captions,
                        len(retriever.collection.images),
                        lambda done: setattr(table, "done", done),
                    )
                    table.above = table.above if specs is averages else above
                    table.ranks |= ranks
                    _save(table, file)
        except Exception as error:  # the page shows the sentence
            _log.exception("captions could not be ranked")
            table.problem = f"the captions could not be ranked: {error}"
        finally:
            table.running -= missing


def own_table(retriever: Retriever) -> Table:
    """The captions of a collection, whose views are in its index.

    Raises:
        ValueError: there are none.
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
    return Table(captions, lambda name, start, end: views[name].views(range(start, end)))


def read_queries(retriever: Retriever, content: bytes) -> Table:
    """Captions of a CSV file with the columns query, image and, optionally, kind.

    An image is a file's name, with or without its folders, or its id. Several lines of one query
    name several right images, the labelled one first.

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
    return Table(captions, text_views(retriever, captions.texts))


def text_views(retriever: Retriever, texts: Sequence[str]) -> Texts:
    """Encodes texts when their views are asked for."""

    def views(name: str, start: int, end: int) -> Views:
        read = [retriever.reworded(text).text for text in texts[start:end]]
        return retriever.runtime.text_views(read, name)

    return views


def _file(retriever: Retriever, captions: Captions) -> Path:
    """Where ranks are kept, by a name that changes with whatever they depend on."""
    contents = hashlib.sha256(f"{retriever.info.checksum} {captions.texts}".encode())
    for ids, views in retriever.gallery(retriever.methods.best).chunks():
        contents.update(ids.tobytes() + views.embeddings.cpu().numpy().tobytes())
    for rows in (*captions.right, captions.labelled):
        contents.update(rows.tobytes())
    return retriever.index.encoder.folder / "mistakes" / f"{contents.hexdigest()[:24]}.npz"


def _load(table: Table, file: Path) -> None:
    """Takes what is on disk; what is damaged is computed again."""
    with suppress(OSError, ValueError, zipfile.BadZipFile), np.load(file) as arrays:
        ranks = {name: Ranks(*arrays[name]) for name in arrays.files if name != "above"}
        table.above, table.ranks = arrays["above"], ranks


def _save(table: Table, file: Path) -> None:
    """Writes ranks, and deletes those that were written longest ago."""
    try:
        with replacing(file) as draft, draft.open("wb") as out:
            np.savez_compressed(out, above=table.above, **table.ranks)  # type: ignore[arg-type]
        for old in sorted(file.parent.glob("*.npz"), key=lambda f: -f.stat().st_mtime)[_FILES:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("ranks of captions are not kept: %s", error)
