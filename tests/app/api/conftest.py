"""Images as they are sent to the app."""

import base64
import io
from pathlib import Path

from tests.app.conftest import draw

ROOT = Path(__file__).parents[3]


def encoded(index: int) -> bytes:
    """A drawn image as a PNG."""
    file = io.BytesIO()
    draw(index)[0].save(file, "PNG")
    return file.getvalue()


def data_uri(content: bytes) -> str:
    """A file as it is sent in JSON."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
