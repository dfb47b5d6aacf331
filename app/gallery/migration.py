"""Writes the images of a collection to Qdrant; see `app/gallery/qdrant.py` for the points."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from polyview.app.gallery.encode import Encoder, Row
from polyview.app.gallery.images import Refusal
from polyview.app.gallery.qdrant import NUMBERS, PACK, Points, api, check_pack
from polyview.app.gallery.scan import Collection, CollectionImage
from polyview.export.runtime import Runtime

Made = Mapping[str, tuple[list[int], torch.Tensor]]  # ids and views (n, V, D) by method


@dataclass
class Report:
    """Counts of a migration: images written, images that existed, files left out."""

    written: int = 0
    present: int = 0
    moved: int = 0
    copies: int = 0
    refused: list[Refusal] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.written:,} images written, {self.present:,} were there ({self.moved:,} moved), "
            f"{self.copies:,} copies left out, {len(self.refused):,} files refused"
        )


def migrate(
    runtime: Runtime,
    collection: Collection,
    points: Points,
    cache: Path,
    progress: Callable[[int, int], None],
    half: bool = False,
    graph: bool = False,
) -> Report:
    """Writes the images that Qdrant lacks; may be stopped and repeated.

    Args:
        runtime: the pack that computes the views.
        collection: the images.
        points: the target collection.
        cache: the user's cache folder.
        progress: called with the numbers of images done and in total.
        half: store float16 in a new collection: half the memory; scores change by less than 0.001.
        graph: build an HNSW graph in a new collection, for approximate search.

    Raises:
        QdrantError: Qdrant cannot be reached, or the collection is another pack's.
    """
    encoder, report = Encoder(runtime, collection, cache), Report(refused=list(collection.left_out))
    exists, seen, done = points.vectors() is not None, set[str](), 0
    for _, about in islice(points.payloads() if exists else (), 1):
        check_pack(points.address, about, runtime)
    for chunk in encoder.read(collection.images, threading.Event()):
        report.refused += chunk.refused
        sentence = "is a clip, which Qdrant does not hold; search it from its folder"
        for image in (image for image in chunk.images if image.image_id in chunk.clips):
            report.refused.append(Refusal(image.file, f"{image.file} {sentence}"))
        rows: dict[str, Row] = {}
        for row in (row for row in chunk.rows if row.frames[0].moment is None):
            report.copies += _point(row) in seen
            if _point(row) not in seen:
                rows[_point(row)] = row
                seen.add(_point(row))
        for point, (about, _) in (points.fetch(list(rows)) if exists and rows else {}).items():
            check_pack(points.address, about, runtime)
            report.present += 1
            place = _place(rows.pop(point).frames[0])
            if any(about.get(key) != value for key, value in place.items()):
                points.move(point, place)
                report.moved += 1
        views = encoder.views(list(rows.values()), list(runtime.methods))
        if views and not exists:
            points.create(_widths(runtime, views), half, graph)
            exists = True
        new = list(_points(runtime, rows, views)) if views else []
        step = max(1, NUMBERS // max(1, sum(made[0].numel() for _, made in views.values())))
        for start in range(0, len(new), step):
            points.add(new[start : start + step])
        report.written += len(new)
        done += len(chunk.images)
        progress(done, len(collection.images))
    encoder.store.close()
    return report


def _widths(runtime: Runtime, views: Made) -> dict[str, int]:
    """The dimensions of a row for each method."""
    return {name: runtime.methods[name].row_dim(*v.shape[1:]) for name, (_, v) in views.items()}


def _points(runtime: Runtime, rows: Mapping[str, Row], views: Made) -> Iterator[api.PointStruct]:
    """The points of images."""
    shapes = {name: list(made.shape[1:]) for name, (_, made) in views.items()}
    widths = _widths(runtime, views)
    for i, (point, row) in enumerate(rows.items()):
        image, vector = row.frames[0], dict[str, Any]()
        for name, (_, made) in views.items():
            vector[name] = made[i].reshape(-1, widths[name]).tolist()
        known = {"captions": list(image.captions), "objects": list(image.objects)}
        about = {"sha256": row.digest.hex(), PACK: runtime.info.checksum, "shapes": shapes}
        yield api.PointStruct(id=point, vector=vector, payload={**_place(image), **known, **about})


def _point(row: Row) -> str:
    """The id of an image's point; the same image always has the same id."""
    image, digest = row.frames[0], row.digest
    if image.captions:
        digest = hashlib.sha256(digest + image.file.encode()).digest()
    return str(uuid.UUID(bytes=digest[:16]))


def _place(image: CollectionImage) -> dict[str, object]:
    """The part of the payload that depends on the location of the image's file."""
    return {"file": image.file, "facts": image.facts}
