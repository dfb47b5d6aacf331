"""Compares what two methods find, from scores or from run files of other tools."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyview.export import mistakes
from polyview.export.mistakes import UNRANKED, Captions, Ranks
from polyview.models.files import no_such, write_whole
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.split import Split
from polyview.training.evaluation.report import print_rows
from polyview.training.evaluation.scoring import ensemble_scores


def print_mistakes(
    options: argparse.Namespace, scores: Mapping[str, np.ndarray], data: Split
) -> dict[str, Any]:
    """Prints a comparison of two methods, and writes all captions to a CSV file.

    Args:
        options: `mistakes`, two names of `scores`, ensembles or run files; `k`; `csv`, or None.
        scores: (N_img, N_txt) by method.
        data: the measured split.

    Returns:
        `summary` of the captions, with the names `a` and `b`.
    """
    if options.k < 1:
        raise ValueError(f"--k must be at least 1, not {options.k}")
    captions, names = as_captions(data), [name for name in options.mistakes if not is_run(name)]
    matrices = {**scores, **{name: ensemble_scores(scores, name) for name in names}}
    ranks, above = mistakes.rank_captions(
        captions,
        list(matrices),
        data.image_count,
        lambda name, rows, part: matrices[name][rows, part],
    )
    a, b = (
        ranks[name] if name in names else read_run(Path(name), data, options.k)
        for name in options.mistakes
    )
    first, second = options.mistakes
    pair = mistakes.Pair(captions, a, b, options.k, above)
    about = pair.summary()
    rows = [{"kind": "all", "captions": len(captions.texts), **about["counts"]}, *about["kinds"]]
    titles = ["captions", "number", f"only {first}", f"only {second}", "both", "neither"]
    print()
    print_rows(titles, [[str(cell) for cell in row.values()] for row in rows])
    print(
        f"\n{first} - {second}: {about['difference']:+.1f} points found within {options.k}, 95 % "
        f"interval [{about['low']:+.1f}, {about['high']:+.1f}], McNemar p = {about['p']:.2g}"
    )
    for side, name in (("a", first), ("b", second)):
        words = [f"{word['word']} ({word['a']} : {word['b']})" for word in about[f"words_{side}"]]
        print(f"words of what only {name} finds: {', '.join(words) or 'none'}")
    if options.csv:
        write_whole(options.csv, mistakes.to_csv(pair.rows(range(len(captions.texts)))))
    return {"a": first, "b": second, "k": options.k, **about}


def as_captions(data: Split) -> Captions:
    """The captions of a split with their right images."""
    own = [np.array([row]) for row in data.image_of]
    right = own if data.relevant is None else data.relevant()
    return Captions(data.captions, data.image_of, right, data.kinds or (None,) * len(own))


def is_run(name: str) -> bool:
    """Whether a name is a run file rather than a method or a run folder."""
    return name.endswith((".trec", ".run", ".txt", ".tsv")) or Path(name).is_file()


def read_run(path: Path, data: Split, k: int) -> Ranks:
    """Ranks of a run in TREC's format: lines `qid Q0 docid rank score tag`, as `write_trec` has.

    Captions are `t0`, `t1`, ... or `0`, `1`, ... by their rows, or their image's name, `#` or `_`
    and their place among its captions; images `i0`, ... or `0`, ..., or a file's name, with or
    without ending. Higher scores rank first, equal ones by the rank column.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not valid, names an unknown item, or a list is shorter than k.
    """
    if not path.is_file():
        raise FileNotFoundError(
            no_such("run file", path, "name a method, or a file in TREC format")
        )
    images = {form.format(row): row for row in range(data.image_count) for form in ("i{}", "{}")}
    texts = {form.format(row): row for row in range(len(data.captions)) for form in ("t{}", "{}")}
    if isinstance(data.images, ImageFiles):
        names = [{file.name, file.stem} for file in data.images.paths]
        images |= {name: row for row, each in enumerate(names) for name in each}
        place = np.arange(len(data.captions)) - np.searchsorted(data.image_of, data.image_of)
        for text, (row, number) in enumerate(zip(data.image_of, place, strict=True)):
            texts |= {f"{name}{sign}{number}": text for name in names[row] for sign in "#_"}
    lists: list[list[tuple[float, int, int]]] = [[] for _ in data.captions]
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            query, _, image, rank, score, *_ = line.split()
            lists[texts[query]].append((-float(score), int(rank), images[image]))
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number}: {error}; lines are `qid Q0 docid rank score tag`, with "
                "captions t0, t1, ... and images i0, i1, ... by their rows, or files' names"
            ) from error
    if max(map(len, lists)) < min(k, data.image_count):
        raise ValueError(f"{path} lists fewer than {k} images a caption; choose a smaller --k")
    orders = [[row for *_, row in sorted(each)] for each in lists]
    right = as_captions(data).right
    places = [
        next((place for place, row in enumerate(order, 1) if row in own), UNRANKED)
        for order, own in zip(orders, map(set, right), strict=True)
    ]
    return Ranks(np.array(places), np.array([order[0] if order else -1 for order in orders]))
