"""Coroutines in tests, which may follow a test that drives a browser."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs it in a thread of its own: this one has a loop where a browser is open."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
