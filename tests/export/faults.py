"""What a server and the way to it may do to an answer, played on the bytes of the true one."""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Event, Lock

LOGIN_PAGE = b"<!DOCTYPE html><title>Welcome to the guest network</title>"


@dataclass
class Fault:
    """One kind of fault.

    Attributes:
        kind: "cut" or "reset" the connection after `at` bytes of the answer, headers included
            (negative: so many before its end); let it "trickle" from there, a byte every `pause`
            seconds; be "silent"; "redirect" to the same address; answer with a "status", with a
            "login" page, or with a body that is "short" of its last byte but claims to be whole.
        at: see there; the status.
        headers: with a status.
        pause: see there.
        times: how often it happens; None for always.
    """

    kind: str
    at: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.01
    times: int | None = None
    _lock: Lock = field(default_factory=Lock)

    def take(self) -> bool:
        """Whether it happens to this answer."""
        with self._lock:
            if self.times is None:
                return True
            self.times -= 1
            return self.times >= 0


def play(fault: Fault, raw: bytes, path: str, connection: socket.socket, over: Event) -> None:
    """Answers as the fault has it.

    Args:
        fault: what happens.
        raw: the true answer, headers and body.
        path: that was asked for.
        connection: to the client.
        over: ends all waiting.
    """
    answers = {
        "status": lambda: _answer(fault.at, fault.headers, b""),
        "redirect": lambda: _answer(307, {"Location": path}, b""),
        "login": lambda: _answer(200, {"Content-Type": "text/html"}, LOGIN_PAGE),
        "short": lambda: _shortened(raw),
    }
    at = min(fault.at if fault.at >= 0 else len(raw) + fault.at, len(raw))
    with suppress(OSError):  # the client has given up
        if fault.kind == "silent":
            over.wait()
        elif fault.kind in answers:
            connection.sendall(answers[fault.kind]())
        else:
            connection.sendall(raw[:at])
        if fault.kind == "trickle":
            for i in range(at, len(raw)):
                if over.wait(fault.pause):
                    break
                connection.sendall(raw[i : i + 1])
        if fault.kind == "reset":
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(connection.detach())  # at once, without a goodbye


def _answer(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    return (head + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode() + body


def _shortened(raw: bytes) -> bytes:
    """The last byte is missing, and the headers know nothing of it."""
    head, _, body = raw.partition(b"\r\n\r\n")
    length = b"Content-Length: %d"
    told = head.replace(length % len(body), length % (len(body) - 1))
    return told + b"\r\n\r\n" + body[:-1]
