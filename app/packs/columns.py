"""Who can stand side by side: the methods of one pack, averages of several, and other open packs.

A column is named by its key: a method ("mvam"), several whose scores are averaged ("mvam+pvse"), or
either of another open pack ("photos/mvam"). Ranks are compared image by image, so another pack
takes part only where it searches the very same images.
"""

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from polyview.app.search.answers import known_to_satisfy, remark
from polyview.app.search.comparison import Comparison, Run, Truth, compare
from polyview.app.search.hits import NotReadyError
from polyview.app.search.query import Term, describe
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import current_name

_RUNS = 3  # answers of which each column's time is the median
_ENOUGH = 1.0  # seconds of a column's answers after which no further one is asked for
_PATIENCE = 20.0  # seconds a comparison waits for a gallery


class _Column(NamedTuple):
    """A column before its methods are asked."""

    key: str  # see the module's head; the methods of an average in a fixed order
    title: str
    paper: str  # empty for an average
    retriever: Retriever
    spec: str  # what it is called within its pack


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

    def ask(
        self, terms: Sequence[Term], keys: Sequence[str], k: int, image_id: int | None = None
    ) -> Comparison:
        """Asks every column the same, one after the other, and puts the answers side by side.

        Args:
            terms: at least one, see `app/search/query.py`.
            keys: the columns, all different; "a+b" and "b+a" are the same.
            k: how many images each column lists, at least 1.
            image_id: the gallery's image that is asked with; it is not ranked.

        Raises:
            ValueError: the query or the columns make no sense, or a gallery is not complete.
        """
        columns: dict[str, _Column] = {}
        for column in map(self._column, keys):
            if column.key in columns:
                raise ValueError(f'"{column.key}" is there twice; name each column once')
            columns[column.key] = column
        for index in {column.retriever.index for column in columns.values()}:
            index.images_done.wait(_PATIENCE)
            if not index.complete:
                raise NotReadyError(
                    f"not all images are read yet ({index.progress}); compare once they are"
                )
        own = None if image_id is None else self.home.collection.file_id(image_id)
        runs = [self._run(column, terms, k + (own is not None)) for column in columns.values()]
        words = [term.words for term in terms if term.image is None]
        read = remark(self.home, *words) if words else ""
        name = " ".join(describe(terms, typed=True))
        return compare(name, runs, k, self.truth(terms), leave_out=own, remark=read)

    def truth(self, terms: Sequence[Term]) -> Truth | None:
        """What is known to be right: where the query is a caption of the gallery, word for word."""
        ids = known_to_satisfy(self.home.collection, terms)
        # where images were not judged against all captions, each names its own image alone
        truths = [image.truth for image in self.home.collection.images if image.truth]
        complete = any(len(text.relevant) > 1 for truth in truths for text in truth.captions)
        return Truth(image_ids=sorted(ids), complete=complete) if ids else None

    def _run(self, column: _Column, terms: Sequence[Term], k: int) -> Run:
        """Asks one column until its time is known; nothing else of this comparison runs meanwhile.

        The k best clips are told by the frames at home that are nearest to the column's moments.
        """
        key, title, paper, retriever, spec = column
        spent: list[float] = []
        while len(spent) < _RUNS and sum(spent) < _ENOUGH:
            start = time.perf_counter()
            scores = retriever.scores(terms, spec)
            spent.append(time.perf_counter() - start)
        if retriever.index.clips:
            best, images = np.argsort(-scores.values, kind="stable")[:k], scores.images.copy()
            moments = retriever.moments(images[best].tolist(), terms, spec)
            images[best] = [self.home.local_image_id(retriever.image(one)) for one in moments]
            scores = scores._replace(best_images=images)
        return Run(key, title, paper, scores, round(1000 * median(spent), 1), len(spent))

    def _column(self, key: str) -> _Column:
        label, _, spec = key.strip().rpartition("/")
        label = label if label in self.others else current_name(label)
        pack = self.others.get(label) if label else self.home
        if pack is None:
            known = ", ".join(self.others) or "none"
            raise ValueError(
                f'no open pack "{label}" searches the same images; those that do: {known}'
            )
        names = pack.methods.names(spec)
        spec = "+".join(name for name in pack.methods if name in names)
        paper = pack.methods[names[0]].paper if len(names) == 1 else ""
        title = pack.methods.title(spec)
        if not label:
            return _Column(spec, title, paper, pack, spec)
        return _Column(f"{label}/{spec}", f"{title} of {pack.info.title}", paper, pack, spec)


def _same_images(a: Retriever, b: Retriever) -> bool:
    """Whether two packs search the same images in the same order."""
    return a.collection is b.collection or _images(a) == _images(b)


def _images(pack: Retriever) -> tuple[str, ...]:
    """What tells a collection from others: the files, or names and checksum of a pack's own."""
    info, collection = pack.info, pack.collection
    if info.gallery is None or not collection.comes_with(info.folder):
        return tuple(str(image.path) for image in collection.images)
    return info.gallery.images_sha256, *(image.file for image in collection.images)


def _label(pack: Retriever, among: Sequence[Retriever]) -> str:
    """A pack's name, with a piece of its identity where another one has the same name."""
    info = pack.info
    alike = sum(other.runtime.info.name == info.name for other in among) > 1
    return f"{info.name}@{info.identity[:8]}" if alike else info.name
