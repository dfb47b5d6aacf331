"""Questions about mistakes: the captions that one method finds and another does not."""

from __future__ import annotations

import numpy as np

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.packs.opened import GoneError, Opened
from polyview.app.search.mistakes import Mistakes
from polyview.app.search.retriever import Retriever
from polyview.export.mistakes import CELLS, Pair, contrast, to_csv

_mistakes = Mistakes()  # of all packs


def add_queries(retriever: Retriever, content: p.Table) -> answers.Queries:
    """Takes a CSV file of queries and their correct images, to use instead of the captions."""
    return answers.Queries(queries=_mistakes.add_queries(retriever, content))


def mistakes(
    opened: Opened,
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
    """Lists captions by which of two methods ranks the correct image among its first k."""
    a, b = compared(retriever, a, b)
    captions = _mistakes.captions(retriever, queries)
    if captions is None:
        raise GoneError("these queries are no longer stored; send the file again")
    reading = _mistakes.ranks(retriever, captions, (a, b), queries)
    if reading.result is None:
        state = "failed" if reading.problem else "running"
        progress = opened.sentence(ValueError(reading.problem or reading.progress))
        return answers.Mistakes(state=state, progress=progress, a=a, b=b, k=k)
    ranks, above = reading.result
    pair, places = Pair(captions, ranks[a], ranks[b], k, above), np.arange(len(captions.texts))
    whole = about = pair.summary()
    if kind:
        places = captions.of_kind(kind)
        if not len(places):
            known = ", ".join(each["kind"] for each in whole["kinds"])
            raise ValueError(f'no caption is of the kind "{kind}"; choose word:WORD or {known}')
        about = pair.summary(places)
    pairs = np.stack([pair.a.rank, pair.b.rank])[:, places]  # (2, Q)
    unique, counts = np.unique(pairs, axis=1, return_counts=True)
    if within:
        if len(within) != 4:
            raise ValueError(
                "within takes four ranks (the lowest by a and by b, then the highest), such as "
                "1,1,10,1000"
            )
        low, high = np.reshape(within, (2, 2)).T[:, :, None]
        inside = ((low <= pairs) & (pairs <= high)).all(axis=0)
        ahead, behind = contrast(*(map(captions.words, places[i]) for i in (inside, ~inside)))
        places = places[inside]
        about = about | {"counts": pair.counts(places), "words_a": ahead, "words_b": behind}
    doubtful = pair.suspects[places] >= 0
    own = np.array(CELLS)[pair.cells[places]]
    places = places[doubtful if cell == "labels" else (own == cell) | (cell == "all")]
    gaps = np.log(pair.a.rank / pair.b.rank)
    keys = {"gap": -gaps if cell == "b" else gaps, "a": pair.a.rank, "b": pair.b.rank}
    if order != "caption":
        places = places[np.argsort(keys[order][places], kind="stable")]
    if format == "csv":
        data = to_csv(pair.rows(places)).encode()
        return answers.Blob(media_type="text/csv; charset=utf-8", data=data)
    return answers.Mistakes(
        state="ready", progress="", a=a, b=b, k=k, exact=captions.exact,
        **about | {"kinds": whole["kinds"]},
        pairs=np.vstack([unique, counts]).T.tolist(),
        labels=int(doubtful.sum()), total=len(places),
        captions=pair.rows(places[start : start + count]),
    )  # fmt: skip


def compared(retriever: Retriever, a: str, b: str) -> tuple[str, str]:
    """The two methods to compare; an empty name becomes the best method of the other family.

    The families are methods with one view and methods with several.

    Raises:
        ValueError: a method is unknown, or there is no second one.
    """
    methods, images = retriever.methods, retriever.index.images
    if len(methods) < 2:
        raise ValueError(f"{retriever.info.title} has one method; open a pack with several")

    def best(other: str) -> str:
        several = {name: (images[name].shape or (1,))[0] > 1 for name in methods}
        ranked = [name for name in methods.best_first if name != other]
        return min(ranked, key=lambda name: several[name] == several.get(other))

    a = a or best(b)
    names = [methods.names(spec) for spec in (a, b or best(a))]
    a, b = ("+".join(name for name in methods if name in each) for each in names)
    if a == b:
        raise ValueError(f'"{a[:80]}" is compared with itself; choose two methods')
    return a, b
