"""Describes a pack, its methods, the device and the gallery; and its recorded results.

Results are metrics of the pack, and files beside it:
    pack.json                             metrics of each method
    training/METHOD/log.csv               training log, one row for each epoch
    ../NAME.speed.json                    milliseconds of a query, by method
    ../ablations/NAME/*.json              tables of ablations

`python -m benchmarks.gallery latency --record` writes the second last.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyview.app.search.retriever import Retriever
from polyview.export.hub.client import cached_commit
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import read_json

_LISTED = 1000  # files
_MOST = 2**20  # bytes of a file
_SOURCE = ("split", "command", "hardware", "seed")

# for each measure: key, title, group, digits, which value is best, meaning
COLUMNS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("measures.json").read_text("utf-8")
)


def describe(retriever: Retriever) -> dict[str, Any]:
    """The content of `/info`, as plain JSON values."""
    info = retriever.info
    file = info.image_encoder.file
    came = cached_commit(info.folder.resolve())
    return {
        "pack": {
            "name": info.name,
            "title": info.title,
            "licence": info.licence,
            "credits": info.credits,
            "description": info.description,
            "checksum": info.checksum,
            "from": None if came is None else {"repository": came[0], "commit": came[1]},
            "bytes": sum(file.bytes for file in info.files.values()),
        },
        "device": str(retriever.device),
        "providers": retriever.providers,
        "image_encoder": {
            "dim": info.image_encoder.dim,
            "grid": list(info.image_encoder.grid),
            "size": info.preprocess.size,
            "bytes": 0 if file is None else info.files[file].bytes,
        },
        "methods": {name: describe_method(retriever, name) for name in info.methods},
        "gallery": describe_gallery(retriever),
    }


def describe_method(retriever: Retriever, name: str) -> dict[str, Any]:
    """Describes a method: its source, sizes, metrics and export parity."""
    info = retriever.info
    entry, method = info.methods[name], retriever.methods[name]
    gallery, sure = retriever.gallery(name), entry.calibration_metrics
    views, dim = gallery.shape or (None, None)
    return {
        "title": method.title,
        "paper": method.paper,
        "attention_is": method.attention_is,
        "features_add_up": method.features_add_up,
        "views": views,
        "dim": dim,
        "head_parameters": sum(tensor.numel() for tensor in method.parameters()),
        "head_bytes": info.files[entry.head].bytes,
        "text_encoder_bytes": info.files[entry.text_encoder].bytes,
        "search": {"caveat": gallery.caveat(), "kept_as": gallery.kept_as, "bytes": gallery.bytes},
        "metrics": None if entry.metrics is None else asdict(entry.metrics),
        "parity": {} if entry.parity is None else asdict(entry.parity),
        "calibration": None if sure is None else sure.values,
    }


def describe_gallery(retriever: Retriever) -> dict[str, Any]:
    """Numbers of images and of searchable ones; the files that are left out, and why."""
    index = retriever.index
    return {
        "title": retriever.collection.title,
        "pictures": len(retriever.collection.images),
        "searchable": len(index),
        "captions": len(retriever.collection.captions),
        "state": index.progress.stage,
        "progress": str(index.progress),
        "refused_count": len(index.refused),
        "refused": [asdict(refusal) for refusal in index.refused[:_LISTED]],
        "copies_count": len(index.copies),
        "copies": [asdict(copy) for copy in index.copies[:_LISTED]],
    }


def results(retriever: Retriever) -> dict[str, Any]:
    """Every recorded number of a pack, as plain JSON values.

    Returns:
        `methods` with their values by column, the `columns` that have values, `speed`,
        `curves`, `ablations`, and `problems`, a message for each unreadable file.
    """
    info, problems = retriever.info, list[str]()
    beside = info.folder.parent
    speed = _record(beside / f"{info.folder.name}.speed.json", problems)
    tables = sorted((beside / "ablations" / info.folder.name).glob("*.json"))
    methods = {name: _method(retriever, name, speed) for name in retriever.methods}
    used = {key for method in methods.values() for key in method["values"]}
    return {
        "pack": info.name,
        "checksum": info.checksum,
        "columns": [column for column in COLUMNS if column["key"] in used],
        "methods": methods,
        "speed": speed,
        "curves": [curve for name in info.methods if (curve := _curve(info, name))],
        "ablations": [table for path in tables if (table := _record(path, problems))],
        "problems": problems,
    }


def _record(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Reads a JSON record; returns None and adds to `problems` if it cannot be read."""
    if not path.is_file():
        return None
    try:
        return dict(read_json(path, _MOST))
    except (ValueError, TypeError, OSError) as error:
        # do not show the path to visitors
        problems.append(f"{str(error).replace(str(path), path.name)}; it is not shown")
        return None


def _method(retriever: Retriever, name: str, speed: dict[str, Any] | None) -> dict[str, Any]:
    facts, metrics = describe_method(retriever, name), retriever.info.methods[name].metrics
    values: dict[str, Any] = {} if metrics is None else dict(metrics.values)
    sure = retriever.info.methods[name].calibration_metrics
    for key, value in () if sure is None else sure.values.items():
        values[key] = 100 * value if key.startswith("refused") else value
    values["query_ms"] = (speed or {}).get("median", {}).get(name)
    values["megabytes"] = (facts["head_bytes"] + facts["text_encoder_bytes"]) / 1e6
    values["parameters"] = facts["head_parameters"]
    values["view_numbers"] = facts["views"] and facts["views"] * facts["dim"]
    known = {column["key"] for column in COLUMNS}
    source = None if metrics is None else asdict(metrics)
    return {
        "title": facts["title"],
        "paper": facts["paper"],
        "values": {
            key: value for key, value in values.items() if key in known and value is not None
        },
        "measured": source and {key: source[key] for key in _SOURCE},
    }


def _curve(info: PackInfo, name: str) -> dict[str, Any] | None:
    """Loss and validation rsum by epoch; None without a training log."""
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
    """Pairs (epoch, value) of epochs with a value; epochs count from 1."""
    values = enumerate((float(row.get(key) or "nan") for row in rows), start=1)
    return [(epoch, value) for epoch, value in values if math.isfinite(value)]
