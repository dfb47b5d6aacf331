"""Folders that one process of a test run makes for all processes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_root(factory: pytest.TempPathFactory) -> Path:
    """Returns the temporary folder that all processes of a run share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a read-only folder, which `make` fills in the first process that needs it."""
    root = shared_root(factory)
    with FileLock(root / f"{name}.lock"):
        if not (root / name).is_dir():
            draft = factory.mktemp(name)
            make(draft)
            draft.rename(root / name)
    return root / name
