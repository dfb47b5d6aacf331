"""The fuzz in short; see `tests/soak/fuzz.py`."""

import pytest

from tests.soak.fuzz import SHARES, Target, fuzz


@pytest.mark.parametrize("kind", SHARES)
def test_damaged_input_is_used_or_refused(kind: str, kinds: dict[str, Target]) -> None:
    fuzz(*kinds[kind], cases=25, repeated=True)
