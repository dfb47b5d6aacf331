"""Perfect readers: what they reach is what guessing among the true reaches on average."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.evaluation.metrics import retrieval_metrics
from training.scenes.readers import READERS, expected_recalls, main, reader_recalls
from training.scenes.relevance import without
from training.scenes.store import load_scenes

FACT: dict[str, Any] = {
    "objects": [{"name": "dog", "count": 2, "color": "brown"}, {"name": "cat"}],
    "relations": [{"kind": "left_of", "of": [0, 1]}],
    "setting": "beach",
}


def test_expected_recalls_are_the_mean_over_guesses() -> None:
    random = np.random.default_rng(0)
    image_of = np.repeat(np.arange(12), 2)
    true = random.random((12, 24)) < 0.3
    true[image_of, np.arange(24)] = True
    expected = expected_recalls(true, image_of)
    draws = [
        retrieval_metrics(true + 0.5 * random.random(true.shape), image_of) for _ in range(2000)
    ]
    for name, value in expected.items():
        guessed = np.mean([metrics[name] for metrics in draws])
        assert value == pytest.approx(guessed, abs=2.5 if name == "rsum" else 1.0), name


def test_who_knows_everything_of_distinct_images_finds_all() -> None:
    values = expected_recalls(np.repeat(np.eye(3, dtype=np.bool_), 2, axis=1), np.arange(6) // 2)
    assert values["rsum"] == 600
    nothing = expected_recalls(np.ones((20, 20), np.bool_), np.arange(20))
    assert [*nothing.values()] == pytest.approx([5, 25, 50] * 2 + [160])


def test_what_nobody_reads_is_not_in_the_fact() -> None:
    assert without(FACT, ()) == FACT
    alone = {"objects": [{"name": "dog"}, {"name": "cat"}]}
    assert without(FACT, READERS["things alone"]) == alone
    assert FACT["objects"][0]["count"] == 2
    assert without({"setting": "beach"}, ("setting",)) == {}


def test_who_knows_less_reaches_less(
    scenes_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenes = load_scenes(scenes_folder / "train").scenes
    sums = {title: reader_recalls(scenes, unread)["rsum"] for title, unread in READERS.items()}
    everything, no_relations, no_numbers, *less = sums.values()
    assert everything >= max(no_relations, no_numbers)
    assert [min(no_relations, no_numbers), *less] == sorted([min(no_relations, no_numbers), *less])[
        ::-1
    ]
    assert everything > less[-1]
    assert main(["--data", str(scenes_folder / "train")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == list(READERS)
    assert lines[2].endswith(f"{everything:.1f} |")


def test_a_folder_without_scenes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
