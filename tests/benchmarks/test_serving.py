"""The benchmark of the app with one client and with several."""

import re
from pathlib import Path

import pytest

from benchmarks import serving
from tests.app.serving import Server


@pytest.mark.slow
def test_all_answers_are_measured(tiny_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serving.main(["--pack", str(tiny_pack), "--questions", "20"]) == 0
    _, line = capsys.readouterr().out.splitlines()
    page = r"first page [\d.]+ s \([\d.]+ s of CPU\), first answer [\d.]+ s later"
    clients = r"\d+ clients [\d.]+ answers/s \([\d.]+ ms of CPU each\)"
    end = r"RSS \d+ MB, 0 wrong or missing"
    assert re.search(rf": {page}, .* RSS \d+ MB, {clients}, {clients}, {end}$", line)


@pytest.mark.slow
def test_wrong_and_missing_answers_are_reported(private: Server) -> None:
    questions = [("a dog", "vsepp"), ("a cat", "vsepp"), ("a cat", "no such method")]
    reference: dict[serving.Question, serving.Hits] = {}
    assert not serving.ask(private.url, questions[:2], reference)
    reference[questions[0]] = [(image, score + 1) for image, score in reference[questions[0]]]
    wrong, missing = serving.ask(private.url, questions, reference)
    assert wrong == "vsepp, a dog: not the answer of a single client"
    assert missing.startswith("no such method, a cat: 400 ")


def test_no_questions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serving.main(["--questions", "0"])
    assert "--questions must be at least 1" in capsys.readouterr().err
