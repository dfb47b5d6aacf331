"""A server that speaks as much of Qdrant's REST protocol as the app uses.

Behind it is the client's own local mode: what is tested is what goes over the wire, not the engine.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel
from qdrant_client import QdrantClient
from qdrant_client import models as api

NAME = "photos"


@dataclass
class Pretended:
    """The server's state.

    Attributes:
        client: holds the points.
        key: that requests must bring; empty for none.
        fault: a status to refuse everything with; 0 for none.
        raw: what is answered to everything, with headers; None for answers.
        asked: what was asked so far, "METHOD path".
    """

    client: QdrantClient = field(default_factory=lambda: QdrantClient(":memory:"))
    key: str = ""
    fault: int = 0
    raw: tuple[bytes, dict[str, str]] | None = None
    asked: list[str] = field(default_factory=list)
    port: int = 0


@contextmanager
def pretended_server(key: str = "") -> Iterator[Pretended]:
    """Serves one collection named `photos`."""
    state, lock = Pretended(key=key), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = urlsplit(self.path).path.removeprefix(f"/collections/{NAME}")
            with lock:
                state.asked.append(f"{self.command} {path}")
                status = state.fault
                result: Any = None
                if state.key and self.headers.get("api-key") != state.key:
                    status = 401
                if not status and path == "/exists":
                    result = {"exists": state.client.collection_exists(NAME)}
                elif not status and not state.client.collection_exists(NAME) and path:
                    status = 404
                elif not status:
                    result = _ANSWERS[f"{self.command} {path}"](state.client, body)
            if isinstance(result, BaseModel):
                result = json.loads(result.model_dump_json())
            answer = json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()
            headers: dict[str, str] = {}
            if state.raw is not None:
                answer, headers = state.raw
            self.send_response(status or 200)
            self.send_header("Content-Type", "application/json")
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _create(client: QdrantClient, body: bytes) -> bool:
    query = api.CreateCollection.model_validate_json(body)
    return client.create_collection(NAME, vectors_config=query.vectors)


def _upsert(client: QdrantClient, body: bytes) -> Any:
    return client.upsert(NAME, api.PointsList.model_validate_json(body).points)


def _set_payload(client: QdrantClient, body: bytes) -> Any:
    query = api.SetPayload.model_validate_json(body)
    return client.set_payload(NAME, query.payload, query.points or [])


def _retrieve(client: QdrantClient, body: bytes) -> Any:
    query = api.PointRequest.model_validate_json(body)
    results = client.retrieve(
        NAME, query.ids, query.with_payload or False, query.with_vector or False
    )
    return [json.loads(record.model_dump_json()) for record in results]


def _scroll(client: QdrantClient, body: bytes) -> Any:
    query = api.ScrollRequest.model_validate_json(body)
    results, after = client.scroll(
        NAME,
        query.filter,
        query.limit or 10,
        offset=query.offset,
        with_payload=query.with_payload or False,
    )
    points = [json.loads(record.model_dump_json()) for record in results]
    return {"points": points, "next_page_offset": after}


def _query(client: QdrantClient, body: bytes) -> Any:
    searches = api.QueryRequestBatch.model_validate_json(body).searches
    for search in searches:
        assert search.params is not None, "a server must be told how to search"
        assert search.params.exact is not None
        search.params = None
    answers = client.query_batch_points(NAME, searches)
    return [json.loads(answer.model_dump_json()) for answer in answers]


_ANSWERS: dict[str, Callable[[QdrantClient, bytes], Any]] = {
    "GET ": lambda client, _: client.get_collection(NAME),
    "PUT ": _create,
    "PUT /index": lambda *_: {"operation_id": 0, "status": "completed"},
    "PUT /points": _upsert,
    "POST /points": _retrieve,
    "POST /points/payload": _set_payload,
    "POST /points/scroll": _scroll,
    "POST /points/query/batch": _query,
}
