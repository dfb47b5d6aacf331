"""The fuzz in short; see `tests/soak/fuzz.py`."""

from pathlib import Path

import pytest

from tests.soak.fuzz import SHARES, fuzz, targets

_CASES = 25


@pytest.mark.parametrize("kind", SHARES)
def test_damaged_input_is_used_or_refused(kind: str, tiny_pack: Path, tmp_path: Path) -> None:
    values, check = targets(tiny_pack, tmp_path)[kind]
    fuzz(values, check, _CASES, repeated=True)
