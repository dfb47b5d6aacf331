"""Questions about mistakes: the captions that one method finds and another does not."""

from __future__ import annotations

import numpy as np

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.packs.opened import GoneError, Opened
from polyview.app.search.hits import NotReadyError
from polyview.app.search.mistakes import Mistakes
from polyview.app.search.retriever import Retriever
from polyview.export.mistakes import CELLS, cells, contrast, rows, summary, suspects, to_csv


class MistakeQuestions:
    """The questions about mistakes."""

    def __init__(self, opened: Opened) -> None:
        self._opened, self._mistakes = opened, Mistakes()

    def add_queries(
        self, content: p.Table, pack: p.Pack = "", collection: p.Collection = ""
    ) -> answers.Queries:
        """Takes queries with their right images from a CSV file, instead of the captions."""
        retriever = self._opened.retriever(pack, collection)
        return answers.Queries(queries=self._mistakes.add_queries(retriever, content))

    def mistakes(
        self,
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
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.Mistakes | answers.Blob:
        """Lists captions whose right image only one of two methods ranks within k."""
        retriever = self._opened.retriever(pack, collection)
        a, b = compared(retriever, a, b)
        try:
            table = self._mistakes.read(retriever, (a, b), queries)
        except NotReadyError as error:
            return answers.Mistakes(state="running", progress=str(error), a=a, b=b, k=k)
        if table is None:
            raise GoneError("these queries are no longer stored; send the file again")
        captions = table.captions
        if not {a, b, *retriever.methods} <= table.ranks.keys():
            images = len(retriever.collection.images)
            doing = f"ranked {table.done:,} of {images:,} images for every caption"
            progress = self._opened.sentence(ValueError(table.problem or doing))
            state = "failed" if table.problem else "running"
            return answers.Mistakes(state=state, progress=progress, a=a, b=b, k=k)
        first, second = table.ranks[a], table.ranks[b]
        whole = summary(captions, first, second, k)
        about, places = whole, np.arange(len(captions.texts))
        if kind:
            word = kind.removeprefix("word:").lower() if kind.startswith("word:") else ""
            named = [
                word in captions.words(q) if word else captions.kind(q) == kind
                for q in range(len(captions.texts))
            ]
            if not any(named):
                known = ", ".join(each["kind"] for each in whole["kinds"])
                raise ValueError(f'no caption is of the kind "{kind}"; choose word:WORD or {known}')
            places = places[named]
            about = summary(captions, first, second, k, places)
        pairs = np.stack([first.rank, second.rank])[:, places]  # (2, Q)
        if within:
            if len(within) != 4:
                raise ValueError("within must hold four ranks, such as 1,1,10,1000")
            low, high = np.reshape(within, (2, 2)).T[:, :, None]
            inside = ((low <= pairs) & (pairs <= high)).all(axis=0)
            words = contrast(*(map(captions.words, places[part]) for part in (inside, ~inside)))
            places = places[inside]
            chosen = summary(captions, first, second, k, places)
            about |= {"counts": chosen["counts"], "words_a": words[0], "words_b": words[1]}
        suspected = suspects(captions, first, second, table.above)
        labels = int((suspected[places] >= 0).sum())
        own = np.array(CELLS)[cells(first, second, k)[places]]
        listed = suspected[places] >= 0 if cell == "labels" else (own == cell) | (cell == "all")
        places, gaps = places[listed], np.log(first.rank / second.rank)
        keys = {"gap": -gaps if cell == "b" else gaps, "a": first.rank, "b": second.rank}
        if order != "caption":
            places = places[np.argsort(keys[order][places], kind="stable")]
        part = places if format == "csv" else places[start : start + count]
        table_rows = rows(captions, first, second, k, suspected, part)
        if format == "csv":
            return answers.Blob(
                media_type="text/csv; charset=utf-8", data=to_csv(table_rows).encode()
            )
        unique, counts = np.unique(pairs, axis=1, return_counts=True)
        return answers.Mistakes(
            state="ready", progress="", a=a, b=b, k=k, exact=captions.exact,
            **about | {"kinds": whole["kinds"]},
            pairs=np.vstack([unique, counts]).T.tolist(),
            labels=labels, total=len(places), captions=table_rows,
        )  # fmt: skip


def compared(retriever: Retriever, a: str, b: str) -> tuple[str, str]:
    """The two methods to compare; empty names become the best methods of both families.

    The families are methods with one view and methods with several.

    Raises:
        ValueError: a method is unknown, or there is no second one.
    """
    methods = retriever.methods
    if len(methods) < 2:
        raise ValueError(f"{retriever.info.title} has one method; open a pack with several")
    several = {n: (one.shape or (1,))[0] > 1 for n, one in retriever.index.images.items()}

    def best(other: str) -> str:
        ranked = [name for name in methods.best_first if name != other]
        unlike = [name for name in ranked if several[name] != several.get(other)]
        return (unlike or ranked)[0]

    a = a or best(b)
    names = [methods.names(spec) for spec in (a, b or best(a))]
    a, b = ("+".join(name for name in methods if name in each) for each in names)
    if a == b:
        raise ValueError(f'"{a[:80]}" is compared with itself; choose two methods')
    return a, b
