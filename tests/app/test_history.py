"""The history: newest first, each question once."""

from __future__ import annotations

from app.asking import Ask
from app.history import MOST, remember, title


def test_newest_first_and_each_once() -> None:
    asked: tuple[Ask, ...] = ()
    for words in ("a dog", "a cat", "a  dog "):
        asked = remember(asked, Ask("words", words=words))
    assert [title(ask) for ask in asked] == ["a dog", "a cat"]


def test_a_picture_makes_another_question() -> None:
    asked = remember((), Ask("words", words="a dog"))
    asked = remember(asked, Ask("upload", words="a dog", path="/x/mine.png"))
    asked = remember(asked, Ask("picture", image_id=4))
    asked = remember(asked, Ask("picture", image_id=5))
    asked = remember(asked, Ask("upload", words="a dog", path="/x/mine.png", weight=2.0))
    assert [title(ask) for ask in asked] == [
        "mine.png with “a dog”", "like picture 5", "like picture 4", "a dog",
    ]  # fmt: skip
    assert asked[0].weight == 2.0


def test_a_sample_is_no_question_and_old_ones_go() -> None:
    asked = remember((), Ask())
    assert asked == ()
    for i in range(MOST + 5):
        asked = remember(asked, Ask("words", words=str(i)))
    assert len(asked) == MOST
    assert asked[0].words == str(MOST + 4)
