"""The columns of a comparison: methods of a pack, averages of several, and other open packs.

The key of a column is a method ("mvam"), several methods whose scores are averaged ("mvam+pvse"),
or either of another open pack ("photos/mvam"). Ranks are compared image by image, so another pack
can take part only if it searches the same images.
"""

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from polyview.app.search.answers import known_to_satisfy, remark
from polyview.app.search.comparison import Column, Comparison, Truth, compare
from polyview.app.search.hits import NotReadyError
from polyview.app.search.query import Term, describe
from polyview.app.search.ranking import Scores
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import current_name

_RUNS = 3  # answers; the time of a column is their median
_ENOUGH = 1.0  # seconds spent on a column after which no further answer is timed
_PATIENCE = 20.0  # seconds a comparison waits for a gallery


class _Column(NamedTuple):
    """A column before its methods are run."""

    key: str  # see the top of the module; methods of an average in a fixed order
    title: str
    paper: str  # empty for an average
    retriever: Retriever
    spec: str  # its name within the pack


class Columns:
    """The possible columns of a comparison with a pack.

    Args:
        home: the pack in use, over its images.
        beside: other open packs; those over the same images can take part.

    Attributes:
        home: the pack in use.
        others: open packs over the same images, by the name before the "/" in keys.
    """

    def __init__(self, home: Retriever, beside: Iterable[Retriever] = ()) -> None:
        self.home = home
        same = [pack for pack in beside if _same_images(home, pack)]
        self.others = {_label(pack, same): pack for pack in same}

    def ask(
        self, terms: Sequence[Term], keys: Sequence[str], k: int, image_id: int | None = None
    ) -> Comparison:
        """Runs a query with every column in turn and compares the answers.

        Args:
            terms: at least one, see `app/search/query.py`.
            keys: the distinct columns; "a+b" equals "b+a".
            k: number of images in each column, at least 1.
            image_id: the query image, if it is in the gallery; it is not ranked.

        Raises:
            ValueError: the query or a column is not valid, or a gallery is not complete.
        """
        columns: dict[str, _Column] = {}
        for column in map(self._column, keys):
            if column.key in columns:
                raise ValueError(f'"{column.key}" is named twice; name each column once')
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
        """The images known to be right if the query is, word for word, a caption of the gallery."""
        ids = known_to_satisfy(self.home.collection, terms)
        # in data sets without judgements for all images, captions name only their own image
        truths = [image.truth for image in self.home.collection.images if image.truth]
        complete = any(len(text.relevant) > 1 for truth in truths for text in truth.captions)
        return Truth(image_ids=sorted(ids), complete=complete) if ids else None

    def _run(self, column: _Column, terms: Sequence[Term], k: int) -> tuple[Column, Scores]:
        """Runs and times one column, while no other column runs.

        The best clips are represented by the home pack's frames nearest to the column's moments.
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
        ms = round(1000 * median(spent), 1)
        return Column(method=key, title=title, paper=paper, ms=ms, runs=len(spent)), scores

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
    """The identity of a collection: its files, or names and checksum of a pack's images."""
    info, collection = pack.info, pack.collection
    if info.gallery is None or not collection.comes_with(info.folder):
        return tuple(str(image.path) for image in collection.images)
    return info.gallery.images_sha256, *(image.file for image in collection.images)


def _label(pack: Retriever, among: Sequence[Retriever]) -> str:
    """A pack's name, extended by a part of its checksum if another pack has the same name."""
    info = pack.info
    alike = sum(other.runtime.info.name == info.name for other in among) > 1
    return f"{info.name}@{info.identity[:8]}" if alike else info.name
