"""The app is started, and answers one user and several at once alike."""

import re
from pathlib import Path

import pytest

from benchmarks import serving


@pytest.mark.slow
def test_the_app_answers_all_of_them(tiny_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--pack", str(tiny_pack), "--users", "3", "--queries", "2"]
    assert serving.main(arguments) == 0
    _, start, one, many, memory = capsys.readouterr().out.splitlines()
    page = r"first page [\d.]+ s \([\d.]+ s of CPU\), first answer [\d.]+ s later"
    assert re.match(rf"{page}, .* RSS \d+ MB", start)
    assert one.startswith("one user: p50 ")
    assert many.startswith("3 users: p50 ")
    assert "6 answers, 0 wrong or missing" in one
    assert "6 answers, 0 wrong or missing" in many
    assert re.fullmatch(r"RSS \d+ MB after 13 questions", memory)


@pytest.mark.slow
def test_clients_are_counted(
    tiny_pack: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "QUESTIONS", 60)
    assert serving.main(["--pack", str(tiny_pack), "--server"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert re.search(r": 16 clients \d+ answers/s \([\d.]+ ms of CPU each\), 50 clients \d+", line)


@pytest.mark.slow
def test_wrong_and_missing_answers_are_noticed(tiny_pack: Path) -> None:
    questions = [("a dog", "vsepp"), ("a cat", "vsepp"), ("a cat", "no such method")]
    with serving.running(tiny_pack) as (url, process):
        serving.starting(url, process, questions[0])
        _, answers = serving.ask_all(url, [questions[:2]], {})
        answers[questions[0]] = [(image, score + 1) for image, score in answers[questions[0]]]
        load, _ = serving.ask_all(url, [[question] for question in questions], answers)
    assert len(load.spent) == 1
    wrong, missing = sorted(load.failures, reverse=True)
    assert "a dog: ValueError: another answer" in wrong
    assert "no such method, a cat: HTTPStatusError" in missing


def test_nobody_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serving.main(["--users", "0"])
    assert "--users and --queries must be at least 1" in capsys.readouterr().err
