"""Describes a pack, its methods, the device and the gallery; and its recorded results.

Results are the metrics in pack.json, and files in and beside the pack's folder:
    training/METHOD/log.csv               training log, one row for each epoch
    ../NAME.speed.json                    milliseconds of a query, by method, written by
                                          `python -m benchmarks.gallery latency --record`
    ../ablations/NAME/*.json              tables of ablations
"""

import csv
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from polyview.app.search.retriever import Retriever
from polyview.app.settings import PHOTOGRAPHS, SCENES
from polyview.export.hub.client import cached_commit
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import read_json

_LISTED = 1000  # maximum number of files listed
_MOST_BYTES = 2**20  # maximum size of a result file
_SOURCE = ("split", "command", "hardware", "seed")
_SAMPLE = 48  # images compared with the training images of a pack
_UNFAMILIAR = 0.5  # share of unlike images above which a pack does not suit a collection

# for each measure: key, title, group, digits, which value is best, meaning
_COLUMNS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("measures.json").read_text("utf-8")
)


def describe(retriever: Retriever, collection: str = "") -> dict[str, Any]:
    """The content of `/info`, as plain JSON values; `collection` is the key of the images."""
    info, encoder = retriever.info, retriever.info.image_encoder
    origin = cached_commit(info.folder.resolve())
    return {
        "pack": {
            "name": info.name,
            "title": info.title,
            "licence": info.licence,
            "credits": info.credits,
            "description": info.description,
            "checksum": info.checksum,
            "from": origin and {"repository": origin[0], "commit": origin[1]},
            "bytes": sum(file.bytes for file in info.files.values()),
        },
        "device": str(retriever.runtime.device),
        "providers": retriever.runtime.providers,
        "image_encoder": {
            "dim": encoder.dim,
            "grid": list(encoder.grid),
            "size": info.preprocess.size,
            "bytes": info.files[encoder.file].bytes if encoder.file else 0,
        },
        "methods": {name: describe_method(retriever, name) for name in info.methods},
        # the method `first` is searchable while the others are built
        "gallery": describe_gallery(retriever)
        | {"key": collection, "first": retriever.index.first},
        "facts": {
            fact: {value: len(ids) for value, ids in values.items()}
            for fact, values in retriever.collection.facts.items()
        },
    }


def describe_method(retriever: Retriever, name: str) -> dict[str, Any]:
    """Describes a method: its source, sizes, metrics and export parity."""
    info = retriever.info
    entry, method, gallery = info.methods[name], retriever.methods[name], retriever.gallery(name)
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
        "metrics": entry.metrics and asdict(entry.metrics),
        "parity": asdict(entry.parity) if entry.parity else {},
        "calibration": entry.calibration_metrics and entry.calibration_metrics.values,
    }


def describe_gallery(retriever: Retriever) -> dict[str, Any]:
    """The size and progress of a gallery, and the files that are left out, with reasons."""
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
    """Every recorded number of a pack, and in `problems` a message for each unreadable file."""
    info, problems = retriever.info, list[str]()

    def record(path: Path) -> dict[str, Any] | None:
        try:
            return dict(read_json(path, _MOST_BYTES)) if path.is_file() else None
        except (ValueError, TypeError, OSError) as error:  # do not show the path to visitors
            problems.append(f"{str(error).replace(str(path), path.name)}; it is not shown")
            return None

    parent, name = info.folder.parent, info.folder.name
    speed = record(parent / f"{name}.speed.json")
    methods = {key: _method(retriever, key, speed or {}) for key in retriever.methods}
    used_keys = set().union(*(method["values"] for method in methods.values()))
    tables = map(record, sorted((parent / "ablations" / name).glob("*.json")))
    return {
        "pack": info.name,
        "checksum": info.checksum,
        "columns": [column for column in _COLUMNS if column["key"] in used_keys],
        "methods": methods,
        "speed": speed,
        "curves": [curve for key in info.methods if (curve := _curve(info, key))],
        "ablations": [table for table in tables if table],
        "problems": problems,
    }


def _method(retriever: Retriever, name: str, speed: dict[str, Any]) -> dict[str, Any]:
    """The title, paper and metrics source of a method, and its values by column."""
    facts = describe_method(retriever, name)
    metrics = facts["metrics"] or {}
    calibration = facts["calibration"] or {}
    values: dict[str, Any] = {
        **metrics.get("values", {}),
        **{k: 100 * v if k.startswith("refused") else v for k, v in calibration.items()},
        "query_ms": speed.get("median", {}).get(name),
        "megabytes": (facts["head_bytes"] + facts["text_encoder_bytes"]) / 1e6,
        "parameters": facts["head_parameters"],
        "view_numbers": facts["views"] and facts["views"] * facts["dim"],
    }
    keys = [column["key"] for column in _COLUMNS if values.get(column["key"]) is not None]
    return {
        "title": facts["title"],
        "paper": facts["paper"],
        "values": {key: values[key] for key in keys},
        "measured": {key: metrics[key] for key in _SOURCE} if metrics else None,
    }


def _curve(info: PackInfo, name: str) -> dict[str, Any] | None:
    """Training loss and validation rsum as pairs (epoch, value); None without a readable log."""
    path = info.folder / "training" / name / "log.csv"
    series: dict[str, list[tuple[int, float]]] = {"loss": [], "rsum": [], "seconds": []}
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # a FIFO would block
            return None
        rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
        for key, points in series.items():
            values = enumerate((float(row.get(key) or "nan") for row in rows), start=1)
            points += [(epoch, value) for epoch, value in values if math.isfinite(value)]
    except (ValueError, OSError, csv.Error):
        return None
    minutes = sum(value for _, value in series.pop("seconds")) / 60
    if not all(series.values()):
        return None
    return {"name": name, "epochs": len(rows), "minutes": minutes, **series}


@dataclass(frozen=True)
class Mismatch:
    """A message for people, and the bundled pack that suits better."""

    sentence: str
    better: str


def mismatch(retriever: Retriever) -> Mismatch | None:
    """Why a pack does not suit a collection; None if no reason is known.

    A few images are compared with the pack's training images (`export.pack.calibration`). The
    domain of the pack for photographs includes rendered scenes: they have a ground truth.
    """
    info, index, domain = retriever.info, retriever.index, retriever.info.domain
    if retriever.collection.comes_with(info.folder):
        return None
    if info.name == PHOTOGRAPHS:
        sentence = "This pack was trained on photographs; these images are drawn scenes."
        return Mismatch(sentence, SCENES) if retriever.collection.relevant else None
    names = [name for name, method in info.methods.items() if method.image_encoder is None]
    ids = retriever.gallery(index.first).ids()
    if domain is None or not names or (len(ids) < _SAMPLE and not index.first_done.is_set()):
        return None
    sample = ids[:: max(1, len(ids) // _SAMPLE)][:_SAMPLE].tolist()
    features = [*index.features(sample, names[0], cached_only=True).values()]
    if not features:
        return None
    distances = domain.distances(torch.stack(features).numpy())
    if (distances > domain.limit).mean() <= _UNFAMILIAR:
        return None
    content = "drawn scenes of emoji" if info.name == SCENES else "images unlike these"
    sentence = f"{info.title} was trained on {content}; its results here are unreliable."
    return Mismatch(sentence, PHOTOGRAPHS)
