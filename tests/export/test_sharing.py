"""Questions that are answered at once share the processors."""

import threading

import pytest
import torch

from export import sessions
from export.sessions import shared_processors


def test_questions_share_the_processors_and_give_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_TORCH_THREADS", 4)
    asked, seen = threading.Barrier(2), list[int]()

    def ask() -> None:
        with shared_processors(sessions.MANY):
            asked.wait()
            asked.wait()  # both are being answered
        seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    other = threading.Thread(target=ask)
    other.start()
    asked.wait()
    try:
        with shared_processors(sessions.MANY):
            assert torch.get_num_threads() == 2
            asked.wait()
        assert torch.get_num_threads() == 4
        with shared_processors(sessions.MANY):
            assert torch.get_num_threads() >= 2
        with shared_processors(sessions.MANY - 1):
            assert torch.get_num_threads() == 1
    finally:
        other.join()
        torch.set_num_threads(before)
    assert seen == [4]


def test_they_are_given_back_after_a_mistake() -> None:
    before = sessions._asked
    with pytest.raises(ValueError, match="mistake"), shared_processors(1):
        raise ValueError("mistake")
    assert sessions._asked == before
    assert torch.get_num_threads() == sessions._TORCH_THREADS
