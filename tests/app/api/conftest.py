"""The app in a process of its own, and images as they are sent to it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.conftest import draw
from tests.app.serving import Serve, servers
from tests.app.serving import Server as Running

__all__ = ["ROOT", "Run", "Running", "data_uri", "encoded", "run"]
Run = Serve
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Starts `python app/main.py` with arguments, and waits until everything is searchable."""
    with servers(lambda: tmp_path_factory.mktemp("server")) as start:
        yield start


def encoded(index: int) -> bytes:
    """A drawn image as a PNG."""
    file = io.BytesIO()
    draw(index)[0].save(file, "PNG")
    return file.getvalue()


def data_uri(content: bytes) -> str:
    """A file as it is sent in JSON."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
