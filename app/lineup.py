"""Who can stand side by side: the methods of one pack, averages of several, and other open packs.

A column is named by its key: a method ("mvam"), several whose scores are averaged ("mvam+pvse"), or
either of another open pack ("photos/mvam"). Ranks are compared picture by picture, so another pack
takes part only where it searches the very same pictures.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from app.comparison import MAX_COLUMNS, MIN_COLUMNS, Comparison, Run, Truth, checked_k, compare
from app.query import Term, write
from app.retriever import NotReadyError, Retriever
from app.shelf import Shelf
from export.gallery import FOLDER

_RUNS = 3  # answers of which each column's time is the median
_ENOUGH = 1.0  # seconds of a column's answers after which no further one is asked for
_PATIENCE = 20.0  # seconds a comparison waits for a gallery


@dataclass(frozen=True)
class Entrant:
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


class Lineup:
    """What can be compared by somebody who uses one of the open packs.

    Args:
        shelf: the open packs.
        key: the pack in use, as `Shelf.get` names it.

    Attributes:
        home: the pack in use.
        others: open packs over the same pictures, by the name that stands before the "/".
        elsewhere: titles of open packs over other pictures, which cannot take part.

    Raises:
        ValueError: the pack was closed.
    """

    def __init__(self, shelf: Shelf, key: str) -> None:
        self.home = shelf.get(key)
        guests = [pack for pack in shelf.packs().values() if pack is not self.home]
        same = [pack for pack in guests if _same_pictures(self.home, pack)]
        self.others = {_label(pack, same): pack for pack in same}
        self.elsewhere = [pack.runtime.info.title for pack in guests if pack not in same]

    def choices(self) -> list[tuple[str, str]]:
        """What can be chosen: (what people read, key); methods first, then averages of two."""
        methods = self.home.runtime.methods
        single = [(m.title, name) for name, m in methods.items()]
        for label, pack in self.others.items():
            title = pack.runtime.info.title
            single += [
                (f"{m.title} of {title}", f"{label}/{name}")
                for name, m in pack.runtime.methods.items()
            ]
        pairs = [
            (f"{methods[a].title} + {methods[b].title}, averaged", f"{a}+{b}")
            for a, b in combinations(methods, 2)
        ]
        return single + pairs

    def default(self) -> list[str]:
        """The columns to begin with: every method of the pack, as many as fit."""
        return list(self.home.runtime.methods)[:MAX_COLUMNS]

    def entrants(self, keys: Any) -> list[Entrant]:
        """The columns that were asked for, in that order.

        Args:
            keys: 2 to 8 keys, all different; "a+b" and "b+a" are the same.

        Raises:
            ValueError: too few or too many, one twice, or one that is unknown.
        """
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise ValueError(f"methods must be a list of names, not {type(keys).__name__}")
        names = list(keys)
        if not MIN_COLUMNS <= len(names) <= MAX_COLUMNS:
            raise ValueError(
                f"choose {MIN_COLUMNS} to {MAX_COLUMNS} methods to compare, not {len(names)}"
            )
        chosen = [self._entrant(name) for name in names]
        seen: set[str] = set()
        for entrant in chosen:
            if entrant.key in seen:
                raise ValueError(f'"{entrant.key}" is there twice; name each column once')
            seen.add(entrant.key)
        return chosen

    def titles(self, keys: Any) -> list[tuple[str, str]]:
        """Title and paper of each column; see `entrants`."""
        return [(entrant.title, entrant.paper) for entrant in self.entrants(keys)]

    def ask(
        self, terms: Sequence[Term], keys: Any, k: Any, picture: int | None = None, name: str = ""
    ) -> Comparison:
        """Asks every column the same, one after the other, and puts the answers side by side.

        Args:
            terms: at least one, see `app/query.py`.
            keys: the columns, see `entrants`.
            k: how many pictures each column lists, 1 to 100.
            picture: the gallery's picture that is asked with; it is not ranked.
            name: what to call the query; by default it is written as it was read.

        Raises:
            ValueError: the query, the columns or k make no sense, or a gallery is not complete.
        """
        k, entrants = checked_k(k), self.entrants(keys)
        for pack in {id(e.retriever): e.retriever for e in entrants}.values():
            pack.index.images_done.wait(_PATIENCE)
            if not pack.index.complete:
                raise NotReadyError(
                    f"not all pictures are there ({pack.index.progress}); compare once they are"
                )
        runs = [_run(entrant, terms) for entrant in entrants]
        words = [term.words for term in terms if term.image is None]
        remark = self.home.remark(*words) if words else ""
        return compare(
            name or write(terms), runs, k, self.truth(terms), leave_out=picture, remark=remark
        )

    def truth(self, terms: Sequence[Term]) -> Truth | None:
        """What is known to be right: where the query is a caption of the gallery, word for word."""
        plain = len(terms) == 1 and terms[0].image is None and terms[0].weight == 1
        ids = self.home.satisfying(terms[0].words) if plain else frozenset()
        return Truth(ids, _judged(self.home)) if ids else None

    def _entrant(self, key: Any) -> Entrant:
        label, _, spec = str(key).strip().rpartition("/")
        pack = self.others.get(label) if label else self.home
        if pack is None:
            known = ", ".join(self.others) or "none"
            raise ValueError(
                f'no open pack "{label}" searches the same pictures; those that do: {known}'
            )
        names = pack.methods_of(spec)
        ordered = "+".join(name for name in pack.runtime.methods if name in names)
        paper = pack.runtime.methods[names[0]].paper if len(names) == 1 else ""
        title = pack.title_of(ordered)
        if not label:
            return Entrant(ordered, title, paper, pack, ordered)
        of = f"{title} of {pack.runtime.info.title}"
        return Entrant(f"{label}/{ordered}", of, paper, pack, ordered)


def _run(entrant: Entrant, terms: Sequence[Term]) -> Run:
    """Asks one column until its time is known; nothing else of this comparison runs meanwhile."""
    spent: list[float] = []
    while len(spent) < _RUNS and sum(spent) < _ENOUGH:
        start = time.perf_counter()
        scores = entrant.retriever.scores(terms, entrant.spec)
        spent.append(time.perf_counter() - start)
    ms = round(1000 * median(spent), 1)
    return Run(entrant.key, entrant.title, entrant.paper, scores, ms, len(spent))


def _same_pictures(a: Retriever, b: Retriever) -> bool:
    """Whether two packs search the same pictures in the same order."""
    return a.collection is b.collection or _pictures(a) == _pictures(b)


def _pictures(pack: Retriever) -> tuple[str, ...]:
    """What tells a collection from others: the files, or names and checksum of a pack's own."""
    info, collection = pack.runtime.info, pack.collection
    if info.gallery is None or collection.folder != (info.folder / FOLDER).resolve():
        return tuple(str(picture.path) for picture in collection.pictures)
    return info.gallery.images_sha256, *(picture.file for picture in collection.pictures)


def _label(pack: Retriever, among: Sequence[Retriever]) -> str:
    """A pack's name, with a piece of its checksum where another one has the same name."""
    info = pack.runtime.info
    alike = sum(other.runtime.info.name == info.name for other in among) > 1
    return f"{info.name}@{info.checksum[:8]}" if alike else info.name


def _judged(pack: Retriever) -> bool:
    """Whether every picture was judged against every caption.

    A gallery where that was not done names each caption's own picture alone.
    """
    pictures = pack.collection.pictures
    return any(
        len(caption.relevant) > 1 for p in pictures if p.truth for caption in p.truth.captions
    )
