"""Writes a collection's pictures, with the views of every method, into Qdrant."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from app.gallery.clips import is_clip
from app.gallery.collection import Collection, CollectionImage
from app.gallery.encoder import Encoder
from app.gallery.encoding_steps import Encoded
from app.gallery.image_files import Contents, ImageError, NotNowError, Refusal, refusal
from app.gallery.indexing import IMAGES_AT_ONCE
from app.gallery.qdrant.points import FILE, ROOT, payload, place, point_id
from app.gallery.qdrant.roots import note_root
from app.gallery.qdrant.server import PACK, Creation, QdrantError, Server, api, foreign
from export.runtime import Runtime

_NUMBERS = 1 << 19  # of one request, which as JSON take up to 10 MB; a server takes 32
_SAMPLE = 32  # pictures whose views are read back at the end
_CLOSE = {False: 1e-6, True: 2e-3}  # float32, float16: by what a number may differ


@dataclass
class Report:
    """What came of a migration.

    Attributes:
        written: pictures that were not there before.
        there: pictures that were, with their views.
        moved: those of them whose files lie elsewhere now.
        copies: files that are the same as another one, and not written.
        refused: files that cannot be used, and why.
        compared: pictures whose views were read back and compared.
    """

    written: int = 0
    there: int = 0
    moved: int = 0
    copies: int = 0
    refused: list[Refusal] = field(default_factory=list)
    compared: int = 0

    def __str__(self) -> str:
        return (
            f"{self.written:,} pictures written, {self.there:,} were there ({self.moved:,} moved), "
            f"{self.copies:,} copies left out, {len(self.refused):,} files refused; "
            f"the views of {self.compared:,} pictures compared"
        )


class Migration:
    """One run of `python -m app.migrate`; see there.

    Args:
        runtime: the pack that makes the views.
        collection: the pictures.
        server: where they go.
        cache: the user's cache folder.
        how: how the collection is made, where there is none yet.

    Raises:
        QdrantError: by `run`, where Qdrant cannot be reached, or the collection is another pack's.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        server: Server,
        cache: Path,
        how: Creation | None = None,
    ) -> None:
        self._runtime = runtime
        self._collection = collection
        self._server = server
        self._cache = cache
        self._encoder = Encoder(runtime, collection, cache)
        self._how = how or Creation()
        self._made = False  # whether the collection is there and fits
        self._report = Report(refused=list(collection.left_out))
        self._ids: dict[str, CollectionImage] = {}

    def run(self, progress: Callable[[int, int], None]) -> Report:
        """Writes what is not there, and checks the whole.

        Args:
            progress: called with how many pictures are done, and of how many.
        """
        note_root(self._cache, self._server.address, self._collection.folder)
        if self._server.vectors() is not None:
            self._made = True
            self._server.check_pack(self._runtime.info.checksum)
        try:
            for encoded in self._encoder.encode_each(self._missing(progress)):
                self._write(encoded)
                self._tell(progress)
            self._check()
        finally:
            self._encoder.close()
        return self._report

    def _tell(self, progress: Callable[[int, int], None]) -> None:
        report = self._report
        done = report.written + report.there + report.copies + len(report.refused)
        progress(done, len(self._collection.images))

    def _missing(self, progress: Callable[[int, int], None]) -> Iterator[list[CollectionImage]]:
        """The pictures that Qdrant lacks, some at a time."""
        images = self._collection.images
        for start in range(0, len(images), IMAGES_AT_ONCE):
            part = self._identified(images[start : start + IMAGES_AT_ONCE])
            known = self._server.read(list(part), [PACK, FILE, ROOT]) if self._made else {}
            for point, (fields, _) in known.items():
                self._keep(point, part[point], fields)
            if missing := [shown for point, shown in part.items() if point not in known]:
                yield missing
            self._tell(progress)

    def _identified(self, images: Sequence[CollectionImage]) -> dict[str, CollectionImage]:
        """Pictures by the ids of their points, without those that were seen before."""
        found = {}
        for shown in images:
            try:
                with shown.open() as file:
                    if shown.may_be_clip and is_clip(file, shown.file):
                        raise NotNowError(
                            f"{shown.file} is a clip, which Qdrant does not hold; search it from "
                            "its folder"
                        )
                    file.seek(0)
                    point = point_id(shown, Contents.of(file).digest)
            except (OSError, ImageError) as error:
                self._report.refused.append(refusal(shown.file, error))
                continue
            if point in self._ids:
                self._report.copies += 1
            else:
                self._ids[point] = found[point] = shown
        return found

    def _keep(self, point: str, shown: CollectionImage, fields: dict) -> None:
        """Leaves a point as it is, but for the place of its file."""
        checksum = self._runtime.info.checksum
        if fields.get(PACK) != checksum:
            raise foreign(self._server.address.name, fields.get(PACK), checksum)
        self._report.there += 1
        now = place(shown, self._collection.folder)
        if any(fields.get(name) != value for name, value in now.items()):
            self._server.rewrite(point, now)
            self._report.moved += 1

    def _write(self, encoded: Encoded) -> None:
        self._report.refused.extend(encoded.refused)
        for refused in encoded.refused:
            self._ids = {i: shown for i, shown in self._ids.items() if shown.file != refused.file}
        if not encoded.images:
            return
        rows = {name: views.embeddings.numpy() for name, views in encoded.views.items()}
        shapes = {name: (part.shape[1], part.shape[2]) for name, part in rows.items()}
        methods = self._runtime.methods
        widths = {name: methods[name].row_dim(*shape) for name, shape in shapes.items()}
        if not self._made:
            self._server.create(widths, self._how)
            self._made = True
        points = []
        for i, (shown, digest) in enumerate(zip(encoded.images, encoded.keys, strict=True)):
            point = point_id(shown, digest)
            self._ids.setdefault(point, shown)  # where the file has changed since it was looked at
            vectors = {name: rows[name][i].reshape(-1, widths[name]).tolist() for name in rows}
            known = payload(
                shown, self._collection.folder, digest, self._runtime.info.checksum, shapes
            )
            points.append(api.PointStruct(id=point, vector=vectors, payload=known))
        step = max(1, _NUMBERS // sum(views * dim for views, dim in shapes.values()))
        for start in range(0, len(points), step):
            self._server.write(points[start : start + step])
            self._report.written += len(points[start : start + step])

    def _check(self) -> None:
        """Counts the points, and compares the views of some.

        Raises:
            QdrantError: something is not there, or other than it was written.
        """
        ids = list(self._ids)
        found = 0
        for start in range(0, len(ids), IMAGES_AT_ONCE):
            found += len(self._server.read(ids[start : start + IMAGES_AT_ONCE], [PACK]))
        if found != len(ids):
            raise QdrantError(
                f"{len(ids):,} pictures should be in {self._server.address}, and {found:,} are; "
                "run the command again"
            )
        sample = ids[:: max(1, len(ids) // _SAMPLE)][:_SAMPLE]
        if sample:
            self._compare(sample)

    def _compare(self, sample: Sequence[str]) -> None:
        encoded = self._encoder.encode_images([self._ids[point] for point in sample])
        params = self._server.vectors() or {}
        points = [
            point_id(shown, digest)
            for shown, digest in zip(encoded.images, encoded.keys, strict=True)
        ]
        for name, views in encoded.views.items():
            half = params[name].datatype == api.Datatype.FLOAT16
            there = self._server.read(points, [], name)
            for point, rows in zip(points, views.embeddings.numpy(), strict=True):
                held = there[point][1] if point in there else np.empty(0)
                same = held.size == rows.size
                if not same or np.abs(held.reshape(rows.shape) - rows).max() > _CLOSE[half]:
                    raise QdrantError(
                        f"the views of {self._ids[point].file} by {name} in "
                        f"{self._server.address} are not those of this pack; delete the "
                        "collection and run the command again"
                    )
        self._report.compared = len(points)
