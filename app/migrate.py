"""Moves a gallery to Qdrant.

`python -m polyview migrate --gallery DIR --pack PACK --to qdrant://host:port/collection`

Views come from the cache if the gallery was indexed on this machine; other images are encoded. A
point's id depends on the image's contents, so the command can be stopped and repeated at any time:
existing points are skipped, and for a moved file only the path is updated.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from polyview.app.gallery.address import FORM, Address
from polyview.app.gallery.encode import Encoder, Reading, Row
from polyview.app.gallery.images import Refusal
from polyview.app.gallery.indexing import Progress, ProgressBar
from polyview.app.gallery.scan import Collection, CollectionImage, from_folder, from_pack
from polyview.app.gallery.store import cache_folder
from polyview.app.packs.presets import pack_folder
from polyview.app.settings import DEVICES
from polyview.export.runtime import Runtime

if TYPE_CHECKING:  # needs an optional package
    from polyview.app.gallery.qdrant import Point, Points

_SHOWN = 20  # refused files listed


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
    if exists:
        for _, payload in islice(points.payloads(), 1):
            points.check_pack(payload, runtime)
    for chunk in encoder.read(collection.images, threading.Event()):
        rows = _rows(encoder, chunk, seen, report)
        for point, (payload, _) in (points.fetch(list(rows)) if exists and rows else {}).items():
            report.present += 1
            place = _place(rows.pop(point).frames[0])
            if any(payload.get(key) != value for key, value in place.items()):
                points.move(point, place)
                report.moved += 1
        new = list(_points(encoder, runtime, rows))
        if new and not exists:
            points.create({name: row.shape[1] for name, row in new[0][1].items()}, half, graph)
            exists = True
        points.add(new)
        report.written += len(new)
        done += len(chunk)
        progress(done, len(collection.images))
    encoder.store.close()
    return report


def _rows(
    encoder: Encoder, chunk: Sequence[Reading], seen: set[str], report: Report
) -> dict[str, Row]:
    """The images of a chunk by point, without copies of `seen` ones, clips and refused files."""
    rows: dict[str, Row] = {}
    for reading in chunk:
        file, refusal = reading.image.file, reading.refusal
        if reading.moments:
            refusal = f"{file} is a clip, which Qdrant does not hold; search it from its folder"
        if refusal:
            report.refused.append(Refusal(file, refusal))
            continue
        image, digest = reading.image, reading.digest
        if image.captions:  # which mean this image alone
            digest = hashlib.sha256(digest + image.file.encode()).digest()
        point = str(uuid.UUID(bytes=digest[:16]))
        if point in seen:
            report.copies += 1
        else:
            [rows[point]] = encoder.rows(reading)
            seen.add(point)
    return rows


def _points(encoder: Encoder, runtime: Runtime, rows: Mapping[str, Row]) -> Iterator[Point]:
    """The points of images."""
    made = encoder.views(list(rows.values()), list(runtime.methods))
    shapes = {name: list(views.shape[1:]) for name, views in made.items()}  # (V, D)
    for i, (point, row) in enumerate(rows.items()):
        image, vectors = row.frames[0], {}
        for name, views in made.items():
            vectors[name] = views[i].reshape(-1, runtime.methods[name].row_dim(*shapes[name]))
        known = {"captions": list(image.captions), "objects": list(image.objects)}
        payload = {"sha256": row.digest.hex(), "pack": runtime.info.checksum, "shapes": shapes}
        yield point, vectors, {**_place(image), **known, **payload}


def _place(image: CollectionImage) -> dict[str, object]:
    """The part of the payload that depends on the location of the image's file."""
    return {"file": image.file, "facts": image.facts}


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Returns:
        0 if everything is in Qdrant, 1 if not, 130 if it was stopped; the reason is printed.
    """
    logging.basicConfig(level=logging.WARNING, format="polyview: %(message)s")
    options = _parser().parse_args(argv)
    try:
        return _migrate(options)
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("polyview: stopped; the same command resumes", file=sys.stderr)
        return 130


def _migrate(options: argparse.Namespace) -> int:
    address = Address.parse(options.to)
    from polyview.app.gallery.qdrant import Points  # needs an optional package

    points = Points(address)  # before the pack is loaded, which takes seconds
    try:
        cache = cache_folder()
        folder = pack_folder(options.pack, cache)
        runtime = Runtime.load(folder, options.device)
        runtime.require_images()
        if options.gallery is None:
            collection = from_pack(folder)
        else:
            collection = from_folder(options.gallery, options.follow_links)
        bar, place = ProgressBar(), collection.folder

        def watch(done: int, total: int) -> None:
            bar(Progress("pictures", done, total))

        report = migrate(runtime, collection, points, cache, watch, options.half, options.graph)
        bar(Progress("ready", total=report.written + report.present))
    finally:
        points.close()
    print(f"polyview: {report}")
    for refused in report.refused[:_SHOWN]:
        print(f"polyview: {refused.reason}")
    if len(report.refused) > _SHOWN:
        print(f"polyview: and {len(report.refused) - _SHOWN} more")
    print(
        f"polyview: python app/main.py --pack {options.pack} --gallery '{address}?pictures={place}'"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m polyview migrate", description="Moves a gallery, with its views, to Qdrant."
    )
    option = parser.add_argument
    option("--gallery", type=Path, help="a folder of images (default: those of the pack)")
    option("--pack", default="scenes", help="a bundled name, a pack's folder, or a Hub id")
    option("--follow-links", action="store_true", help="links in the folder may lead out of it")
    option("--to", required=True, metavar="ADDRESS", help=FORM)
    option("--device", default="auto", choices=DEVICES)
    option = parser.add_argument_group("options of a new collection").add_argument
    option("--half", action="store_true", help="keep float16: half the memory")
    option("--graph", action="store_true", help="build an HNSW graph, for ?search=approximate")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
