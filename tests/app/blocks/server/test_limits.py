"""What one client may ask, by a clock that the test turns."""

from __future__ import annotations

from collections.abc import Iterator

from app.blocks.server import limits
from app.blocks.server.limits import BURST, OPEN, RATE, UPLOADS, WAITING, Limits


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_a_burst_and_then_a_rate() -> None:
    clock = Clock()
    kept = Limits(clock=clock)
    asked = [kept.check("a", costs=True, asks=False) for _ in range(int(BURST) + 5)]
    refused = [refusal for refusal in asked if refusal is not None]
    assert [refusal.status for refusal in refused] == [429] * 5
    assert all(refusal.wait for refusal in refused)
    assert kept.check("b", costs=True, asks=False) is None
    files = [kept.check("c", costs=False, asks=False) is None for _ in range(int(BURST) * 10 + 5)]
    assert files.count(True) in (int(BURST) * 10 - 1, int(BURST) * 10)  # a tenth each, rounded
    clock.now += 1
    again = [kept.check("a", costs=True, asks=False) is None for _ in range(int(RATE) + 5)]
    assert again == [True] * int(RATE) + [False] * 5


def test_open_requests_are_bounded() -> None:
    kept = Limits()
    entered = [kept.entered("a") for _ in range(OPEN)]
    for one in entered:
        one.__enter__()
    refusal = kept.check("a", costs=False, asks=False)
    assert refusal is not None
    assert refusal.status == 429
    assert kept.check("b", costs=False, asks=False) is None
    entered[0].__exit__(None, None, None)
    assert kept.check("a", costs=False, asks=False) is None


def test_waiting_questions_are_bounded() -> None:
    waiting = ["b", *["a"] * (WAITING - 1)]

    def clients() -> Iterator[str]:
        return iter(waiting)

    kept = Limits(clients)
    assert kept.check("a", costs=True, asks=True) is None
    waiting.append("a")
    refusal = kept.check("a", costs=True, asks=True)
    assert refusal is not None
    assert refusal.status == 429
    assert kept.check("b", costs=True, asks=True) is None


def test_requests_of_assistants_are_questions() -> None:
    kept = Limits()
    entered = [kept.entered("a", waits=True) for _ in range(WAITING)]
    for one in entered:
        one.__enter__()
    refusal = kept.check("a", costs=True, asks=True)
    assert refusal is not None
    assert refusal.status == 429
    assert kept.check("b", costs=True, asks=True) is None


def test_uploads_have_an_hourly_quota() -> None:
    clock = Clock()
    kept = Limits(clock=clock)
    assert all(kept.check_upload("a", 1) is None for _ in range(UPLOADS))
    refusal = kept.check_upload("a", 1)
    assert refusal is not None
    assert refusal.status == 429
    assert kept.check_upload("b", limits.UPLOAD_BYTES) is None
    assert kept.check_upload("b", 1) is not None
    clock.now += 3601
    assert kept.check_upload("a", 1) is None


def test_only_so_many_clients_are_remembered() -> None:
    kept = Limits()
    for number in range(limits._CLIENTS + 50):
        kept.check(str(number), costs=True, asks=False)
        kept.check_upload(str(number), 1)
    assert len(kept._left) == len(kept._sent) == limits._CLIENTS
