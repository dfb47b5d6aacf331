"""gradio without the type hints that it writes for editors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_hints() -> Iterator[None]:
    """Component classes that come to be meanwhile get no `.pyi` file; `import gradio` is faster.

    gradio parses the source of each of its components and renders the file beside it anew, at
    every start: a quarter of what the app computes until its first page. It passes over a class
    whose source it does not find.
    """
    find = inspect.getfile

    def find_others(thing: Any) -> str:
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("its source is not looked for")
        return find(thing)

    inspect.getfile = find_others  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = find
