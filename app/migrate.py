"""Copies a gallery to Qdrant: `python -m polyview migrate --gallery DIR --to ADDRESS`.

The command can be stopped and repeated. The id of a point depends on the content of its file, so
that existing points are skipped, and the points of moved files are rewritten.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from polyview.app.api.library import Library
from polyview.app.gallery.images import RefusedFile
from polyview.app.gallery.indexing import Index, ProgressLine
from polyview.app.gallery.qdrant import FORM, Point, Points, check_pack
from polyview.app.gallery.scan import CollectionImage
from polyview.app.settings import DEVICES
from polyview.export.runtime import Runtime

_BATCH = 256  # images that are encoded and written together
_MAX_LISTED = 20  # refused files that are printed


def migrate(runtime: Runtime, index: Index, points: Points) -> tuple[int, int, list[RefusedFile]]:
    """Writes the images of a complete index to a Qdrant collection, except existing ones.

    Returns the number of written images, the number of existing images, and the files left out.
    Raises QdrantError if Qdrant cannot be reached, or the collection belongs to another pack.
    """
    refused, written_count, gallery = list(index.refused), 0, next(iter(index.images.values()))
    for clip in index.clips:
        file = index.clips.image(clip).file
        refused.append(RefusedFile(file, f"{file} is a clip; Qdrant galleries contain only images"))
    still_ids = [i for i in gallery.ids().tolist() if i not in index.clips and i < index.file_count]
    shapes = {name: gallery.shape or (1, 1) for name, gallery in index.images.items()}  # (V, D)
    widths = {name: runtime.methods[name].row_dim(*shape) for name, shape in shapes.items()}
    exists = points.exists()
    if exists and (sample := next(points.payloads(), None)):
        check_pack(points, str(sample[1].get("pack")), runtime)
    for start in range(0, len(still_ids), _BATCH):
        batch = map(index.clips.image, still_ids[start : start + _BATCH])
        images = {_point_id(image, index.encoder.key([image])): image for image in batch}
        old_points = points.fetch([*images]).items() if exists else ()
        files = {point: payload.get("file") for point, (payload, _) in old_points}
        images = {point: image for point, image in images.items() if files.get(point) != image.file}
        if not images:
            continue
        rows = index.encoder.views([[image] for image in images.values()])  # method -> (n, V, D)
        metadata = {"pack": runtime.info.checksum, "shapes": shapes}
        new_points: list[Point] = []
        for i, (point, image) in enumerate(images.items()):
            vectors = {name: views[i].reshape(-1, widths[name]) for name, views in rows.items()}
            texts = {"captions": list(image.captions), "objects": list(image.objects)}
            payload = {"file": image.file, "facts": image.facts, **texts, **metadata}
            new_points.append((point, vectors, payload))
        if not exists:
            points.create(widths)
            exists = True
        points.add(new_points)
        written_count += len(new_points)
    return written_count, len(still_ids) - written_count, refused


def _point_id(image: CollectionImage, digest: bytes) -> str:
    """Returns the id of an image's point; `digest` is the SHA-256 of the file."""
    if image.captions:  # a copy of the file with other captions needs its own point
        digest = hashlib.sha256(digest + image.file.encode()).digest()
    return str(uuid.UUID(bytes=digest[:16]))


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns 0 on success, 1 after an error, and 130 if it was stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m polyview migrate",
        description="Copies a gallery, with its views, to Qdrant.",
    )
    option = parser.add_argument
    option("--gallery", type=Path, help="a folder of images (default: the pack's images)")
    option("--pack", default="scenes", help="a bundled name, folder or Hub id (default: scenes)")
    option("--to", required=True, metavar="ADDRESS", help=FORM)
    option("--device", default="auto", choices=DEVICES, help="auto (default): CUDA if usable")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="polyview: %(message)s")
    source, device = options.gallery, options.device
    try:
        with (
            closing(Points(options.to)) as points,
            Library(options.pack, source, device=device, watch=ProgressLine()) as library,
        ):
            runtime, index = library.retriever.runtime, library.retriever.index
            runtime.require_images()
            written_count, existing_count, refused = migrate(runtime, index, points)
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("polyview: stopped; the same command resumes", file=sys.stderr)
        return 130
    print(
        f"polyview: {written_count:,} images written, {existing_count:,} existed, "
        f"{len(index.copies):,} copies left out, {len(refused):,} files refused"
    )
    for refusal in refused[:_MAX_LISTED]:
        print(f"polyview: {refusal.reason}")
    command = f"python app/main.py --pack {options.pack} --gallery"
    print(f"polyview: {command} '{points.address}?pictures={library.retriever.collection.folder}'")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
