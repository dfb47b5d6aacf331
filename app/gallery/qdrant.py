"""A gallery in Qdrant with one point for each image; `app/migrate.py` writes the points.

    id        the first half of an image's hash, as a UUID. The hash is the SHA-256 of the file. For
              images with captions, it is the SHA-256 of that SHA-256 and the file's name, because
              copies may have different captions.
    vectors   a multivector for each method, under the method's name: R rows of E dimensions. Qdrant
              compares them by MaxSim: the sum of each query row's largest inner product with a row.
    payload   file, captions, objects, facts, the pack's checksum, shapes of views

The rows are the V views of D dimensions, reshaped by `Method.row_dim`. If possible, MaxSim equals
the method's score. Requires the optional package qdrant-client.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import torch

from polyview.app.gallery.images import SUFFIXES
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import Collection, CollectionImage
from polyview.export.runtime import Runtime
from polyview.models import Method, Views

try:
    from qdrant_client import QdrantClient
    from qdrant_client import models as api
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
except ImportError:
    QdrantClient = None  # type: ignore[assignment,misc]

FORM = (
    "qdrant://host:port/collection (qdrants:// for TLS) or qdrant:///folder/collection; "
    "?pictures=DIR may follow"
)
_KEY_VARIABLE, _MIGRATE = "QDRANT_API_KEY", "python -m polyview migrate"
MAX_READ_IMAGES = 20_000  # maximum number of images whose views are read for one answer
_CONNECT_SECONDS, _ANSWER_SECONDS = 3.0, 60  # time to wait for a connection, and for an answer
_PAGE = 1000  # payloads of one answer
_MAX_VALUES = 2**19  # values of a request or answer: up to 10 MB of JSON; a server accepts 32 MB
_MAX_TIES = 8  # candidates beyond k, to include equal scores
_MAX_NAME = 4096  # characters of a file's name
# id, rows (R, E) by name of the vector, payload
Point = tuple[str, Mapping[str, torch.Tensor], Mapping[str, Any]]


class QdrantError(ValueError):
    """Qdrant cannot be reached, refuses a request, or has no usable data; the message says why."""


class Points:
    """A collection of a Qdrant server or folder; safe to use from several threads.

    `address` has the form `FORM`. The constructor raises ValueError if the address is not valid or
    qdrant-client is missing; every method raises QdrantError if a request fails.
    """

    def __init__(self, address: str) -> None:
        try:
            url = urlsplit(address.strip())
            port = url.port or 6333
        except ValueError:  # malformed brackets or port
            url, port = urlsplit(""), 0
        folder, _, self.name = unquote(url.path).rpartition("/")
        options = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.password is not None or url.username is not None or "api_key" in options:
            raise ValueError(
                "other users who list this machine's processes would see a key in the address; "
                f"set the variable {_KEY_VARIABLE} instead"
            )
        has_name = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", self.name) is not None
        has_location = bool(url.hostname) != bool(folder)  # either a server or a folder
        is_qdrant = url.scheme in ("qdrant", "qdrants") and options.keys() <= {"pictures"}
        if not (port and has_name and has_location and is_qdrant):
            raise ValueError(f'"{address[:200]}" names no collection of Qdrant; give {FORM}')
        # the folder of the image files on this machine; None if the address names none
        self.pictures = Path(options["pictures"]).expanduser() if options else None
        if self.pictures is not None and not self.pictures.is_dir():
            raise ValueError(f"pictures={self.pictures} is not a local folder; check the path")
        if QdrantClient is None:
            raise ValueError(
                "a gallery in Qdrant needs the package qdrant-client, which is not installed; "
                'run pip install "qdrant-client>=1.14"'
            )
        self.address = address.strip().partition("?")[0]  # without options
        # qdrant-client's local mode is not thread-safe
        self._lock = threading.Lock() if folder else nullcontext()
        client_options: dict[str, Any] = {"path": folder, "force_disable_check_same_thread": True}
        with warnings.catch_warnings(), self._translate_errors():
            if url.hostname:
                socket.create_connection((url.hostname, port), _CONNECT_SECONDS).close()
                client_options = {
                    "host": url.hostname, "port": port, "timeout": _ANSWER_SECONDS,
                    "https": url.scheme == "qdrants",
                    "api_key": os.environ.get(_KEY_VARIABLE) or None,
                    "check_compatibility": False,  # the check connects in a thread, and warns
                }  # fmt: skip
            # the client warns that local mode is slow, and that a key is sent unencrypted
            warnings.simplefilter("ignore", UserWarning)
            self._client = QdrantClient(**client_options)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def exists(self) -> bool:
        """Returns True if the collection exists."""
        return bool(self._call("collection_exists"))

    def create(self, widths: Mapping[str, int]) -> None:
        """Creates the collection; `widths` maps each method to the width E of its rows."""
        config = api.MultiVectorConfig(comparator=api.MultiVectorComparator.MAX_SIM)
        vectors = {
            name: api.VectorParams(size=width, distance=api.Distance.DOT, multivector_config=config)
            for name, width in widths.items()
        }
        self._call("create_collection", vectors_config=vectors)

    def add(self, points: Sequence[Point]) -> None:
        """Writes points, and waits until they are stored and searchable."""
        values_per_point = sum(r.numel() for _, vectors, _ in points[:1] for r in vectors.values())
        step = max(1, _MAX_VALUES // max(1, values_per_point))
        for start in range(0, len(points), step):
            structs = []
            for point_id, vectors, payload in points[start : start + step]:
                lists: dict[str, Any] = {name: rows.tolist() for name, rows in vectors.items()}
                structs.append(api.PointStruct(id=point_id, vector=lists, payload=dict(payload)))
            self._call("upsert", points=structs, wait=True)

    def payloads(self) -> Iterator[tuple[str, dict]]:
        """Yields the id and payload of every point."""
        offset = None
        while True:
            page, offset = self._call("scroll", limit=_PAGE, offset=offset, with_payload=True)
            yield from ((str(record.id), record.payload or {}) for record in page)
            if offset is None:
                return

    def fetch(
        self, point_ids: Sequence[str], vector: str | None = None
    ) -> dict[str, tuple[dict, np.ndarray]]:
        """Returns payload and rows (R, E) of existing points by id; without `vector`, no rows."""
        points = dict[str, tuple[dict, np.ndarray]]()
        options = {"with_payload": True, "with_vectors": [vector] if vector else False}
        for record in self._call("retrieve", ids=list(point_ids), **options):
            rows = np.asarray((record.vector or {}).get(vector, []), np.float32)
            points[str(record.id)] = record.payload or {}, rows
        return points

    def candidates(
        self, vector: str, queries: np.ndarray, count: int, only: Sequence[str] | None
    ) -> list[str]:
        """Returns the ids of the `count` best points by MaxSim for each of the `queries` (Q, R, E).

        Ids of several queries are merged without duplicates. `vector` names the compared vectors.
        `only` has the ids of the points to search; None searches all points.
        """
        subset = None if only is None else api.Filter(must=[api.HasIdCondition(has_id=list(only))])
        params = api.SearchParams(exact=True)
        options: dict[str, Any] = {"using": vector, "limit": count, "filter": subset}
        requests = [api.QueryRequest(query=q.tolist(), params=params, **options) for q in queries]
        answers = self._call("query_batch_points", requests=requests)
        return list(dict.fromkeys(str(point.id) for answer in answers for point in answer.points))

    def _call(self, method: str, **arguments: object) -> Any:
        """Calls a method of the client on this collection."""
        with self._translate_errors(), self._lock:
            return getattr(self._client, method)(self.name, **arguments)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Converts errors of the client to `QdrantError`."""
        server = f"Qdrant at {self.address}"
        try:
            yield
        except UnexpectedResponse as error:
            if error.status_code in (401, 403):
                raise QdrantError(f"{server} rejects the API key; set {_KEY_VARIABLE}") from error
            is_missing = error.status_code == 404
            advice = f"create the collection with {_MIGRATE}" if is_missing else "check the server"
            reason = f"{error.status_code}: {error.reason_phrase:.200}"
            raise QdrantError(f"{server} rejects the request ({reason}); {advice}") from error
        except (ResponseHandlingException, OSError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            problem = "does not answer" if isinstance(error, OSError) else "gives no valid answer"
            raise QdrantError(f"{server} {problem} ({reason}); check the address") from error


class QdrantGallery(Gallery):
    """The views of one method in a collection; the method scores the views that Qdrant returns.

    If one pair of rows determines the score (`Method.row_search`), Qdrant finds the k + 8 best
    images for each row of the query. These include the k best for the query, so the answer is
    exact. If more than 8 images have the same score at rank k, any of them may be returned. Other
    methods score all images, at most `MAX_READ_IMAGES`.
    """

    local = False

    def __init__(
        self,
        points: Points,
        image_ids: Mapping[str, int],  # 0, 1, 2, ... by id of the point
        name: str,  # the method's name
        method: Method,
        shape: tuple[int, int],  # (V, D) of the views
        device: torch.device | str = "cpu",  # where scores are computed
    ) -> None:
        super().__init__("images", method, device)
        self.shape, self.storage = shape, "float32 in Qdrant"
        self._points, self._name = points, name
        self._image_ids, self._point_ids = image_ids, list(image_ids)
        self._ids, self._count = np.arange(len(image_ids)), len(image_ids)

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """Reads views from Qdrant, see `Gallery.views`; raises QdrantError if they are missing."""
        view_count, dim = self.shape or (1, 1)
        size, point_ids = view_count * dim, [self._point_ids[i] for i in ids]
        step, arrays = max(1, _MAX_VALUES // size), [np.empty((0, view_count, dim), np.float32)]
        for start in range(0, len(point_ids), step):
            page = point_ids[start : start + step]
            records = self._points.fetch(page, self._name)
            if any(point not in records or records[point][1].size != size for point in page):
                raise QdrantError(
                    f"images of {self._points.address} were deleted, or their views are damaged; "
                    "start again, or migrate them again"
                )
            arrays += [records[point][1].reshape(1, view_count, dim) for point in page]
        return Views(torch.from_numpy(np.concatenate(arrays)).to(self._device))

    def chunks(self, ids: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Views]]:
        """Reads views in chunks, see `Gallery.chunks`; raises QdrantError for too many images."""
        selected = self.ids() if ids is None else ids
        if len(selected) > MAX_READ_IMAGES:
            raise QdrantError(
                f"this request needs the views of {len(selected):,} images, but at most "
                f"{MAX_READ_IMAGES:,} are read from Qdrant; search with one term and one method "
                "other than SCAN, late interaction and AVSE, or search a local gallery"
            )
        for start in range(0, len(selected), _PAGE):
            yield selected[start : start + _PAGE], self.views(selected[start : start + _PAGE])

    def candidates(self, query: Views, k: int, only: AbstractSet[int] | None) -> np.ndarray | None:
        """Returns candidates that Qdrant finds, or all items, see `Gallery.candidates`."""
        selected = self.ids() if only is None else np.array(sorted(only), np.int64)
        if not self.method.row_search:
            return selected
        query_rows = self._rows(query.embeddings).float().cpu()[:, None]  # (Q, 1, E)
        subset = None if only is None else [self._point_ids[i] for i in selected]
        points = self._points.candidates(self._name, query_rows.numpy(), k + _MAX_TIES, subset)
        return np.sort([self._image_ids[point] for point in points if point in self._image_ids])


def open_points(points: Points) -> tuple[Collection, Callable[[Runtime], dict[str, QdrantGallery]]]:
    """Reads the payloads of a collection, without views.

    Returns the images, and a function that makes the gallery of each method of a pack. Raises
    QdrantError if Qdrant cannot be reached, or the collection is missing, empty or not written by
    `app/migrate.py`. The function raises QdrantError if views are missing or of another pack.
    """
    if not points.exists():
        raise QdrantError(f"there is no collection {points.address}; create it with {_MIGRATE}")
    payloads = sorted(points.payloads(), key=lambda pair: str(pair[1].get("file")))
    if not payloads:
        raise QdrantError(f"the collection {points.address} is empty; fill it with {_MIGRATE}")
    root = points.pictures and points.pictures.resolve()
    try:
        images = tuple(_image(i, payload, root) for i, (_, payload) in enumerate(payloads))
        first_payload: Mapping[str, Any] = payloads[0][1]
        shapes = {name: (int(v), int(d)) for name, (v, d) in first_payload["shapes"].items()}
        checksum = str(first_payload["pack"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise QdrantError(
            f"{points.address} was not written by {_MIGRATE} ({error}); name another collection"
        ) from error
    image_ids = {point: i for i, (point, _) in enumerate(payloads)}

    def make_galleries(runtime: Runtime) -> dict[str, QdrantGallery]:
        check_pack(points, checksum, runtime)
        if missing := runtime.methods.keys() - shapes.keys():
            raise QdrantError(
                f"{points.address} lacks the views of {min(missing)}; fill it with {_MIGRATE}"
            )
        return {
            name: QdrantGallery(points, image_ids, name, method, shapes[name], runtime.device)
            for name, method in runtime.methods.items()
        }

    return Collection(points.name, Path(points.address), images), make_galleries


def check_pack(points: Points, checksum: str, runtime: Runtime) -> None:
    """Raises QdrantError unless the pack's checksum in the points equals that of the runtime."""
    if checksum != runtime.info.checksum:
        raise QdrantError(
            f"{points.address} holds views of the pack {checksum[:12]}, not of this one "
            f"({runtime.info.checksum[:12]}); use that pack, or migrate the images to another "
            "collection"
        )


def _image(image_id: int, payload: Mapping[str, Any], root: Path | None) -> CollectionImage:
    """Makes an image from an untrusted payload. The image's file is opened only within `root`."""
    file = str(payload["file"])
    name = PurePosixPath(file)
    is_unsafe = len(file) > _MAX_NAME or "\0" in file or ".." in name.parts or name.is_absolute()
    if is_unsafe or name.suffix.lower() not in SUFFIXES:
        raise ValueError(f'"{file[:200]}" is not an image')
    path = (root or Path("nowhere")) / file  # not opened without `root`
    captions, objects = (tuple(map(str, payload[key])) for key in ("captions", "objects"))
    facts = {str(fact): str(value) for fact, value in payload["facts"].items()}
    return CollectionImage(image_id, path, file, captions, objects, root=root, stored_facts=facts)
