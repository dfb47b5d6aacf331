"""`polyview check` finds nothing wrong with a pack that is right."""

import pytest

from polyview.app.settings import BUNDLED
from polyview.training import check


def test_it_passes_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    status = check.main([str(BUNDLED / "scenes"), "--pairs", "20"])
    assert "WRONG" not in capsys.readouterr().out
    assert status == 0
