"""Prints tables; writes score matrices; reads and writes CSV files and runs in TREC's format."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyview.export import mistakes
from polyview.models.files import atomic_write, replacing
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.split import Split
from polyview.training.evaluation.metrics import difference_of_hits, retrieval_ranks

DEPTH = 100  # maximum number of items listed for a query in a TREC run

COLUMNS = {
    "i2t_r1": "i2t R@1", "i2t_r5": "R@5", "i2t_r10": "R@10",
    "t2i_r1": "t2i R@1", "t2i_r5": "R@5", "t2i_r10": "R@10", "rsum": "rsum",
    "i2t_medr": "i2t MedR", "t2i_medr": "t2i MedR",
    "i2t_meanr": "i2t MeanR", "t2i_meanr": "t2i MeanR",
    "i2t_nmr": "i2t nMR", "t2i_nmr": "t2i nMR",
    "t2i_rprecision": "t2i R-P", "t2i_map_at_r": "t2i mAP@R",
    "i2t_rprecision": "i2t R-P", "i2t_map_at_r": "i2t mAP@R",
}  # fmt: skip

Rows = Mapping[str, Mapping[str, float]]  # method -> metric -> value
Table = Sequence[Sequence[str]]  # rows of cells


def print_rows(titles: Sequence[str], table: Table, label_count: int = 1) -> None:
    """Prints a Markdown table; the first `label_count` columns are text, the others numbers."""
    print(*to_markdown([titles, *table], label_count), sep="\n")


def to_markdown(table: Table, label_count: int = 1, note_count: int = 0) -> list[str]:
    """Returns lines of Markdown; the first `label_count` and last `note_count` columns are text."""
    head, *rows = (f"| {' | '.join(cells)} |" for cells in table)
    number_count = len(table[0]) - label_count - note_count
    return [head, "|" + "---|" * label_count + "---:|" * number_count + "---|" * note_count, *rows]


def write_into_page(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replaces a sweep's table in a page; raises ValueError if the page has no block for it."""
    start, end = f"<!-- sweep {name} -->\n", f"<!-- end {name} -->"
    block = re.compile(rf"(?<={re.escape(start)}).*?(?={re.escape(end)})", re.DOTALL)
    text, count = block.subn(lambda _: "\n".join(["", *lines, "", ""]), page.read_text("utf-8"))
    if not count:
        raise ValueError(f"{page} has no <!-- sweep {name} --> block; add one")
    atomic_write(page, text)


def format_value(key: str, value: float) -> str:
    """Formats a metric with its usual number of digits.

    >>> format_value("t2i_nmr", 0.01), format_value("rsum", 500.04), format_value("deletion", 0.5)
    ('0.0100', '500.0', '0.500')
    """
    if key == "evidence_error":
        return f"{value:.0e}"
    if key.startswith(("deletion", "insertion")) or key in ("area", "ece"):
        return f"{value:.3f}"
    return f"{value:.{4 if key.endswith('nmr') else 1}f}"


def format_difference(first: np.ndarray, second: np.ndarray) -> str:
    """Formats the rsum difference of two methods from `image_hits` (S, 4, N_img) of S runs each.

    Adds "ahead" or "behind" if the interval over seeds and images excludes 0.
    """
    values = difference_of_hits(first, second)
    verdict = " ahead" if values["low"] > 0 else " behind" if values["high"] < 0 else ""
    return f"{values['difference']:+.1f} [{values['low']:+.1f}, {values['high']:+.1f}]{verdict}"


def print_metrics(title: str, columns: Mapping[str, str], rows: Rows, strict: bool = True) -> None:
    """Prints a row for each method; `strict` leaves out metrics that some methods lack."""
    condition = all if strict else any
    keys = [key for key in columns if condition(key in row for row in rows.values())]
    table = [
        [name, *(format_value(key, row[key]) if key in row else "" for key in keys)]
        for name, row in rows.items()
    ]
    print_rows([title, *(columns[key] for key in keys)], table)


def print_mistakes(
    a: str, b: str, matrices: Mapping[str, np.ndarray], data: Split, k: int, path: Path | None
) -> dict[str, Any]:
    """Counts captions whose images only one, both or neither of two methods find within rank k.

    `matrices` holds the scores (N_img, N_txt) of each method. Prints the results, and writes all
    captions to a CSV file if `path` is given. Returns the values of `mistakes.summarize`; `kinds`,
    from `mistakes.count_by_kind`; and `a`, `b` and `k`.
    """
    relevant = data.relevant() if data.relevant else np.empty((len(data.captions), 0), int)
    right = [(image, *rows) for image, rows in zip(data.image_of.tolist(), relevant, strict=True)]
    captions = [*map(mistakes.Caption, data.captions, right, data.kinds or [""] * len(right))]
    ranks = mistakes.rank_captions(
        captions, matrices, data.image_count, lambda name, part: matrices[name].T[part]
    )
    *_, (_, _, suspects) = ranks.values()  # images that all methods rank above the labelled image
    outcomes = mistakes.compare(captions, ranks[a][:2], ranks[b][:2], suspects, k)
    summary = {**mistakes.summarize(outcomes), "kinds": mistakes.count_by_kind(outcomes)}
    table = [{"kind": "all", "captions": len(captions), **summary["counts"]}, *summary["kinds"]]
    titles = ["captions", "number", f"only {a}", f"only {b}", "both", "neither"]
    print()
    print_rows(titles, [[str(cell) for cell in row.values()] for row in table])
    print(
        f"\n{a} - {b}: {summary['difference']:+.1f} points found within {k}, 95 % "
        f"interval [{summary['low']:+.1f}, {summary['high']:+.1f}], McNemar p = {summary['p']:.2g}"
    )
    for name, words in ((a, summary["words_a"]), (b, summary["words_b"])):
        word_list = [f"{word['word']} ({word['ratio']:.1f} x)" for word in words]
        print(f"words of captions that only {name} finds: {', '.join(word_list) or 'none'}")
    if path:
        atomic_write(path, mistakes.to_csv(outcomes))
    return {"a": a, "b": b, "k": k, **summary}


def write_scores(path: Path, scores: Mapping[str, np.ndarray], data: Split) -> None:
    """Writes the score matrices of all methods, and the ranks of each query's best relevant item.

    The NumPy archive (".npz") holds the scores of each method, `NAME` (N_img, N_txt) float32, and
    its ranks counted from 0, `NAME:i2t_ranks` (N_img,) and `NAME:t2i_ranks` (N_txt,). It also holds
    `captions` (N_txt,) and the row of each caption's image, `image_of` (N_txt,). If the images are
    files, `files` (N_img,) holds their names. Raises ValueError for a path with another suffix.
    """
    if path.suffix != ".npz":
        raise ValueError(f"--scores writes a NumPy archive, whose name ends in .npz, not {path}")
    arrays = {"captions": np.array(data.captions), "image_of": data.image_of}
    if isinstance(data.images, ImageFiles):
        arrays["files"] = np.array([file.name for file in data.images.paths])
    for name, matrix in scores.items():
        i2t, t2i = retrieval_ranks(matrix, data.image_of)
        arrays |= {name: matrix, f"{name}:i2t_ranks": i2t, f"{name}:t2i_ranks": t2i}
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def write_trec(folder: Path, scores: Mapping[str, np.ndarray], data: Split) -> None:
    """Writes runs and relevance judgements of scores (N_img, N_txt) for `trec_eval` and `ranx`.

    `NAME.t2i.trec` and `NAME.i2t.trec` hold a method's best `DEPTH` items for each query. Each line
    `qid Q0 docid rank score tag` is an item; ranks start at 1. `t2i.qrels` and `i2t.qrels` hold the
    relevant items as `qid 0 docid 1`. If not all are known, only an image and its captions count as
    relevant. Images are named `i0`, `i1`, ... and captions `t0`, `t1`, ... by their rows.
    """
    relevant = data.image_of[:, None] if data.relevant is None else data.relevant()
    truth = [(f"t{text}", f"i{row}") for text, rows in enumerate(relevant) for row in rows.tolist()]
    for direction, pairs in (("t2i", truth), ("i2t", [(image, text) for text, image in truth])):
        atomic_write(folder / f"{direction}.qrels", "".join(f"{q} 0 {d} 1\n" for q, d in pairs))
        for name, matrix in scores.items():
            tag = name.replace("/", "_").replace(" ", "_")
            table = matrix if direction == "i2t" else matrix.T  # (Q, G)
            query, item = direction[0], direction[2]  # the prefixes of names, "t" or "i"
            lines = []
            for number, row in enumerate(table):
                best = np.argsort(-row, kind="stable")[:DEPTH].tolist()
                for rank, doc in enumerate(best, 1):
                    lines.append(f"{query}{number} Q0 {item}{doc} {rank} {row[doc]:.6f} {tag}\n")
            atomic_write(folder / f"{tag}.{direction}.trec", "".join(lines))


def read_run(path: Path, data: Split, k: int) -> np.ndarray:
    """Reads a text-to-image run in the format of `write_trec`.

    The caption in row 3 is named `t3` or `3`. The image in row 3 is named `i3` or `3`, or by its
    file name with or without suffix. Higher scores rank first; the rank column decides ties.
    Returns scores (N_img, N_txt) float32 with the same ranking, -inf for unlisted images. Raises
    ValueError for an invalid line or an unknown item, and if every caption has fewer than k images.
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
            layout = "write lines `qid Q0 docid rank score tag`, such as `t0 Q0 i12 1 0.83 name`"
            raise ValueError(f"{path}, line {number}: {error}; {layout}") from error
    if max(map(len, lists.values())) < min(k, data.image_count):
        raise ValueError(f"{path} lists fewer than {k} images per caption; choose a smaller --k")
    scores = np.full((data.image_count, len(lists)), -np.inf, np.float32)
    for text, ranked in enumerate(map(sorted, lists.values())):
        scores[[image for *_, image in ranked], text] = -np.arange(len(ranked))
    return scores


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file atomically; a column that a row lacks is left empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a CSV file; missing values are empty strings."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
