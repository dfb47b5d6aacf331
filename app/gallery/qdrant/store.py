"""A collection in Qdrant as the app sees it: pictures, and a gallery for each method."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from app.gallery.collection import Collection
from app.gallery.qdrant.address import Address
from app.gallery.qdrant.gallery import Contents, QdrantGallery
from app.gallery.qdrant.points import SHAPES, DistantImage, image_of
from app.gallery.qdrant.roots import known_roots
from app.gallery.qdrant.server import QdrantError, Server, api
from export.runtime import Runtime

_MOST_VIEWS, _WIDEST = 256, 65_536  # as of a pack
CAPTIONS_UP_TO = 20_000  # of all pictures; more are not searched, for they are encoded here

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QdrantCollection(Collection):
    """The pictures of a collection in Qdrant, in the order of their files' names."""

    @cached_property
    def captions(self) -> tuple[tuple[str, int], ...]:
        """See `Collection.captions`; none where there are too many to encode here."""
        count = sum(len(shown.captions) for shown in self.images)
        if count <= CAPTIONS_UP_TO:
            return tuple((text, p.image_id) for p in self.images for text in p.captions)
        _log.warning("%d captions are too many to search; pictures find none", count)
        return ()


@dataclass(frozen=True)
class QdrantStore:
    """One collection: its images, its points, and its named vectors."""

    collection: QdrantCollection
    server: Server
    contents: Contents
    vectors: Mapping[str, api.VectorParams]

    def galleries(self, runtime: Runtime) -> dict[str, QdrantGallery]:
        """The images' gallery of each method of a pack.

        Raises:
            ValueError: the views that lie there are not the pack's.
        """
        checksum = runtime.info.checksum
        self.server.check_pack(checksum)
        shapes = self._shapes()
        galleries = {}
        for name, method in runtime.methods.items():
            if name not in self.vectors or name not in shapes:
                raise QdrantError(
                    f"the collection {self.server.address.name} has no views of the method {name}; "
                    "migrate the pictures with this pack to another collection"
                )
            width = method.row_dim(*shapes[name])
            if self.vectors[name].size != width:
                raise QdrantError(
                    f"the rows of {name} in {self.server.address.name} have "
                    f"{self.vectors[name].size} dimensions, not {width}; migrate the pictures anew"
                )
            galleries[name] = QdrantGallery(
                self.server,
                self.contents,
                name,
                method,
                shapes[name],
                checksum,
                self.vectors[name].datatype == api.Datatype.FLOAT16,
                self._graph(name),
                runtime.device,
            )
        return galleries

    def _graph(self, name: str) -> bool:
        """Whether searches go by an HNSW graph: it is asked for, and there is one."""
        params = self.vectors.get(name)
        config = params.hnsw_config if params else None
        return self.server.address.search == "approximate" and (not config or config.m != 0)

    def _shapes(self) -> dict[str, tuple[int, int]]:
        """(V, D) of each method's views, as the first point says."""
        read = self.server.read(self.contents.ids[:1], [SHAPES])
        fields = next(iter(read.values()), ({}, None))[0].get(SHAPES, {})
        try:
            shapes = {name: (int(views), int(dim)) for name, (views, dim) in fields.items()}
            if all(0 < v <= _MOST_VIEWS and 0 < d <= _WIDEST for v, d in shapes.values()):
                return shapes
            raise ValueError("no method makes such views")
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise QdrantError(f"the payload in {self.server.address.name} is damaged") from error


def open_store(address: Address, cache: Path) -> QdrantStore:
    """Reads what is known of the pictures of a collection, without their views.

    Args:
        address: of the collection.
        cache: the user's cache folder, where a migration from this machine is noted.

    Raises:
        QdrantError: Qdrant cannot be reached, or has no such collection, or nothing is in it.
        ValueError: what is in it was not written by `app.migrate`.
    """
    server = Server.connect(address)
    try:
        return read_store(server, known_roots(cache, address))
    except ValueError:
        server.close()
        raise


def read_store(server: Server, roots: Sequence[str] = ()) -> QdrantStore:
    """See `open_store`, and `points.picture` for the roots."""
    address = server.address
    vectors = server.vectors()
    if vectors is None:
        raise QdrantError(f"there is no collection {address}; fill it with python -m app.migrate")
    found: list[tuple[str, DistantImage]] = []
    for i, (point, known) in enumerate(server.payloads()):
        try:
            found.append((point, image_of(i, known, address.pictures, roots)))
        except ValueError as error:
            raise QdrantError(
                f"the collection {address} was not written by python -m app.migrate: {error}"
            ) from error
    if not found:
        raise QdrantError(f"the collection {address} is empty; fill it with python -m app.migrate")
    found.sort(key=lambda pair: (pair[1].file, pair[1].path))
    images = tuple(replace(shown, image_id=i) for i, (_, shown) in enumerate(found))
    collection = QdrantCollection(address.name, Path(str(address)), images)
    return QdrantStore(collection, server, Contents([point for point, _ in found]), vectors)
