"""Describes a pack, its methods, its gallery and its recorded results.

Results are the metrics in pack.json, and these files, relative to the pack's folder:

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

_MAX_LISTED = 1000  # maximum number of files listed
_MAX_BYTES = 2**20  # maximum size of a result file
_SOURCE_FIELDS = ("split", "command", "hardware", "seed")  # how metrics were measured
_SAMPLE_SIZE = 48  # images compared with the domain of a pack
_MAX_UNLIKE_SHARE = 0.5  # share of unlike images above which a pack does not suit a collection
_COLUMNS_FILE = Path(__file__).with_name("measures.json")
# for each measure: key, title, group, decimal digits, best value (highest, lowest), meaning
_COLUMNS: list[dict[str, Any]] = json.loads(_COLUMNS_FILE.read_text("utf-8"))


def describe(retriever: Retriever, collection: str = "") -> dict[str, Any]:
    """Returns the fields of `answers.Info`; `collection` is the collection's key."""
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
        "gallery": describe_gallery(retriever) | {"key": collection},
        "facts": {
            fact: {value: len(ids) for value, ids in values.items()}
            for fact, values in retriever.collection.facts.items()
        },
    }


def describe_method(retriever: Retriever, name: str) -> dict[str, Any]:
    """Returns paper, sizes and metrics of a method, and how much its export differs from torch."""
    info, gallery = retriever.info, retriever.index.images[name]
    entry, method = info.methods[name], retriever.methods[name]
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
        "search": {"caveat": gallery.caveat(), "kept_as": gallery.storage, "bytes": gallery.bytes},
        "metrics": entry.metrics and asdict(entry.metrics),
        "parity": asdict(entry.parity) if entry.parity else {},
        "calibration": entry.calibration_metrics and entry.calibration_metrics.values,
    }


def describe_gallery(retriever: Retriever) -> dict[str, Any]:
    """Returns the size and progress of a gallery, and the files left out, with reasons."""
    index = retriever.index
    return {
        "title": retriever.collection.title,
        "pictures": len(retriever.collection.images),
        "searchable": len(index),
        "captions": len(retriever.collection.captions),
        "state": index.progress.stage,
        "progress": str(index.progress),
        "refused_count": len(index.refused),
        "refused": [asdict(refusal) for refusal in index.refused[:_MAX_LISTED]],
        "copies_count": len(index.copies),
        "copies": [asdict(copy) for copy in index.copies[:_MAX_LISTED]],
    }


def results(retriever: Retriever) -> dict[str, Any]:
    """Returns all recorded results of a pack; `problems` has a message for each unreadable file."""
    info, problems = retriever.info, list[str]()

    def read(path: Path) -> dict[str, Any] | None:  # None if the file is missing or unreadable
        try:
            return dict(read_json(path, _MAX_BYTES)) if path.is_file() else None
        except (ValueError, TypeError, OSError) as error:
            message = str(error).replace(str(path), path.name)  # hides the path from visitors
            problems.append(f"{message}; it is not shown")
            return None

    parent, name = info.folder.parent, info.folder.name
    speed = read(parent / f"{name}.speed.json")
    methods = {key: _method_results(retriever, key, speed or {}) for key in retriever.methods}
    used_keys = set().union(*(method["values"] for method in methods.values()))
    tables = map(read, sorted((parent / "ablations" / name).glob("*.json")))
    return {
        "pack": info.name,
        "checksum": info.checksum,
        "columns": [column for column in _COLUMNS if column["key"] in used_keys],
        "methods": methods,
        "speed": speed,
        "curves": [curve for key in info.methods if (curve := _training_curve(info, key))],
        "ablations": [table for table in tables if table],
        "problems": problems,
    }


def _method_results(retriever: Retriever, name: str, speed: dict[str, Any]) -> dict[str, Any]:
    """Returns title and paper of a method, its values by column, and how they were measured."""
    fields = describe_method(retriever, name)
    metrics = fields["metrics"] or {}
    calibration = fields["calibration"] or {}
    values: dict[str, Any] = {
        **metrics.get("values", {}),
        **{k: 100 * v if k.startswith("refused") else v for k, v in calibration.items()},  # in %
        "query_ms": speed.get("median", {}).get(name),
        "megabytes": (fields["head_bytes"] + fields["text_encoder_bytes"]) / 1e6,
        "parameters": fields["head_parameters"],
        "view_numbers": fields["views"] and fields["views"] * fields["dim"],
    }
    keys = [column["key"] for column in _COLUMNS if values.get(column["key"]) is not None]
    return {
        "title": fields["title"],
        "paper": fields["paper"],
        "values": {key: values[key] for key in keys},
        "measured": {key: metrics[key] for key in _SOURCE_FIELDS} if metrics else None,
    }


def _training_curve(info: PackInfo, name: str) -> dict[str, Any] | None:
    """Reads loss and validation rsum as pairs (epoch, value); returns None without a usable log."""
    path = info.folder / "training" / name / "log.csv"
    series: dict[str, list[tuple[int, float]]] = {"loss": [], "rsum": [], "seconds": []}
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:  # reading a FIFO would block
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
    """The reason why a pack does not suit a collection, and a bundled pack that does."""

    sentence: str  # the reason, shown to users
    better: str  # the name of the bundled pack


def mismatch(retriever: Retriever) -> Mismatch | None:
    """Returns the reason why a pack does not suit a collection; None if no reason is known.

    Compares a few images with the pack's `Domain` (`export/pack/calibration.py`). The domain of the
    pack for photographs includes rendered scenes, so these are recognised by their ground truth.
    """
    info, index, domain = retriever.info, retriever.index, retriever.info.domain
    if retriever.collection.comes_with(info.folder):
        return None
    if info.name == PHOTOGRAPHS:
        sentence = "This pack was trained on photographs; these images are drawn scenes."
        return Mismatch(sentence, SCENES) if retriever.collection.relevance else None
    # the domain describes features of the pack's image encoder, not of a method's own encoder
    names = [name for name, method in info.methods.items() if method.image_encoder is None]
    if domain is None or not names:
        return None
    ids = retriever.index.images[names[0]].ids()
    if len(ids) < _SAMPLE_SIZE and not index.images_done.is_set():
        return None
    sample = ids[:: max(1, len(ids) // _SAMPLE_SIZE)][:_SAMPLE_SIZE].tolist()
    features = [*index.features(sample, names[0], cached_only=True).values()]
    if not features:
        return None
    distances = domain.distances(torch.stack(features).numpy())
    if (distances > domain.limit).mean() <= _MAX_UNLIKE_SHARE:
        return None
    text = "trained on drawn scenes" if info.name == SCENES else "calibrated on images unlike these"
    return Mismatch(f"{info.title} was {text}; its results here are unreliable.", PHOTOGRAPHS)
