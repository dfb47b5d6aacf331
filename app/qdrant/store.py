"""A collection in Qdrant as the app sees it: pictures, and a gallery for each method."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from app.collection import Collection
from app.qdrant.address import Address
from app.qdrant.gallery import Contents, QdrantGallery
from app.qdrant.points import SHAPES, DistantPicture, picture
from app.qdrant.server import QdrantError, Server, api
from export.runtime import Runtime

CAPTIONS_UP_TO = 20_000  # of all pictures; more are not searched, for they are encoded here

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QdrantStore:
    """A `Store` over one collection: its points, and its named vectors."""

    server: Server
    contents: Contents
    vectors: Mapping[str, api.VectorParams]

    def galleries(self, runtime: Runtime) -> dict[str, QdrantGallery]:
        """See `Store`."""
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
            return {name: (int(views), int(dim)) for name, (views, dim) in fields.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise QdrantError(f"the payload in {self.server.address.name} is damaged") from error


@dataclass(frozen=True)
class QdrantCollection(Collection):
    """The pictures of a collection in Qdrant, in the order of their files' names."""

    @cached_property
    def captions(self) -> tuple[tuple[str, int], ...]:
        """See `Collection.captions`; none where there are too many to encode here."""
        count = sum(len(shown.captions) for shown in self.pictures)
        if count <= CAPTIONS_UP_TO:
            return tuple((text, p.image_id) for p in self.pictures for text in p.captions)
        _log.warning("%d captions are too many to search; pictures find none", count)
        return ()


def open_collection(address: Address) -> QdrantCollection:
    """Reads what is known of the pictures of a collection, without their views.

    Raises:
        QdrantError: Qdrant cannot be reached, or has no such collection, or nothing is in it.
        ValueError: what is in it was not written by `app.migrate`.
    """
    server = Server.connect(address)
    try:
        return read_collection(server)
    except ValueError:
        server.close()
        raise


def read_collection(server: Server) -> QdrantCollection:
    """See `open_collection`."""
    address = server.address
    vectors = server.vectors()
    if vectors is None:
        raise QdrantError(f"there is no collection {address}; fill it with python -m app.migrate")
    found: list[tuple[str, DistantPicture]] = []
    for i, (point, known) in enumerate(server.payloads()):
        try:
            found.append((point, picture(i, known, address.pictures)))
        except ValueError as error:
            raise QdrantError(
                f"the collection {address} was not written by python -m app.migrate: {error}"
            ) from error
    if not found:
        raise QdrantError(f"the collection {address} is empty; fill it with python -m app.migrate")
    found.sort(key=lambda pair: (pair[1].file, pair[1].path))
    pictures = tuple(replace(shown, image_id=i) for i, (_, shown) in enumerate(found))
    store = QdrantStore(server, Contents([point for point, _ in found]), vectors)
    return QdrantCollection(address.name, Path(str(address)), pictures, store)
