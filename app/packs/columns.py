"""Who can stand side by side: the methods of one pack, averages of several, and other open packs.

A column is named by its key: a method ("mvam"), several whose scores are averaged ("mvam+pvse"), or
either of another open pack ("photos/mvam"). Ranks are compared image by image, so another pack
takes part only where it searches the very same images.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from polyview.app.search.answers import known_to_satisfy, remark
from polyview.app.search.comparison import (
    MAX_COLUMNS,
    MAX_K,
    MIN_COLUMNS,
    Comparison,
    Run,
    Truth,
    compare,
)
from polyview.app.search.hits import NotReadyError
from polyview.app.search.query import Term, checked_k, write
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import FOLDER, current_name

_RUNS = 3  # answers of which each column's time is the median
_ENOUGH = 1.0  # seconds of a column's answers after which no further one is asked for
_PATIENCE = 20.0  # seconds a comparison waits for a gallery


@dataclass(frozen=True)
class _Asked:
    """A column before it was asked.

    Attributes:
        key: its name, see the module's head; the methods of an average in a fixed order.
        title: what people call it.
        paper: where it was published; empty for an average.
        retriever: the pack it belongs to.
        spec: what it is called within its pack.
    """

    key: str
    title: str
    paper: str
    retriever: Retriever
    spec: str


class Columns:
    """What can be compared by somebody who searches with a pack.

    Args:
        home: the pack in use, over its images.
        beside: other open packs, of which those over the same images can take part.

    Attributes:
        home: the pack in use.
        others: open packs over the same images, by the name that stands before the "/".
    """

    def __init__(self, home: Retriever, beside: Iterable[Retriever] = ()) -> None:
        self.home = home
        same = [pack for pack in beside if _same_images(home, pack)]
        self.others = {_label(pack, same): pack for pack in same}

    def _asked(self, keys: Any) -> list[_Asked]:
        """The columns that were asked for, in that order; see `ask`."""
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise ValueError(f"methods must be a list of names, not {type(keys).__name__}")
        names = list(keys)
        if not MIN_COLUMNS <= len(names) <= MAX_COLUMNS:
            raise ValueError(
                f"choose {MIN_COLUMNS} to {MAX_COLUMNS} methods to compare, not {len(names)}"
            )
        chosen: dict[str, _Asked] = {}
        for column in map(self._column, names):
            if column.key in chosen:
                raise ValueError(f'"{column.key}" is there twice; name each column once')
            chosen[column.key] = column
        return list(chosen.values())

    def ask(
        self, terms: Sequence[Term], keys: Any, k: Any, image_id: int | None = None, name: str = ""
    ) -> Comparison:
        """Asks every column the same, one after the other, and puts the answers side by side.

        Args:
            terms: at least one, see `app/search/query.py`.
            keys: the columns: 2 to 8, all different; "a+b" and "b+a" are the same.
            k: how many images each column lists, 1 to 100.
            image_id: the gallery's image that is asked with; it is not ranked.
            name: what to call the query; by default it is written as it was read.

        Raises:
            ValueError: the query, the columns or k make no sense, or a gallery is not complete.
        """
        k, columns = checked_k(k, MAX_K), self._asked(keys)
        for pack in {id(e.retriever): e.retriever for e in columns}.values():
            pack.index.images_done.wait(_PATIENCE)
            if not pack.index.complete:
                raise NotReadyError(
                    f"not all pictures are there ({pack.index.progress}); compare once they are"
                )
        own = None if image_id is None else self.home.collection.file_id(image_id)
        runs = [self._run(column, terms, k + (own is not None)) for column in columns]
        words = [term.words for term in terms if term.image is None]
        read = remark(self.home, *words) if words else ""
        return compare(name or write(terms), runs, k, self.truth(terms), leave_out=own, remark=read)

    def truth(self, terms: Sequence[Term]) -> Truth | None:
        """What is known to be right: where the query is a caption of the gallery, word for word."""
        plain = len(terms) == 1 and terms[0].image is None and terms[0].weight == 1
        ids = known_to_satisfy(self.home.collection, terms[0].words) if plain else frozenset()
        return Truth(ids, _judged(self.home)) if ids else None

    def _run(self, column: _Asked, terms: Sequence[Term], k: int) -> Run:
        """Asks one column until its time is known; nothing else of this comparison runs meanwhile.

        The k best clips are told by the frames at home that are nearest to the column's moments.
        """
        spent: list[float] = []
        retriever, spec = column.retriever, column.spec
        while len(spent) < _RUNS and sum(spent) < _ENOUGH:
            start = time.perf_counter()
            scores = retriever.scores(terms, spec)
            spent.append(time.perf_counter() - start)
        ms = round(1000 * median(spent), 1)
        if retriever.index.clips:
            best, images = np.argsort(-scores.values, kind="stable")[:k], scores.images.copy()
            moments = retriever.moments(images[best].tolist(), terms, spec)
            images[best] = [self.home.nearest(retriever.image(one)) for one in moments]
            scores = scores._replace(shown=images)
        return Run(column.key, column.title, column.paper, scores, ms, len(spent))

    def _column(self, key: Any) -> _Asked:
        label, _, spec = str(key).strip().rpartition("/")
        label = label if label in self.others else current_name(label)
        pack = self.others.get(label) if label else self.home
        if pack is None:
            known = ", ".join(self.others) or "none"
            raise ValueError(
                f'no open pack "{label}" searches the same pictures; those that do: {known}'
            )
        names = pack.methods.names(spec)
        ordered = "+".join(name for name in pack.methods if name in names)
        paper = pack.methods[names[0]].paper if len(names) == 1 else ""
        title = pack.methods.title(ordered)
        if not label:
            return _Asked(ordered, title, paper, pack, ordered)
        of = f"{title} of {pack.info.title}"
        return _Asked(f"{label}/{ordered}", of, paper, pack, ordered)


def _same_images(a: Retriever, b: Retriever) -> bool:
    """Whether two packs search the same images in the same order."""
    return a.collection is b.collection or _images(a) == _images(b)


def _images(pack: Retriever) -> tuple[str, ...]:
    """What tells a collection from others: the files, or names and checksum of a pack's own."""
    info, collection = pack.info, pack.collection
    if info.gallery is None or collection.folder != (info.folder / FOLDER).resolve():
        return tuple(str(image.path) for image in collection.images)
    return info.gallery.images_sha256, *(image.file for image in collection.images)


def _label(pack: Retriever, among: Sequence[Retriever]) -> str:
    """A pack's name, with a piece of its identity where another one has the same name."""
    info = pack.info
    alike = sum(other.runtime.info.name == info.name for other in among) > 1
    return f"{info.name}@{info.identity[:8]}" if alike else info.name


def _judged(pack: Retriever) -> bool:
    """Whether every image was judged against every caption.

    A gallery where that was not done names each caption's own image alone.
    """
    return any(
        len(caption.relevant) > 1
        for image in pack.collection.images
        for caption in (image.truth.captions if image.truth else ())
    )
