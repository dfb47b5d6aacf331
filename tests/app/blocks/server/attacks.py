"""A stranger's requests, sent without a client that would check anything first."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import httpx

API = "/gradio_api"


def ask(url: str, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    """One request on a connection of its own."""
    return httpx.request(method, f"{url}{path}", timeout=60, **options)


def post(url: str, path: str, body: Any, **headers: str) -> httpx.Response:
    """Sends JSON; `_` in the name of a header stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(url, f"{API}/{path}", "POST", json=body, headers=named)


def refused(reply: httpx.Response, status: int) -> str:
    """The sentence of a refusal, which tells nothing of this machine."""
    assert reply.status_code == status, reply.text[:500]
    assert reply.json().keys() == {"error"}
    sentence = str(reply.json()["error"])
    assert 10 < len(sentence) < 300
    assert not any(f"/{folder}/" in sentence for folder in ("tmp", "root", "home", "work", "usr"))
    return sentence


def connect(url: str, source: str = "") -> socket.socket:
    """A connection on which nothing was sent yet, from an address of this machine."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    own = (source, 0) if source else None
    return socket.create_connection((address.hostname, address.port), 30, own)


def upload(url: str, content: bytes, name: str = "mine.png", **headers: str) -> httpx.Response:
    """Uploads a file."""
    return ask(url, f"{API}/upload", "POST", files={"files": (name, content)}, headers=headers)


def image(path: str) -> dict[str, Any]:
    """A file as gradio names one in a request."""
    return {"path": path, "meta": {"_type": "gradio.FileData"}}
