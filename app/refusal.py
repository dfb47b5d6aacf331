"""Refusals, which are sent in place of answers, and the parsing of JSON bodies."""

from __future__ import annotations

import logging
import traceback
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from starlette.responses import JSONResponse

MAX_VALUES = 20_000  # values in a JSON body, estimated by counting separators
_log = logging.getLogger(__name__)


class Refusal(ValueError):  # noqa: N818 an expected answer, not an error of the app
    """The HTTP status and message of a refused request, and the seconds to `wait` (0 for none)."""

    def __init__(self, status: int, message: str, wait: int = 0) -> None:
        super().__init__(message)
        self.status, self.wait = status, wait

    @classmethod
    def for_unexpected(cls, error: Exception, operation: str) -> Refusal:
        """Logs an unexpected error without its traceback; returns a refusal with status 500."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        _log.error("%s failed: %s: %.200s", operation, summary, error)
        return cls(500, "internal error; try a different request")

    def response(self) -> JSONResponse:
        """Returns the refusal as a JSON response."""
        headers = {"retry-after": str(self.wait)} if self.wait else None
        return JSONResponse({"error": str(self)}, self.status, headers)


def read_json(body: bytes) -> dict[str, Any]:
    """Parses a JSON object; raises `Refusal` for other bodies and for too many values."""
    # count before parsing: 70 MB of brackets would become 23 million lists
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise Refusal(413, f"the body has too many values; send at most {MAX_VALUES:,}")
    try:
        value = from_json(body.removeprefix(BOM_UTF8))  # rejects lone surrogates
    except ValueError:
        raise Refusal(400, "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value
