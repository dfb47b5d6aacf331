"""The fuzz in short; see `tests/soak/fuzz.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.conftest import Serve
from tests.soak import checks
from tests.soak.fuzz import SHARES, fuzz, questions, targets

_CASES = 25


@pytest.mark.parametrize("kind", SHARES)
def test_damaged_input_is_used_or_refused(kind: str, tiny_pack: Path, tmp_path: Path) -> None:
    values, check = targets(tiny_pack, tmp_path)[kind]
    fuzz(values, check, _CASES, repeated=True)


def test_events_answer_whatever_they_are_asked(serve: Serve, tiny_pack: Path) -> None:
    server = serve("--pack", tiny_pack)
    caller = checks.Caller(server.url)
    huge = 10**400
    known: list[checks.Question] = [
        ("search_text", ["a", "vsepp", huge, None]),
        ("search_text", ["a", "vsepp", 1e308, None]),
        ("lens", ["a", "vsepp", [huge], 3]),
        ("views", [huge, "vsepp", ""]),
        ("compare", ["a", ["vsepp", "vse_infty"], huge]),
        ("show_words", [None] * 11),
    ]
    def ask_some(ask: Callable[[checks.Question], None]) -> None:
        for question in known:
            ask(question)
        fuzz(questions(caller), ask, 30, repeated=True)

    caller.ask_all(ask_some)
    assert server.ask("search_text", "a red circle", "vsepp", 3)["hits"]
