"""What many questions leave in memory: nearly nothing."""

from __future__ import annotations

from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from tests.app.api.conftest import data_uri, encoded
from tests.app.serving import Server

TEXTS = [f"a {colour} circle beside a bar" for colour in ("red", "green", "blue", "pink")]


def megabytes(process: int) -> float:
    """The resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("calls", [30, pytest.param(5000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_questions_leave_nothing_in_memory(private: Server, calls: int) -> None:
    image, lost = data_uri(encoded(3)), list[int]()

    def ask(number: int) -> None:
        text = TEXTS[number % len(TEXTS)]
        private.get("search", q=text, k=5)
        private.get("explain/hits", q=text, images="1,2,3")
        try:
            assert isinstance(private.predict("search_text", query=text, k=5), dict)
            if number % 10 == 0:
                assert isinstance(private.predict("search_image", image=image), dict)
        except CancelledError:  # its stream closed as a query was sent, see gradio-app/gradio#13760
            lost.append(number)

    for number in range(20):  # what the first ones load and keep
        ask(number)
    before = megabytes(private.process)
    for number in range(calls):
        ask(number)
    after = megabytes(private.process)
    print(f"{before:.0f} MB, after {calls} calls {after:.0f} MB")
    assert after < before * 1.05
    assert len(lost) <= calls / 1000
