"""Studies: which recipes they compare, what one command trains and writes, and the page."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.conftest import write_regions
from training import study
from training.data.split import Split
from training.experiments import study as definition
from training.experiments.results import PAGE, replace_part
from training.experiments.study import KEYS, load_study, study_lines
from training.loop.config import RECIPES, TrainConfig, load_recipe
from training.loop.runs import LAST

RECIPE = """
method = "vsepp"
arguments = {{ embed_dim = 16 }}
epochs = {epochs}
batch_size = 24
data = "{data}"
backbone = ""
text = {{ word_dim = 8, hidden_dim = 16 }}
optimizer = {{ learning_rate = 5e-3 }}
"""
STUDIES = sorted(path.stem for path in definition.FOLDER.glob("*.toml"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of two toy recipes, its photographs as ready-made features, and a page."""
    data = write_regions(tmp_path / "data")
    for name, epochs in (("short", 1), ("long", 3)):
        (tmp_path / f"{name}.toml").write_text(RECIPE.format(epochs=epochs, data=data))
    rows = "".join(
        f'[[rows]]\nlabel = "{name}, it"\nrecipe = "{tmp_path}/{name}.toml"\n{more}\n'
        for name, more in (("short", "seeds = [0, 1]"), ("long", 'settings = ["epochs=2"]'))
    )
    (tmp_path / "toy.toml").write_text(f'about = "Toys."\nhere = "It works."\n{rows}')
    monkeypatch.setattr(definition, "FOLDER", tmp_path)
    (tmp_path / PAGE.name).write_text("# Page\n<!-- toy --><!-- /toy -->\nAfter.\n")
    return tmp_path


def run(world: Path, *more: str) -> int:
    return study.main(["toy", "--out", f"{world}/runs", "--results", str(world), *more])


def test_one_command_trains_and_writes(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(world, "--set", "text.hidden_dim=12", "--write") == 0
    result = json.loads((world / "toy.json").read_text())
    assert result["command"] == "python -m training.study toy --set text.hidden_dim=12"
    (label, seeds, *values), (other, once, *rest) = result["rows"]
    assert (label, seeds, other, once) == ("short, it", 2, "long, it", 1)
    rsum = KEYS.index("rsum")
    assert values[rsum] == pytest.approx(sum(values[:rsum]), abs=0.4)
    assert values[rsum + 1] > 0  # the seeds differ
    assert rest[rsum + 1] is None
    assert len(list((world / "runs").glob(f"*/{LAST}"))) == 3
    page = (world / PAGE.name).read_text()
    assert "Toys." in page
    assert "It works." in page
    assert page.endswith("After.\n")
    assert "[3/3] long, it, seed 0: rsum" in capsys.readouterr().out


def test_of_twins_it_says_which_captions_are_above(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = definition.open_split

    def open_twins(data: Path, name: str) -> Split:
        split = opened(data, name)
        kinds = np.array(["side", "number"])[np.arange(len(split.captions)) % 2]
        return replace(split, alike=np.arange(split.image_count) // 2, kinds=kinds.tolist())

    monkeypatch.setattr(definition, "open_split", open_twins)
    assert run(world, "--write") == 0
    headings, *rows = json.loads((world / "toy.json").read_text())["twins"]
    assert headings == ["caption above its twin, %", "side", "number"]
    assert [row[0] for row in rows] == ["short, it", "long, it"]
    assert all(0 <= value <= 100 for row in rows for value in row[1:])
    page = (world / PAGE.name).read_text()
    assert page.index("| caption above its twin, % | side | number |") < page.index("It works.")


def test_other_settings_leave_the_page_alone(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = world / PAGE.name
    before = page.read_text()
    assert run(world, "--set", "epochs=1") == 0
    assert page.read_text() == before
    assert not (world / "toy.json").exists()
    kept = json.loads((world / "runs" / "toy.json").read_text())
    assert kept["command"] == "python -m training.study toy --set epochs=1"
    assert kept["here"] == ""
    said = capsys.readouterr().out
    assert "| short, it | 2 |" in said
    assert str(world / "runs" / "toy.json") in said


def test_what_is_trained_stays_trained(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(world) == 0
    before = (world / PAGE.name).read_text()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a training began")

    monkeypatch.setattr("training.experiments.trial.build_trainer", refuse)
    assert run(world) == 0
    assert (world / PAGE.name).read_text() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("about =", "abuot ="), "study toy "),
        (("recipe =", "recipes ="), "study toy: rows[0] "),
        (("short.toml", "gone.toml"), "there is no recipe"),
        (("epochs=2", "epochs=0"), "epochs must"),
    ],
)
def test_nonsense_is_refused(
    world: Path, change: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = world / "toy.toml"
    path.write_text(path.read_text().replace(*change))
    assert run(world) == 1
    assert said in capsys.readouterr().err
    assert not (world / "runs").exists()


def test_an_unknown_study_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["moon", "--results", str(world)]) == 1
    assert 'there is no study "moon"; choose one of' in capsys.readouterr().err


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_whole(name: str) -> None:
    found = load_study(name)
    assert found.about
    assert len({row.label for row in found.rows}) == len(found.rows)
    for row in found.rows:
        assert (RECIPES / f"{row.recipe}.toml").is_file()
        assert load_recipe(TrainConfig, row.recipe, found.settings)  # all of them know these


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_here_says_what_the_file_says(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    path = study.RESULTS / f"{name}.json"
    if path.is_file():
        replace_part(copy, name, study_lines(json.loads(path.read_text("utf-8"))))
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8"), f"python -m training.study {name}"


GRID = """
about = "Tried."
seeds = [0, 1]
split = "test"
baseline = "one"
trial = ["epochs=1"]
settings = ["epochs=2"]
grid = {{ "optimizer.learning_rate" = [1e-9, 5e-3] }}
[[rows]]
label = "one"
recipe = "{folder}/short.toml"
[[rows]]
label = "two"
recipe = "{folder}/short.toml"
settings = ["arguments.embed_dim=8"]
grid = {{ "text.hidden_dim" = [8, 12] }}
"""


def test_the_best_of_equally_many_trials_is_trained_with_every_seed(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (world / "toy.toml").write_text(GRID.format(folder=world))
    assert run(world, "--write") == 0
    result = json.loads((world / "toy.json").read_text())
    tried = result["trials"]
    assert next(iter(tried["one"])) == "optimizer.learning_rate=0.005"  # at the other none learns
    assert sorted(tried["two"]) == ["text.hidden_dim=12", "text.hidden_dim=8"]
    configs = [path.read_text() for path in (world / "runs").glob("*/config.toml")]
    assert len(configs) == 4 + 2 * 2
    assert sum("epochs = 1\n" in text for text in configs) == 4
    assert sum("learning_rate = 1e-09" in text for text in configs) == 1
    one, two = result["rows"]
    place = result["columns"].index("above one")
    assert one[place : place + 3] == [None] * 3
    above, low, high = two[place : place + 3]
    assert low <= above <= high
    rsum = result["columns"].index("rsum")
    assert above == pytest.approx(two[rsum] - one[rsum], abs=0.2)
    assert "two with text.hidden_dim=8, seed 0: rsum" in capsys.readouterr().out
    assert "- one: optimizer.learning_rate=0.005 " in (world / PAGE.name).read_text()


def test_rows_with_fewer_trials_are_no_comparison(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfair = GRID.format(folder=world).replace("[8, 12]", "[8]")
    (world / "toy.toml").write_text(unfair)
    assert run(world) == 1
    said = capsys.readouterr().err
    assert "every row must have as many trials, not 1 (two) and 2 (one)" in said
    (world / "toy.toml").write_text(unfair.replace('baseline = "one"', 'baseline = "three"'))
    assert run(world) == 1
    assert 'there is no row "three"' in capsys.readouterr().err
