"""A Hub of our own for the tests of packs that are fetched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.export.hub_server import HubState, running_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubState]:
    """A server; this process and those it starts know nothing but it."""
    places = {"HF_HUB_CACHE": tmp_path / "hub", "HF_TOKEN_PATH": tmp_path / "no-token"}
    for name, place in places.items():
        monkeypatch.setattr(constants, name, str(place))
        monkeypatch.setenv(name, str(place))
    for name, on in (("HF_HUB_DISABLE_XET", True), ("HF_HUB_OFFLINE", False)):
        monkeypatch.setattr(constants, name, on)
        monkeypatch.setenv(name, str(int(on)))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_hub() as state:
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        yield state
