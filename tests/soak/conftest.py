"""Fixtures of the app's tests, and the kinds of damaged input."""

from pathlib import Path

import pytest

from tests.app.conftest import serve, tiny_pack
from tests.soak.test_fuzz import Target, targets

__all__ = ["serve", "tiny_pack"]


@pytest.fixture(scope="module")
def kinds(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    """The kinds of damaged input, over one copy of the pack."""
    return targets(tiny_pack, tmp_path_factory.mktemp("fuzz"))
