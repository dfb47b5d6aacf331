"""Endpoints for mistakes: captions whose image one method retrieves and another misses."""

from __future__ import annotations

from collections import Counter

from polyview.app.access import Refusal
from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.packs.state import AppState
from polyview.app.search import mistakes as ranking
from polyview.app.search.retriever import Retriever
from polyview.export import mistakes as results


def add_queries(retriever: Retriever, content: p.Table) -> answers.Queries:
    """Stores a CSV file of queries and their correct images, to use instead of the captions."""
    return answers.Queries(queries=ranking.add_queries(retriever, content))


def mistakes(
    state: AppState,
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
    """Groups captions by which of two methods ranks the correct image in its top k."""
    methods, galleries = retriever.methods, retriever.index.images
    has_views = {name: (galleries[name].shape or (1,))[0] > 1 for name in methods.best_first}
    a = a or min(has_views, key=lambda name: (name == b, has_views[name] == has_views.get(b)))
    b = b or min(has_views, key=lambda name: (name == a, has_views[name] == has_views.get(a)))
    a, b = ("+".join(sorted(methods.names(spec), key=[*methods].index)) for spec in (a, b))
    if a == b:
        raise ValueError(f'"{a[:80]}" is compared with itself; choose two methods')
    captions = ranking.captions_of(retriever, queries)
    if captions is None:
        raise Refusal(410, "these queries are no longer stored; send the file again")
    reading = ranking.read_ranks(retriever, captions, (a, b), queries)
    if reading.result is None:
        status = "failed" if reading.problem else "running"
        progress = state.public_message(ValueError(reading.problem or reading.progress))
        return answers.Mistakes(state=status, progress=progress, a=a, b=b, k=k)
    first, second, best = (reading.result[spec] for spec in (a, b, methods.best))
    all_rows = results.compare(captions, first[:2], second[:2], best[2], k)
    kinds, rows = results.by_kind(all_rows), [row for row in all_rows if row.matches(kind)]
    if not rows:
        choices = ", ".join(entry["kind"] for entry in kinds)
        raise ValueError(f'no caption is of the kind "{kind}"; choose word:WORD or {choices}')
    summary, pairs = results.summarize(rows), Counter((row.rank_a, row.rank_b) for row in rows)
    if within:
        if len(within) != 4:
            raise ValueError("within takes four ranks: the lowest and highest by a, then by b")
        low_a, high_a, low_b, high_b = within
        inside = {r for r in rows if low_a <= r.rank_a <= high_a and low_b <= r.rank_b <= high_b}
        others = {*rows} - inside
        summary["words_a"] = results.typical_words(inside, others)
        summary["words_b"] = results.typical_words(others, inside)
        summary["counts"], rows = results.counts(inside), sorted(inside)
    suspects = [row for row in rows if row.suspect is not None]
    listed = suspects if cell == "labels" else [row for row in rows if cell in ("all", row.found)]
    if order == "gap":
        listed.sort(key=lambda row: row.rank_a / row.rank_b, reverse=cell == "b")
    elif order != "caption":
        listed.sort(key=lambda row: row.rank_a if order == "a" else row.rank_b)
    if format == "csv":
        table = results.to_csv(listed)
        return answers.Blob(media_type="text/csv; charset=utf-8", data=table.encode())
    summary |= {"exact": results.is_exact(captions), "kinds": kinds, "labels": len(suspects)}
    summary |= {"total": len(listed), "pairs": [[*pair, number] for pair, number in pairs.items()]}
    page = [row._asdict() for row in listed[start : start + count]]
    return answers.Mistakes(state="ready", progress="", a=a, b=b, k=k, captions=page, **summary)
