"""The examples in docstrings, of every module that has any."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("polyview", "models", "export", "training", "app")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
EXAMPLES = [path.relative_to(ROOT) for path in FILES if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_examples(path: Path) -> None:
    parts = path.with_suffix("").parts
    name = ".".join(parts if parts[0] == "polyview" else ("polyview", *parts))
    result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert result.attempted
    assert not result.failed
