"""What was measured of a pack's methods: its own metrics, and files of numbers beside the pack.

    pack.json                             metrics of each method
    training/METHOD/log.csv               a row an epoch, as training wrote it
    ../NAME.speed.json                    milliseconds of a query, by method
    ../NAME.candidates.json               milliseconds of scoring against more and more images
    ../ablations/NAME/*.json              tables of what changes when a method is varied

`python -m benchmarks.gallery latency|candidates --record` writes the second last two.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyview.app.packs.description import describe_method
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import PackError, read_json

_MOST = 2**20  # bytes of a file
_SOURCE = ("split", "command", "hardware", "seed")
_SPEED = ("median", "queries", "pictures", "hardware", "command")
_CANDIDATES = ("images", "median", "queries", "hardware", "command")
_ABLATION = ("name", "title", "paper", "found", "command", "hardware", "seeds", "columns", "rows")


_COLUMN = ("key", "title", "group", "digits", "best", "meaning")
_RECALL = "Percent of {0} for which {1} is among the first {2}."
_PRECISION = "R-precision: of the first R, percent that are right, where R are right for {0}."
_AVERAGE = "Mean average precision over the first R: as R-precision, but order counts."
_MEDIAN = "Median rank of {1}; 1 is best."
_SHARED = (
    ("rsum", "rsum", "Overall", 1, "highest", "Sum of the six R@K; at most 600."),
    ("pointing", "points", "Overall", 1, "highest",
     "Percent of captions for which the winning view's attention peaks on a mentioned object."),
    ("evidence_pointing", "evidence", "Overall", 1, "highest",
     "Percent of captions whose evidence, all words together, peaks on a mentioned object."),
    ("evidence_word_pointing", "of words", "Overall", 1, "highest",
     "Percent of words naming an object whose own evidence peaks on such an object."),
    ("refused_absent_thing", "absent", "Overall", 1, "highest",
     "Percent of queries for an object in no image that are answered by: nothing matches."),
    ("query_ms", "ms", "Cost", 2, "lowest",
     "Median milliseconds of one text query, from the words to the ten best images."),
    ("megabytes", "MB", "Cost", 2, "lowest",
     "Text encoder and heads on disk, in megabytes; all methods share the image encoder."),
    ("parameters", "params", "Cost", 0, "lowest",
     "Learned numbers in the heads, without the text encoder."),
    ("view_numbers", "views", "Cost", 0, "",
     "Views of an image x dimensions of a view: the numbers stored for each image."),
)  # fmt: skip


def _direction(key: str, group: str, queries: str, target: str) -> list[tuple[object, ...]]:
    """The columns of one direction of retrieval."""
    rows = [(f"r{k}", f"R@{k}", "highest", _RECALL.format(queries, target, k)) for k in (1, 5, 10)]
    rows += [
        ("rprecision", "R-P", "highest", _PRECISION.format(queries)),
        ("map_at_r", "mAP@R", "highest", _AVERAGE),
        ("medr", "MedR", "lowest", _MEDIAN.format(queries, target)),
    ]
    return [(f"{key}_{name}", title, group, 1, best, about) for name, title, best, about in rows]


COLUMNS: list[dict[str, Any]] = [
    dict(zip(_COLUMN, row, strict=True))
    for row in (
        *_direction("t2i", "Text to image", "captions", "the image it was written for"),
        *_direction("i2t", "Image to text", "images", "one of its captions"),
        *_SHARED,
    )
]


def results(retriever: Retriever) -> dict[str, Any]:
    """Every recorded number of a pack, as plain JSON values.

    Returns:
        `methods` with their values by column, the `columns` that have a value, `speed`,
        `candidates`, `curves`, `ablations` as recorded, and `problems`: a sentence for each file
        that cannot be read.
    """
    info, problems = retriever.info, list[str]()
    beside = info.folder.parent
    speed = _record(beside / f"{info.folder.name}.speed.json", _SPEED, problems)
    candidates = _record(beside / f"{info.folder.name}.candidates.json", _CANDIDATES, problems)
    tables = sorted((beside / "ablations" / info.folder.name).glob("*.json"))
    methods = {name: _method(retriever, name, speed) for name in retriever.methods}
    used = {key for method in methods.values() for key in method["values"]}
    return {
        "pack": info.name,
        "checksum": info.checksum,
        "columns": [column for column in COLUMNS if column["key"] in used],
        "methods": methods,
        "speed": speed,
        "candidates": candidates,
        "curves": [curve for name in info.methods if (curve := _curve(info, name))],
        "ablations": [table for path in tables if (table := _record(path, _ABLATION, problems))],
        "problems": problems,
    }


def _record(path: Path, keys: tuple[str, ...], problems: list[str]) -> dict[str, Any] | None:
    """A JSON file of numbers; None, and a sentence in `problems`, where it is not complete."""
    if not path.is_file():
        return None
    try:
        content = read_json(path, _MOST)
        if not isinstance(content, dict):
            raise PackError(f"{path.name} must hold an object")
        if missing := [key for key in keys if key not in content]:
            raise PackError(f"{path.name} lacks {missing[0]!r}")
        return content
    except (ValueError, OSError) as error:
        # visitors need not know where it is
        problems.append(f"{str(error).replace(str(path), path.name)}; it is not shown")
        return None


def _method(retriever: Retriever, name: str, speed: dict[str, Any] | None) -> dict[str, Any]:
    about, metrics = describe_method(retriever, name), retriever.info.methods[name].metrics
    values: dict[str, Any] = {} if metrics is None else dict(metrics.values)
    sure = retriever.info.methods[name].calibration_metrics
    for key, value in () if sure is None else sure.values.items():
        values[key] = 100 * value if key.startswith("refused") else value
    values["query_ms"] = (speed or {"median": {}})["median"].get(name)
    values["megabytes"] = (about["head_bytes"] + about["text_encoder_bytes"]) / 1e6
    values["parameters"] = about["head_parameters"]
    values["view_numbers"] = about["views"] and about["views"] * about["dim"]
    known = {column["key"] for column in COLUMNS}
    source = None if metrics is None else asdict(metrics)
    return {
        "title": about["title"],
        "paper": about["paper"],
        "values": {
            key: value for key, value in values.items() if key in known and value is not None
        },
        "measured": source and {key: source[key] for key in _SOURCE},
    }


def _curve(info: PackInfo, name: str) -> dict[str, Any] | None:
    """Loss and validation rsum by epoch; None where the pack has no log of this training."""
    path = info.folder / "training" / name / "log.csv"
    if not path.is_file() or path.stat().st_size > _MOST:
        return None
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        series = {key: _points(rows, key) for key in ("loss", "rsum", "seconds")}
    except (ValueError, OSError, csv.Error):
        return None
    if not series["loss"] or not series["rsum"]:
        return None
    minutes = sum(value for _, value in series.pop("seconds")) / 60
    return {"name": name, "epochs": len(rows), "minutes": minutes, **series}


def _points(rows: Sequence[Mapping[str, str]], key: str) -> list[tuple[int, float]]:
    """(epoch, value) of the epochs that have one; epochs are counted from 1."""
    values = enumerate((float(row.get(key) or "nan") for row in rows), start=1)
    return [(epoch, value) for epoch, value in values if math.isfinite(value)]
