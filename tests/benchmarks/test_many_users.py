"""Many users at once: what is asked, what is noticed, and the whole run on a tiny pack."""

import re
import threading
from pathlib import Path

import pytest

from benchmarks import many_users
from benchmarks.many_users import AskError, Hits, Load, Question, measure, plans


def right(question: Question) -> Hits:
    """The answer of an app that works."""
    return [(len(question.text), 0.5), (len(question.method), 0.25)]


def test_everybody_asks_something_else_and_methods_take_turns() -> None:
    asked = plans([f"caption {i}" for i in range(100)], ["a", "b", "c"], users=5, each=6)
    assert [len(questions) for questions in asked] == [6] * 5
    assert len({q.text for questions in asked for q in questions}) == 30
    for questions in asked:
        assert {q.method for q in questions} == {"a", "b", "c"}
    assert len({questions[0].method for questions in asked}) == 3  # not all begin with the same


def test_a_mixed_up_answer_and_an_error_are_noticed() -> None:
    asked = plans([f"{'x' * i} caption" for i in range(12)], ["a"], users=3, each=4)
    alone, reference = measure([right], [[q for qs in asked for q in qs]], None, 60)
    assert len(alone.spent) == 12
    stolen, refused = asked[1][2], asked[2][0]

    def confused(question: Question) -> Hits:
        if question == refused:
            raise AskError("the queue is full")
        return right(asked[0][0]) if question == stolen else right(question)

    load, _ = measure([confused] * 3, asked, reference, 60)
    assert load.wrong == [stolen]
    assert load.errors == ["AskError: the queue is full"]
    assert len(load.spent) == 11
    assert "11 answers, 1 wrong, 1 errors" in str(load)


def test_users_ask_at_the_same_time() -> None:
    together = threading.Barrier(4)

    def ask(question: Question) -> Hits:
        together.wait(30)  # breaks unless all four ask at once
        return right(question)

    load, _ = measure([ask] * 4, [[Question(str(i), "a")] for i in range(4)], None, 60)
    assert load.errors == []
    assert len(load.spent) == 4


def test_nobody_asks_after_the_time_is_up() -> None:
    load, answers = measure([right], [[Question("late", "a")]], None, -1)
    assert (load.spent, answers) == ([], {})
    assert str(Load(errors=["x"])) == "no answers, 1 errors"


@pytest.mark.slow
def test_the_app_answers_all_of_them(tiny_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--pack", str(tiny_pack), "--users", "3", "--queries", "2"]
    assert many_users.main(arguments) == 0
    _, machine, start, *ways = capsys.readouterr().out.splitlines()
    assert "cores, device cpu" in machine
    assert re.match(r"first page after [\d.]+ s, its first answer [\d.]+ s later", start)
    assert [way.partition(":")[0] for way in ways] == [
        "gradio, one user", "gradio, 3 users", "HTTP API, one user", "HTTP API, 3 users"
    ]  # fmt: skip
    assert all("6 answers, 0 wrong, 0 errors" in way for way in ways)


@pytest.mark.parametrize("option", ["users", "queries", "seconds"])
def test_nonsense_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        many_users.main([f"--{option}", "0"])
    assert f"--{option} must be at least 1" in capsys.readouterr().err
