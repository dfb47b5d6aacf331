"""Compares what two methods find, from scores or from run files of other tools."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyview.export import mistakes
from polyview.models.files import write_whole
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.split import Split
from polyview.training.evaluation.report import print_rows
from polyview.training.evaluation.scoring import ensemble_scores


def print_mistakes(
    options: argparse.Namespace, scores: Mapping[str, np.ndarray], data: Split
) -> dict[str, Any]:
    """Prints a comparison of two methods, and writes all captions to a CSV file.

    `options.mistakes` are two names of `scores` (N_img, N_txt), ensembles or run files. Returns
    `summarize` and `by_kind` of the captions, with the names `a` and `b`.
    """
    (a, b), k, matrices = options.mistakes, options.k, dict(scores)
    if k < 1:
        raise ValueError(f"--k must be at least 1, not {k}")
    for name in (a, b):
        run = Path(name)
        matrices[name] = read_run(run, data, k) if run.is_file() else ensemble_scores(scores, name)
    relevant = data.relevant() if data.relevant else np.empty((len(data.captions), 0), int)
    right = [(own, *rows) for own, rows in zip(data.image_of.tolist(), relevant, strict=True)]
    captions = [*map(mistakes.Caption, data.captions, right, data.kinds or [""] * len(right))]
    ranks = mistakes.rank_captions(
        captions, matrices, data.image_count, lambda name, part: matrices[name].T[part]
    )
    *_, last = ranks.values()
    outcomes = mistakes.compare(captions, ranks[a][:2], ranks[b][:2], last[2], k)
    summary = {**mistakes.summarize(outcomes), "kinds": mistakes.by_kind(outcomes)}
    table = [{"kind": "all", "captions": len(captions), **summary["counts"]}, *summary["kinds"]]
    titles = ["captions", "number", f"only {a}", f"only {b}", "both", "neither"]
    print()
    print_rows(titles, [[str(cell) for cell in row.values()] for row in table])
    print(
        f"\n{a} - {b}: {summary['difference']:+.1f} points found within {k}, 95 % "
        f"interval [{summary['low']:+.1f}, {summary['high']:+.1f}], McNemar p = {summary['p']:.2g}"
    )
    for name, words in ((a, summary["words_a"]), (b, summary["words_b"])):
        listed = [f"{word['word']} ({word['ratio']:.1f} x)" for word in words]
        print(f"words of what only {name} finds: {', '.join(listed) or 'none'}")
    if options.csv:
        write_whole(options.csv, mistakes.to_csv(outcomes))
    return {"a": a, "b": b, "k": k, **summary}


def read_run(path: Path, data: Split, k: int) -> np.ndarray:
    """Reads a run in TREC's format: lines `qid Q0 docid rank score tag`, as `write_trec` has.

    Captions are `t0` or `0`, ... by their rows; images `i0` or `0`, ..., or a file's name, with or
    without ending. Higher scores rank first, equal ones by the rank column.

    Returns:
        (N_img, N_txt) float32 that rank images in this order; -inf for those that are not listed.

    Raises:
        ValueError: a line is not valid, names an unknown item, or all lists are shorter than k.
    """
    images = {form.format(row): row for row in range(data.image_count) for form in ("i{}", "{}")}
    if isinstance(data.images, ImageFiles):
        for row, file in enumerate(data.images.paths):
            images |= {file.name: row, file.stem: row}
    lists = {str(row): list[tuple[float, int, int]]() for row in range(len(data.captions))}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            query, _, image, rank, score, *_ = line.split()
            lists[query.removeprefix("t")].append((-float(score), int(rank), images[image]))
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number}: {error}; lines are `qid Q0 docid rank score tag`, with "
                "captions t0, ... and images i0, ... by their rows, or files' names"
            ) from error
    if max(map(len, lists.values())) < min(k, data.image_count):
        raise ValueError(f"{path} lists fewer than {k} images a caption; choose a smaller --k")
    scores = np.full((data.image_count, len(lists)), -np.inf, np.float32)
    for q, each in enumerate(lists.values()):
        scores[[row for *_, row in sorted(each)], q] = -np.arange(len(each))
    return scores
