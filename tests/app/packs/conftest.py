"""The state of a private app over the tiny pack, and the Hub of the export tests."""

from pathlib import Path

import pytest

from polyview.app.packs.state import AppState
from polyview.app.settings import Settings
from tests.export.conftest import server as hub

__all__ = ["hub"]


@pytest.fixture
def state(tiny_pack: Path, tmp_path: Path) -> AppState:
    return AppState(Settings(str(tiny_pack), device="cpu"), tmp_path / "app")
