"""One collection of a Qdrant server, or of a folder, and every failure as a sentence."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from app.gallery.qdrant.address import Address
from app.gallery.qdrant.answers import GRPC, HOOKS, AnswerError

if importlib.util.find_spec("qdrant_client") is None:
    raise ValueError(
        "the package qdrant-client, which a gallery in Qdrant needs, is not installed; "
        'run pip install "qdrant-client>=1.14"'
    )

import grpc
from qdrant_client import QdrantClient
from qdrant_client import models as api
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

KEY = "QDRANT_API_KEY"
PACK = "pack"  # the payload's field that holds the checksum of the pack that made the views
_INDEXED = (PACK, "sha256", "facts.folder")  # payload fields that filters find quickly
_CONNECT = 3.0  # seconds to wait for a connection
_ANSWER = 60  # seconds to wait for an answer
MAX_POINTS = 10_000_000
_PAGE = 1000  # payloads of one answer
_ENDED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
_REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}

_log = logging.getLogger(__name__)


class QdrantError(ValueError):
    """Qdrant cannot be reached, or refuses; the message says why, in a sentence."""


@dataclass(frozen=True)
class Creation:
    """How a collection is made.

    Attributes:
        half: keep float16, half the memory; scores move by less than 0.001.
        graph: build an HNSW graph for approximate search.
        shards: into how many parts the points are divided; None leaves it to the server.
        replicas: on how many servers each part lies; None leaves it to the server.
    """

    half: bool = False
    graph: bool = False
    shards: int | None = None
    replicas: int | None = None


class Server:
    """Asks one collection; safe to use from several threads.

    Args:
        client: as `connect` makes it.
        address: what it is connected to.

    Raises:
        QdrantError: by every method, where Qdrant cannot be reached or refuses.
    """

    def __init__(self, client: QdrantClient, address: Address) -> None:
        self._client = client
        self.address = address
        embedded = not address.host
        # qdrant-client without a server is not made for several threads
        self._lock: AbstractContextManager = threading.Lock() if embedded else nullcontext()
        self._embedded = embedded

    @classmethod
    def connect(cls, address: Address) -> Server:
        """Connects; a server that does not answer is reported within seconds."""
        if address.folder is not None:
            return cls(_embedded(address), address)
        try:
            socket.create_connection((address.host, address.port), _CONNECT).close()
        except OSError as error:
            raise QdrantError(
                f"no Qdrant answers at {address.host}:{address.port} "
                f"({error.strerror or error}); start it, or mend the address {address}"
            ) from error
        key = os.environ.get(KEY) or None
        if key and not address.tls:
            _log.warning("the key of %s goes to %s unencrypted; use qdrants://", KEY, address.host)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said above
            client = QdrantClient(
                host=address.host,
                port=address.port,
                https=address.tls,
                api_key=key,
                prefer_grpc=address.grpc is not None,
                grpc_port=address.grpc or 6334,
                timeout=_ANSWER,
                check_compatibility=False,  # it would ask in a thread, and warn
                event_hooks=HOOKS,
                grpc_options=GRPC,
            )
        return cls(client, address)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def vectors(self) -> dict[str, api.VectorParams] | None:
        """The collection's named vectors, or None where there is no such collection."""
        with self._asking():
            if not self._client.collection_exists(self.address.name):
                return None
            known = self._client.get_collection(self.address.name).config.params.vectors
        if isinstance(known, Mapping) and all(p.multivector_config for p in known.values()):
            return dict(known)
        raise QdrantError(
            f"the collection {self.address} was not made for view embeddings; name another one"
        )

    def create(self, widths: Mapping[str, int], how: Creation) -> None:
        """Makes the collection.

        Args:
            widths: the named vectors, and the dimensions of a row of each.
            how: see there.
        """
        maximum = api.MultiVectorConfig(comparator=api.MultiVectorComparator.MAX_SIM)
        vectors = {
            name: api.VectorParams(
                size=width,
                distance=api.Distance.DOT,
                multivector_config=maximum,
                datatype=api.Datatype.FLOAT16 if how.half else api.Datatype.FLOAT32,
                hnsw_config=None if how.graph else api.HnswConfigDiff(m=0),
            )
            for name, width in widths.items()
        }
        with self._asking():
            self._client.create_collection(
                self.address.name,
                vectors_config=vectors,
                shard_number=how.shards,
                replication_factor=how.replicas,
            )
            if not self._embedded:  # where there is no server there are no indices either
                for field in _INDEXED:
                    self._client.create_payload_index(
                        self.address.name, field, api.PayloadSchemaType.KEYWORD
                    )

    def write(self, points: Sequence[api.PointStruct]) -> None:
        """Writes points, and returns once they are kept and found."""
        with self._asking():
            self._client.upsert(self.address.name, list(points), wait=True)

    def rewrite(self, point: str, payload: Mapping[str, object]) -> None:
        """Replaces fields of a point's payload."""
        with self._asking():
            self._client.set_payload(self.address.name, dict(payload), [point], wait=True)

    def payloads(self) -> Iterator[tuple[str, dict]]:
        """Every point's id and payload, a page at a time.

        Raises:
            QdrantError: the server gives a point twice, or more than `MAX_POINTS`.
        """
        seen: set[str] = set()
        offset = None
        while True:
            with self._asking():
                page, offset = self._client.scroll(
                    self.address.name, limit=_PAGE, offset=offset, with_payload=True
                )
            new = {str(record.id): record.payload or {} for record in page}
            if len(new) < len(page) or not seen.isdisjoint(new) or (offset and not new):
                raise QdrantError(
                    f"the server of {self.address.name} gives the same pictures again and again; "
                    "mend it, or name another collection"
                )
            seen.update(new)
            if len(seen) > MAX_POINTS:
                raise QdrantError(
                    f"the collection {self.address.name} has more than {MAX_POINTS:,} pictures; "
                    "divide it into several"
                )
            yield from new.items()
            if offset is None:
                return

    def read(
        self, points: Sequence[str], fields: Sequence[str], vector: str | None = None
    ) -> dict[str, tuple[dict, np.ndarray]]:
        """Those of some points that there are.

        Args:
            points: ids.
            fields: of the payload.
            vector: a named vector; None for none.

        Returns:
            By id, the fields, and the rows (R, E) float32; (0, 0) where there are none.
        """
        with self._asking():
            found = self._client.retrieve(
                self.address.name,
                list(points),
                with_payload=list(fields),
                with_vectors=[vector] if vector else False,
            )
        read = {}
        for record in found:
            held = record.vector if isinstance(record.vector, dict) else {}
            try:
                rows = np.asarray(held.get(vector or "", np.empty((0, 0))), np.float32)
            except (TypeError, ValueError):  # rows of several lengths
                rows = np.empty((0, 0), np.float32)
            if not np.isfinite(rows).all():  # nothing can be ranked by them
                rows = np.empty((0, 0), np.float32)
            read[str(record.id)] = (record.payload or {}, rows)
        return read

    def nearest(
        self,
        vector: str,
        queries: np.ndarray,
        count: int,
        only: api.Filter | None,
        graph: bool = False,
    ) -> list[list[tuple[str, float]]]:
        """The points of the largest MaxSim with each query, and it: sum over rows of the best.

        Args:
            vector: a named vector.
            queries: (Q, R, E), each of R rows.
            count: how many points for each query.
            only: which points, or None for all.
            graph: use the HNSW graph where there is one, and so perhaps miss some.
        """
        params = api.SearchParams(exact=not graph, hnsw_ef=max(128, 2 * count) if graph else None)
        requests = [
            api.QueryRequest(
                query=rows.tolist(),
                using=vector,
                limit=count,
                filter=only,
                params=None if self._embedded else params,
            )
            for rows in queries
        ]
        with self._asking():
            answers = self._client.query_batch_points(self.address.name, requests)
        return [[(str(point.id), point.score) for point in answer.points] for answer in answers]

    def check_pack(self, checksum: str) -> None:
        """Refuses a collection that holds views of another pack.

        Raises:
            QdrantError: it does; the sentence names both.
        """
        other = api.Filter(
            must_not=[api.FieldCondition(key=PACK, match=api.MatchValue(value=checksum))]
        )
        with self._asking():
            strangers, _ = self._client.scroll(
                self.address.name, other, limit=1, with_payload=[PACK]
            )
        if strangers:
            raise foreign(self.address.name, (strangers[0].payload or {}).get(PACK), checksum)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns what goes wrong into a sentence."""
        with self._lock:
            try:
                yield
            except UnexpectedResponse as error:
                raise self._refusal(error.status_code, error.reason_phrase) from error
            except ResponseHandlingException as error:
                if isinstance(error.source, ValueError):
                    raise self._nonsense(error.source) from error
                raise self._silence(error) from error
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                if self._embedded:
                    raise
                raise self._nonsense(error) from error
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                if code in _ENDED:
                    raise self._silence(error) from error
                status = {grpc.StatusCode.NOT_FOUND: 404, **dict.fromkeys(_REFUSED, 401)}
                reason = error.details() if isinstance(error, grpc.Call) else str(error)
                raise self._refusal(status.get(code) if code else None, reason or "") from error

    def _refusal(self, status: int | None, reason: str) -> QdrantError:
        if status in (401, 403):
            return QdrantError(
                f"the server of {self.address.name} wants another key; set the variable {KEY}"
            )
        if status == 404:
            return QdrantError(
                f"there is no collection {self.address.name}; see python -m app.migrate"
            )
        return QdrantError(f"the server of {self.address.name} refuses ({status}: {reason:.200})")

    def _nonsense(self, error: Exception) -> QdrantError:
        bounded = isinstance(error, AnswerError)
        what = str(error) if bounded else f"gives no answer ({type(error).__name__})"
        return QdrantError(
            f"the server of {self.address.name} {what}; check that {self.address} is a Qdrant"
        )

    def _silence(self, error: Exception) -> QdrantError:
        return QdrantError(
            f"the server of {self.address.name} does not answer any more ({type(error).__name__}); "
            "try again in a moment"
        )


def only_points(points: Sequence[str], others: bool = False) -> api.Filter:
    """Those points; or all but those."""
    condition = api.HasIdCondition(has_id=list(points))
    return api.Filter(must_not=[condition]) if others else api.Filter(must=[condition])


def foreign(name: str, found: object, wanted: str) -> QdrantError:
    """Why a collection is not searched, or written to, with a pack."""
    whose = f"of the pack with the checksum {found[:12]}…" if isinstance(found, str) else "of none"
    return QdrantError(
        f"the collection {name} holds views {whose}, not of this one ({wanted[:12]}…); use the "
        "pack they were made with, or migrate the pictures with this pack to another collection"
    )


def _embedded(address: Address) -> QdrantClient:
    """A collection in a folder, without a server."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is slow above 20,000 points
            return QdrantClient(path=str(address.folder), force_disable_check_same_thread=True)
    except (OSError, RuntimeError) as error:
        raise QdrantError(
            f"the folder {address.folder} cannot be used ({str(error).splitlines()[0]:.200})"
        ) from error
