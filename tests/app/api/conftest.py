"""Images and requests for the API, and a check of its refusals."""

import base64
from pathlib import Path
from typing import Any

import httpx

from tests.app.conftest import draw, saved
from tests.app.serving import Server

ROOT = Path(__file__).parents[3]


def encoded(index: int) -> bytes:
    """A drawn image as a PNG."""
    return saved(draw(index)[0], "PNG")


def data_uri(content: bytes) -> str:
    """Encodes a file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def ask(server: Server, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    """Sends a request on a new connection."""
    url = f"{server.url}{path}"
    return httpx.request(method, url, timeout=60, verify=False, **options)  # loads no certificates


def refused(reply: Any, status: int) -> str:
    """Checks a refusal: its status, no local path, no CORS header; returns its message."""
    assert reply.status_code == status, reply.text[:500]
    assert reply.json().keys() == {"error"}
    sentence = str(reply.json()["error"])
    assert 10 < len(sentence) < 300
    assert not any(f"/{folder}/" in sentence for folder in ("tmp", "root", "home", "work", "usr"))
    assert not [name for name in reply.headers if name.startswith("access-control")]
    return sentence
