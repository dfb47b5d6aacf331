"""Bounds of one answer of a Qdrant server, which the client would take whole, however large."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

MOST_BYTES = 128_000_000
MOST_VALUES = 4_000_000  # by the signs between them; each takes about 60 bytes


class AnswerError(ValueError):
    """An answer is larger than any that is asked for; the message says how large it may be."""


class _Bounded(httpx.SyncByteStream):
    """An answer that is counted while it comes."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = values = 0
        for part in self._stream:
            size += len(part)
            values += sum(part.count(sign) for sign in (b",", b"[", b"{"))
            if size > MOST_BYTES or values > MOST_VALUES:
                raise AnswerError(
                    f"answers with more than {MOST_BYTES // 10**6} MB or {MOST_VALUES:,} values"
                )
            yield part

    def close(self) -> None:
        self._stream.close()


def _ask_plainly(request: httpx.Request) -> None:
    request.headers["Accept-Encoding"] = "identity"


def _bound(response: httpx.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise AnswerError("packs its answers although it was asked not to")
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _Bounded(response.stream)


HOOKS = {"request": [_ask_plainly], "response": [_bound]}  # of a httpx.Client
GRPC = {"grpc.max_receive_message_length": MOST_BYTES}
