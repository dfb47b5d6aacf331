"""A gallery in Qdrant: one point for each image.

    id        the first half of the SHA-256 of the image's file, as a UUID; of an image with
              captions, which mean it alone, that of the file's SHA-256 and its name
    vectors   one for each method, named after it: R rows of E dimensions, compared by MaxSim: the
              sum over the rows of the query of the largest inner product with a row of the point
    payload   file, captions, objects, facts, the pack's checksum, shapes of views

The rows are the V views of D dimensions, cut by `Method.row_dim`, so that MaxSim equals the
method's score if possible.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from polyview.app.gallery.address import Address
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import SUFFIXES, Collection, CollectionImage
from polyview.export.runtime import Runtime
from polyview.models import Method, Views

try:
    from qdrant_client import QdrantClient
    from qdrant_client import models as api
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
except ImportError as error:
    raise ValueError(
        "a gallery in Qdrant needs the package qdrant-client, which is not installed; "
        'run pip install "qdrant-client>=1.14"'
    ) from error

KEY = "QDRANT_API_KEY"
SCORED_UP_TO = 4096  # images that are all scored if candidates are not exact
READ_UP_TO = 20_000  # images whose views or captions are read for one answer
_CONNECT, _ANSWER = 3.0, 60  # seconds to wait
_PAGE = 1000  # payloads of one answer
_NUMBERS = 1 << 19  # in one request or answer: up to 10 MB of JSON; a server accepts 32
_SPARE = 8  # candidates beyond k, to include equal scores
_RERANKED = 8  # candidates for each of k if MaxSim is not the score
_MAX_NAME = 4096  # characters of a file's name

# id, rows (R, E) of each named vector, payload
Point = tuple[str, Mapping[str, torch.Tensor], Mapping[str, Any]]


class QdrantError(ValueError):
    """Qdrant cannot be reached or refuses; the message says why."""


class Points:
    """A collection of a Qdrant server or folder; safe to use from several threads.

    Args:
        address: the address of the collection.

    Raises:
        QdrantError: in every method, if Qdrant cannot be reached or refuses.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()  # qdrant-client in a folder is not thread-safe
        with warnings.catch_warnings(), self._asking():
            # warnings: a folder is slow; a key is sent unencrypted
            warnings.simplefilter("ignore", UserWarning)
            if address.folder is not None:
                place = str(address.folder)
                self._client = QdrantClient(path=place, force_disable_check_same_thread=True)
                return
            socket.create_connection((address.host, address.port), _CONNECT).close()
            self._client = QdrantClient(
                host=address.host,
                port=address.port,
                https=address.tls,
                api_key=os.environ.get(KEY) or None,
                timeout=_ANSWER,
                check_compatibility=False,  # would connect in a thread, and warn
            )

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def vectors(self) -> dict[str, api.VectorParams] | None:
        """The named vectors of the collection; None if it does not exist."""
        if not self._ask("collection_exists"):
            return None
        params = self._ask("get_collection").config.params.vectors
        return params if isinstance(params, dict) else {}

    def create(self, widths: Mapping[str, int], half: bool, graph: bool) -> None:
        """Creates the collection; `widths` are the dimensions of a row of each method."""
        best = api.MultiVectorConfig(comparator=api.MultiVectorComparator.MAX_SIM)
        vectors = {
            name: api.VectorParams(
                size=width,
                distance=api.Distance.DOT,
                multivector_config=best,
                datatype=api.Datatype.FLOAT16 if half else api.Datatype.FLOAT32,
                hnsw_config=None if graph else api.HnswConfigDiff(m=0),
            )
            for name, width in widths.items()
        }
        self._ask("create_collection", vectors_config=vectors)

    def add(self, points: Sequence[Point]) -> None:
        """Writes points; returns when they are stored and searchable."""
        numbers = sum(rows.numel() for _, vectors, _ in points[:1] for rows in vectors.values())
        step = max(1, _NUMBERS // max(1, numbers))
        for start in range(0, len(points), step):
            made = [
                api.PointStruct(
                    id=point,
                    vector={name: rows.tolist() for name, rows in vectors.items()},
                    payload=dict(payload),
                )
                for point, vectors, payload in points[start : start + step]
            ]
            self._ask("upsert", points=made, wait=True)

    def move(self, point: str, payload: Mapping[str, object]) -> None:
        """Replaces fields of a point's payload."""
        self._ask("set_payload", payload=dict(payload), points=[point], wait=True)

    def payloads(self) -> Iterator[tuple[str, dict]]:
        """Iterates over the ids and payloads of all points."""
        offset, first = None, True
        while first or offset is not None:
            page, offset = self._ask("scroll", limit=_PAGE, offset=offset, with_payload=True)
            yield from ((str(record.id), record.payload or {}) for record in page)
            first = False

    def fetch(
        self, points: Sequence[str], vector: str | None = None
    ) -> dict[str, tuple[dict, np.ndarray]]:
        """The payload and the rows (R, E) float32 of a named vector of the existing points."""
        vectors = [vector] if vector else False
        records = self._ask("retrieve", ids=list(points), with_payload=True, with_vectors=vectors)
        pages = {}
        for record in records:
            rows = np.asarray((record.vector or {}).get(vector, []), np.float32)
            pages[str(record.id)] = record.payload or {}, rows
        return pages

    def candidates(
        self, vector: str, queries: np.ndarray, count: int, only: Sequence[str] | None
    ) -> list[str]:
        """The points with the largest MaxSim for each of several queries.

        Args:
            vector: a named vector.
            queries: (Q, R, E), R rows each.
            count: number of points for each query.
            only: ids of the points to search; None for all.
        """
        chosen = None if only is None else api.Filter(must=[api.HasIdCondition(has_id=list(only))])
        params = api.SearchParams(exact=not self.address.approximate)
        requests = [
            api.QueryRequest(
                query=rows.tolist(), using=vector, limit=count, filter=chosen, params=params
            )
            for rows in queries
        ]
        answers = self._ask("query_batch_points", requests=requests)
        return list(dict.fromkeys(str(point.id) for one in answers for point in one.points))

    def check_pack(self, payload: Mapping[str, Any], runtime: Runtime) -> None:
        """Raises QdrantError for a point written by another pack."""
        pack, ours = str(payload.get("pack")), runtime.info.checksum
        if pack != ours:
            raise QdrantError(
                f"{self.address} holds views of the pack {pack[:12]}, not of this one "
                f"({ours[:12]}); use that pack, or migrate the images to another collection"
            )

    def _ask(self, call: str, **arguments: object) -> Any:
        """Calls a method of the client on this collection."""
        with self._asking(), nullcontext() if self.address.folder is None else self._lock:
            return getattr(self._client, call)(self.address.name, **arguments)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns errors of the client into `QdrantError`."""
        where = f"Qdrant at {self.address}"
        try:
            yield
        except UnexpectedResponse as error:
            if error.status_code in (401, 403):
                raise QdrantError(f"{where} wants another key; set the variable {KEY}") from error
            reason = f"{error.status_code}: {error.reason_phrase:.200}"
            raise QdrantError(f"{where} refuses ({reason}); see python -m app.migrate") from error
        except (ResponseHandlingException, OSError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise QdrantError(f"{where} does not answer ({reason}); check the address") from error


class QdrantGallery(Gallery):
    """The views of one method in a collection.

    Scores are always computed here, by the method, from the rows stored in Qdrant. If one pair of
    rows determines the score (`Method.row_search`), each row of the query is searched by itself,
    and every one of the k best images is among the k best of one of these lists. The answer is
    therefore exact; of more than 8 equal scores at rank k, any may be returned. For other methods,
    all images are scored up to `SCORED_UP_TO`, and beyond that the best by MaxSim.

    Args:
        points: the collection.
        places: point id -> image id, in the order of image ids.
        name: the name of the method.
        method: the method.
        shape: (V, D) of the views.
        half: whether Qdrant stores float16.
        device: where scores are computed.
    """

    local = False

    def __init__(
        self,
        points: Points,
        places: Mapping[str, int],
        name: str,
        method: Method,
        shape: tuple[int, int],
        half: bool,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__("images", method, device)
        self.shape, self.kept_as = shape, f"{'float16' if half else 'float32'} in Qdrant"
        self._points, self._name = points, name
        self._places, self._names = places, list(places)
        self._ids, self._count = np.arange(len(places)), len(places)

    @property
    def bytes(self) -> int:
        """0: the views are not in this process."""
        return 0

    def caveat(self, only: AbstractSet[int] | None = None) -> str:
        """See `Gallery.caveat`."""
        if self._points.address.approximate:
            return "Approximate: Qdrant's graph may miss images; the scores are exact."
        if not self.method.row_search and len(self if only is None else only) > SCORED_UP_TO:
            return (
                "Approximate: the best by MaxSim are ranked by the method; others may score more."
            )
        return ""

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """See `Gallery.views`."""
        views, dim = self.shape or (1, 1)
        step, names = max(1, _NUMBERS // (views * dim)), [self._names[i] for i in ids]
        rows = [np.empty((0, views, dim), np.float32)]
        for start in range(0, len(names), step):
            page = names[start : start + step]
            read = self._points.fetch(page, self._name)
            if any(name not in read or read[name][1].size != views * dim for name in page):
                raise QdrantError(
                    f"images of {self._points.address} were deleted, or their views are damaged; "
                    "start again, or migrate them again"
                )
            rows += [read[name][1].reshape(1, views, dim) for name in page]
        return Views(torch.from_numpy(np.concatenate(rows)).to(self._device))

    def chunks(self) -> Iterator[tuple[np.ndarray, Views]]:
        """See `Gallery.chunks`."""
        if len(self) > READ_UP_TO:
            raise QdrantError(
                f"this needs the views of all {len(self):,} images, which are read from Qdrant for "
                f"up to {READ_UP_TO:,}; ask one method for one sentence or one image"
            )
        for start in range(0, len(self), _PAGE):
            ids = self.ids()[start : start + _PAGE]
            yield ids, self.views(ids)

    def candidates(self, query: Views, k: int, only: AbstractSet[int] | None) -> np.ndarray | None:
        """See `Gallery.candidates`."""
        chosen = self.ids() if only is None else np.array(sorted(only), np.int64)
        if not self.method.row_search and len(chosen) <= SCORED_UP_TO:
            return chosen
        rows = self._rows(query.embeddings).float().cpu()
        needles = rows[:, None] if self.method.row_search else rows[None]  # (Q, R, E)
        once = self.method.row_search and not self._points.address.approximate
        count = k * (1 if once else _RERANKED) + _SPARE
        names = None if only is None else [self._names[i] for i in chosen]
        points = self._points.candidates(self._name, needles.numpy(), count, names)
        return np.sort([self._places[point] for point in points if point in self._places])


def open_store(points: Points) -> tuple[Collection, Callable[[Runtime], dict[str, QdrantGallery]]]:
    """Reads the payloads of a collection, without views.

    Returns:
        The images, and a function that makes the gallery of each method of a pack. It raises
        QdrantError if the views come from another pack.

    Raises:
        QdrantError: Qdrant cannot be reached, or the collection is missing, empty, or foreign.
    """
    address, vectors = points.address, points.vectors()
    if vectors is None:
        raise QdrantError(
            f"there is no collection {address}; fill it with python -m polyview migrate"
        )
    read = list(points.payloads())
    try:
        known = [(_image(payload, address.pictures), point, payload) for point, payload in read]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"was not written by python -m polyview migrate ({error})"
        raise QdrantError(f"{address} {reason}; name another collection") from error
    if not known:
        raise QdrantError(
            f"the collection {address} is empty; fill it with python -m polyview migrate"
        )
    known.sort(key=lambda one: one[0].file)
    images = tuple(replace(image, image_id=i) for i, (image, _, _) in enumerate(known))
    places = {point: i for i, (_, point, _) in enumerate(known)}

    def galleries(runtime: Runtime) -> dict[str, QdrantGallery]:
        payload, made = known[0][2], {}
        points.check_pack(payload, runtime)
        for name, method in runtime.methods.items():
            if name not in vectors or name not in payload.get("shapes", {}):
                raise QdrantError(
                    f"{address} has no views of the method {name}; migrate the images with this "
                    "pack to another collection"
                )
            shape, half = payload["shapes"][name], vectors[name].datatype == api.Datatype.FLOAT16
            made[name] = QdrantGallery(
                points, places, name, method, tuple(shape), half, runtime.device
            )
        return made

    return Collection(address.name, Path(str(address)), images), galleries


def _image(payload: Mapping[str, Any], folder: Path | None) -> CollectionImage:
    """Builds an image from its untrusted payload; only files in `folder` are opened."""
    file = str(payload["file"])
    parts = PurePosixPath(file)
    odd = len(file) > _MAX_NAME or "\0" in file or ".." in parts.parts or parts.is_absolute()
    if odd or parts.suffix.lower() not in SUFFIXES:
        raise ValueError(f'"{file[:200]}" is not an image')
    root = None if folder is None else folder.resolve()
    path = (root or Path("nowhere")) / file
    captions, objects = (tuple(map(str, payload[key])) for key in ("captions", "objects"))
    facts = {str(name): str(value) for name, value in payload["facts"].items()}
    return CollectionImage(0, path, file, captions, objects, root=root, known=facts)
