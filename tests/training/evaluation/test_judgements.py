"""Agreement with people: tau-c against a plain loop, and which lines of a file count."""

import re
from pathlib import Path

import numpy as np
import pytest

from app.settings import BUNDLED, PHOTOGRAPHS
from tests.training.photographs import write_photographs
from training.data.photographs import open_photographs
from training.data.split import Split
from training.evaluate import main
from training.evaluation.judgements import read_judgements, tau_c


@pytest.fixture
def data(tmp_path: Path) -> Split:
    return open_photographs(write_photographs(tmp_path, {"test": 3}), "test")


def test_tau_c_is_that_of_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    scores, ratings = random.integers(0, 9, 60) / 9, random.integers(1, 5, 60)
    signs = [
        np.sign(scores[i] - scores[j]) * np.sign(ratings[i] - ratings[j])
        for i in range(60)
        for j in range(i)
    ]
    expected = sum(signs) * 2 * 4 / (60**2 * 3)  # Stuart (1953), four ratings
    assert tau_c(scores, ratings) == pytest.approx(expected)
    assert tau_c(np.zeros(60), ratings) == 0


def test_ratings_count_one_by_one_and_own_captions_do_not(data: Split, tmp_path: Path) -> None:
    lines = ["000.jpg\t001.jpg#2\t1\t1\t2", "001.jpg\t001.jpg#0\t4\t4\t4",
             "002.jpg\t000.jpg#4\t3\t4\t4", "gone.jpg\t000.jpg#0\t1\t1\t1",
             "002.jpg\t000.jpg#7\t1\t1\t1"]  # fmt: skip
    file = tmp_path / "expert.txt"
    file.write_text("\n".join(lines))
    found = read_judgements(file, data)
    assert found.images.tolist() == [0, 2]
    assert found.captions.tolist() == [7, 4]
    scores = np.zeros((3, 15))
    scores[2, 4] = 1
    ratings = np.array([1, 1, 2, 3, 4, 4])
    expected = 100 * tau_c(np.array([0, 0, 0, 1, 1, 1]), ratings)
    assert found.agreement(scores)["tau_c"] == pytest.approx(expected)
    assert expected == pytest.approx(100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("000.jpg\t001.jpg\t1\t1\t2", "line 1 is no judgement"),
        ("000.jpg\t001.jpg#1\t1\t2", "line 1 is no judgement"),
        ("000.jpg\t001.jpg#1\t1\t2\t5", "line 1 is no judgement"),
        ("other.jpg\t001.jpg#1\t1\t2\t3", "judges no photograph of this split"),
    ],
)
def test_other_files_are_refused(data: Split, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "expert.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_judgements(file, data)


def test_the_command_prints_it(
    data: Split, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "expert.txt"
    file.write_text("000.jpg\t001.jpg#0\t1\t1\t1\n002.jpg\t001.jpg#0\t4\t4\t4")
    given = ["--pack", str(BUNDLED / PHOTOGRAPHS), "--data", str(data.folder.parent)]
    main([*given, "--method", "vsepp", "--judgements", str(file), "--json", f"{tmp_path / 'r'}"])
    head, _, row, questions = capsys.readouterr().out.splitlines()
    assert questions == "0 of 60 everyday questions qualify; P@5 and first right need 20"
    column = head.split("|").index(" tau-c ")
    assert row.split("|")[column].strip() in {"100.0", "-100.0"}
    file.write_text("")
    with pytest.raises(SystemExit, match=r"expert\.txt judges no photograph"):
        main([*given, "--method", "vsepp", "--judgements", str(file)])
