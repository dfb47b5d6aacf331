"""Prints the tables of an evaluation, and writes its files for other programs."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from polyview.models.files import replacing, write_whole
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.split import Split
from polyview.training.evaluation.metrics import retrieval_ranks

DEPTH = 100  # items of each query in a TREC run

COLUMNS = {
    "i2t_r1": "i2t R@1",
    "i2t_r5": "R@5",
    "i2t_r10": "R@10",
    "t2i_r1": "t2i R@1",
    "t2i_r5": "R@5",
    "t2i_r10": "R@10",
    "rsum": "rsum",
    "p_at_5": "P@5",
    "first_right": "first right",
    "i2t_medr": "i2t MedR",
    "t2i_medr": "t2i MedR",
    "i2t_meanr": "i2t MeanR",
    "t2i_meanr": "t2i MeanR",
    "i2t_nmr": "i2t nMR",
    "t2i_nmr": "t2i nMR",
    "t2i_rprecision": "t2i R-P",
    "t2i_map_at_r": "t2i mAP@R",
    "i2t_rprecision": "i2t R-P",
    "i2t_map_at_r": "i2t mAP@R",
}

EVIDENCE = {
    "evidence_pointing": "points at a mentioned object, %",
    "evidence_chance": "chance",
    "evidence_random_head": "random heads",
    "evidence_word_pointing": "a word points at its object, %",
    "evidence_word_chance": "chance",
    "deletion": "deletion",
    "deletion_random": "at random",
    "deletion_map": "by the paper's map",
    "deletion_renewed": "deletion, renewed",
    "deletion_renewed_map": "by the map, renewed",
    "insertion": "insertion",
    "insertion_random": "at random",
    "insertion_map": "by the paper's map",
    "evidence_error": "error",
    "moment_pointing": "peaks in a frame with a mentioned object, %",
    "moment_chance": "chance",
    "moment_word_pointing": "a word peaks where its object is, %",
    "moment_word_chance": "chance",
}
AREAS = {"deletion": "lower", "deletion_renewed": "lower", "insertion": "higher"}

MAPS = {
    "sentence": "sentence points, %",
    "word": "word points, %",
    "name": "name alone points, %",
    "deletion": "deletion",
    "insertion": "insertion",
}

CERTAINTY = {
    "area": "area",
    "precision": "precision",
    "coverage": "coverage",
    "ece": "ECE",
    "refused_caption": "refused: captions",
    "refused_thing": "things",
    "refused_absent_caption": "absent captions",
    "refused_absent_thing": "absent things",
    "refused_gibberish": "gibberish",
    "refused_unknown": "unknown things",
    "refused_random": "random words",
}

UNMEASURED = (
    "{}: faithfulness was not measured; it needs a mask for every image and attention maps."
)

Rows = Mapping[str, Mapping[str, float]]  # metrics of each method


def print_rows(titles: Sequence[str], table: Sequence[Sequence[str]], words: int = 1) -> None:
    """Prints a Markdown table whose first columns are words, the others numbers."""
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * words + "---:|" * (len(titles) - words))
    for cells in table:
        print("| " + " | ".join(cells) + " |")


def format_value(key: str, value: float) -> str:
    """A metric with its digits.

    >>> format_value("t2i_nmr", 0.01), format_value("rsum", 500.04), format_value("deletion", 0.5)
    ('0.0100', '500.0', '0.500')
    """
    if key == "evidence_error":
        return f"{value:.0e}"
    if key.startswith(("deletion", "insertion")) or key in ("area", "ece"):
        return f"{value:.3f}"
    digits = 4 if key.endswith("nmr") else 2 if key in ("p_at_5", "first_right") else 1
    return f"{value:.{digits}f}"


def print_metrics(title: str, columns: Mapping[str, str], rows: Rows, every: bool = True) -> None:
    """Prints a line for each method, with the columns that all methods have, or any."""
    present = all if every else any
    keys = [key for key in columns if present(key in row for row in rows.values())]
    table = [
        [name, *(format_value(key, row[key]) if key in row else "" for key in keys)]
        for name, row in rows.items()
    ]
    print_rows([title, *(columns[key] for key in keys)], table)


def print_views(rows: Rows) -> None:
    """Prints a line for each view, in percent, and a summary for each method.

    Args:
        rows: `view_statistics` of each method, with `faithfulness` if it was measured.
    """
    table, below = [], []
    for name, row in rows.items():
        count = sum(key.startswith("wins_") for key in row) - 1  # V; without the entropy
        lines = [(f"{name} {view}", f"_{view}") for view in range(1, count + 1)]
        if "pointing" in row:
            lines += [(f"{name}, the winning view", ""), (f"{name}, chance", "_chance")]
        for title, suffix in lines:
            keys = [f"{key}{suffix}" for key in ("wins", "pointing", "mass")]
            table.append([title, *(f"{row[key]:.1f}" if key in row else "" for key in keys)])
        bits = f"{row['wins_entropy']:.2f} of {math.log2(count):.2f} bits"
        below.append(f"{name}: entropy of the wins {bits}")
        if "view_cosine" in row:
            below[-1] += f", mean cosine between two views of an image {row['view_cosine']:.3f}"
        if "pointing" not in row:
            below.append(UNMEASURED.format(name))
    titles = ["view", "wins", "points at a mentioned object", "attention on mentioned objects"]
    print()
    print_rows(titles, table)
    print("", *below, sep="\n")


def print_normalization(rows: Rows) -> None:
    """Prints one line a method of `measure_normalization`."""
    titles = ["method", "alpha", "k", "rsum without", "with", "difference", "95 % interval"]
    table = []
    for name, row in rows.items():
        numbers = [f"{row[key]:g}" for key in ("alpha", "k")]
        rsums = f"{row['before']:.1f}", f"{row['after']:.1f}", f"{row['difference']:+.1f}"
        table.append([name, *numbers, *rsums, f"{row['low']:+.1f} to {row['high']:+.1f}"])
    print_rows(titles, table)


def print_evidence(rows: Rows) -> None:
    """Prints `evidence_metrics` of each method, and the intervals of the gains."""
    print()
    print_metrics("evidence of", EVIDENCE, rows, every=False)
    print()
    for name, row in rows.items():
        for curve, way in AREAS.items():
            gains = [
                f"{row[f'{gain}_low']:.3f} to {row[f'{gain}_high']:.3f} {way} than {words}"
                for other, words in (("random", "at random"), ("map", "by the paper's map"))
                if f"{(gain := f'{curve}_gain_{other}')}_low" in row
            ]
            if gains:
                print(f"{name}: {curve} {', '.join(gains)} (95 % intervals)")


def print_maps(rows: Rows) -> None:
    """Prints `measure_maps`: what each map reaches, and how far it is behind the exact rows."""
    for title, suffix in (("map", ""), ("behind the exact rows", "_behind")):
        table = [
            [name, *(_interval(row, key, suffix) for key in MAPS)] for name, row in rows.items()
        ]
        print()
        print_rows([title, *MAPS.values()], table)


def _interval(row: Mapping[str, float], measure: str, suffix: str) -> str:
    """Such as "57.1 (55.0 to 59.2)"; empty where it was not measured."""
    keys = [f"{measure}{suffix}{end}" for end in ("", "_low", "_high")]
    if keys[0] not in row:
        return ""
    value, low, high = (format_value(measure, row[key]) for key in keys)
    return f"{value} ({low} to {high})"


def write_maps(path: Path, rows: Rows) -> None:
    """Writes the result of `measure_maps` as CSV, one line for each map."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = list(next(iter(rows.values())))
    writer.writerow(["map", *columns])
    for name, row in rows.items():
        writer.writerow([name, *(f"{row[key]:.4f}" if key in row else "" for key in columns)])
    write_whole(path, out.getvalue())


def print_difference(a: str, b: str, values: Mapping[str, float], kind: str = "") -> None:
    """Prints `bootstrap_difference` of two methods, of one kind of captions if it is named."""
    print(
        f"{a} - {b}{f', {kind}' if kind else ''}: rsum {values['difference']:+.1f}, 95 % interval "
        f"[{values['low']:+.1f}, {values['high']:+.1f}], above 0 in "
        f"{100 * values['share_above']:.1f} % of the samples"
    )


def print_certainty(rows: Rows) -> None:
    """Prints the measured calibration of each method; shares in percent."""
    if rows:
        percent = {
            name: {key: v if key in ("area", "ece") else 100 * v for key, v in row.items()}
            for name, row in rows.items()
        }
        print_metrics("method", CERTAINTY, percent)


def write_scores(path: Path, scores: Mapping[str, np.ndarray], data: Split) -> None:
    """Writes the score matrices of all methods, and the rank of each query's best right item.

    The NumPy archive (".npz") holds for each method `NAME` (N_img, N_txt) float32, `NAME:i2t_ranks`
    (N_img,) and `NAME:t2i_ranks` (N_txt,), counted from 0; and `captions` (N_txt,), `image_of`
    (N_txt,), the row of each caption's image, and `files` (N_img,), the names of photographs.

    Raises:
        ValueError: `path` has another ending.
    """
    if path.suffix != ".npz":
        raise ValueError(f"--scores writes a NumPy archive; end its name in .npz, not {path}")
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

    `NAME.t2i.trec` and `NAME.i2t.trec` hold the best `DEPTH` items of each query of a method, a
    line `qid Q0 docid rank score tag` each, rank from 1; `t2i.qrels` and `i2t.qrels` the right
    items, `qid 0 docid 1`. Images are `i0`, `i1`, ... and captions `t0`, `t1`, ... by their rows.
    Right items are an image's own captions, or all relevant ones if they are known.
    """
    own = [np.array([row]) for row in data.image_of]
    relevant = own if data.relevant is None else data.relevant()
    right = [(f"t{text}", f"i{row}") for text, rows in enumerate(relevant) for row in rows.tolist()]
    for way, pairs in (("t2i", right), ("i2t", [(image, text) for text, image in right])):
        write_whole(folder / f"{way}.qrels", "".join(f"{q} 0 {d} 1\n" for q, d in pairs))
        for name, matrix in scores.items():
            tag = name.replace("/", "_").replace(" ", "_")
            table = matrix if way == "i2t" else matrix.T  # (Q, G)
            query, item = way[0], way[2]
            lines = []
            for number, row in enumerate(table):
                best = np.argsort(-row, kind="stable")[:DEPTH]
                lines += [
                    f"{query}{number} Q0 {item}{doc} {rank} {row[doc]:.6f} {tag}\n"
                    for rank, doc in enumerate(best.tolist(), 1)
                ]
            write_whole(folder / f"{tag}.{way}.trec", "".join(lines))
