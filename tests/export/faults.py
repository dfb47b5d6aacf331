"""What a server and the way to it may do to an answer, played on the bytes of the true one."""

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Event, Lock

LOGIN_PAGE = b"<!DOCTYPE html><title>Welcome to the guest network</title>"


@dataclass
class Fault:
    """One kind of fault.

    `kind` is "cut", the connection after `at` bytes of the answer, headers included; "trickle",
    from there a byte every 10 ms; "silent"; "redirect" to the same address; "status" `at`; or
    "login", a page of a network that wants one.
    """

    kind: str
    at: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # with a status
    times: int | None = None  # how often it happens; None for always
    _lock: Lock = field(default_factory=Lock)

    def take(self) -> bool:
        """Whether it happens to this answer."""
        with self._lock:
            if self.times is None:
                return True
            self.times -= 1
            return self.times >= 0


def play(fault: Fault, raw: bytes, path: str, connection: socket.socket, over: Event) -> None:
    """Answers as the fault has it, in place of the true answer `raw`; `over` ends all waiting."""
    answers = {
        "status": lambda: _answer(fault.at, fault.headers, b""),
        "redirect": lambda: _answer(307, {"Location": path}, b""),
        "login": lambda: _answer(200, {"Content-Type": "text/html"}, LOGIN_PAGE),
    }
    with suppress(OSError):  # the client has given up
        if fault.kind == "silent":
            over.wait()
        elif fault.kind in answers:
            connection.sendall(answers[fault.kind]())
        else:
            connection.sendall(raw[: fault.at])
        if fault.kind == "trickle":
            for i in range(fault.at, len(raw)):
                if over.wait(0.01):
                    break
                connection.sendall(raw[i : i + 1])


def _answer(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    return (head + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode() + body
