"""Describes the pack, its methods, the device in use and the gallery."""

from dataclasses import asdict
from typing import Any

from polyview.app.search.retriever import Retriever
from polyview.export.hub.client import cached_commit

_MOST = 1000  # files listed


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
        "refused": [asdict(refusal) for refusal in index.refused[:_MOST]],
        "copies_count": len(index.copies),
        "copies": [asdict(copy) for copy in index.copies[:_MOST]],
    }
