"""The headroom figure: what one command trains, measures, draws and writes."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from tests.training.conftest import write_regions
from training import headroom
from training.evaluation.metrics import retrieval_metrics
from training.evaluation.statistics import choice_of_views
from training.experiments import headroom as definition
from training.experiments import study
from training.experiments.headroom import COLUMNS, headroom_lines, load_headroom, points_of
from training.experiments.results import PAGE, replace_part
from training.loop.runs import LAST
from training.study import RESULTS

pytestmark = pytest.mark.slow

RECIPE = """
method = "{method}"
arguments = {{ embed_dim = 8 }}
epochs = 3
batch_size = 24
data = "{data}"
backbone = ""
text = {{ word_dim = 8, hidden_dim = 16 }}
"""
STUDY = """
about = "Toys."
split = "test"
seeds = [0]
baseline = "one"
trial = ["epochs=2"]
[grid]
"optimizer.learning_rate" = [1e-9, 5e-3]
[[rows]]
label = "one"
recipe = "{folder}/vse_infty.toml"
[[rows]]
label = "several"
recipe = "{folder}/mv_vse.toml"
[[rows]]
label = "not drawn"
recipe = "{folder}/vse_infty.toml"
settings = ["text.hidden_dim=4"]
"""
FIGURE = """
study = "toys"
about = "Room."
here = "It works."
[[curves]]
label = "one vector"
row = "one"
points = ["arguments.embed_dim=4", "arguments.embed_dim=8", "arguments.embed_dim=12"]
[[curves]]
label = "models"
row = "one"
points = ["arguments.embed_dim=4"]
seeds = [0, 1, 2]
[[curves]]
label = "views"
row = "several"
points = ["arguments.embed_dim=4 arguments.views=2"]
"""
DEFINED = sorted(path.stem for path in definition.FOLDER.glob("*.toml"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A figure over a study of two toy recipes, ready-made features, and a page."""
    data = write_regions(tmp_path / "data")
    for method in ("vse_infty", "mv_vse"):
        (tmp_path / f"{method}.toml").write_text(RECIPE.format(method=method, data=data))
    studies, figures = tmp_path / "studies", tmp_path / "figures"
    for folder in (studies, figures):
        folder.mkdir()
    (studies / "toys.toml").write_text(STUDY.format(folder=tmp_path))
    (figures / "toys.toml").write_text(FIGURE)
    monkeypatch.setattr(study, "FOLDER", studies)
    monkeypatch.setattr(definition, "FOLDER", figures)
    (tmp_path / PAGE.name).write_text("Before.\n<!-- headroom_toys --><!-- /headroom_toys -->\n")
    return tmp_path


def run(world: Path, *more: str) -> int:
    return headroom.main(["toys", "--out", f"{world}/runs", "--results", str(world), *more])


def test_one_command_trains_measures_and_draws(world: Path) -> None:
    assert run(world) == 0
    runs = list((world / "runs").glob(f"*/{LAST}"))
    assert len(runs) == 9  # 2 rows by 2 rates, one of which is the point of 8; 5 others
    result = json.loads((world / "headroom_toys.json").read_text())
    assert result["command"] == "python -m training.headroom toys"
    assert result["trainings"].startswith("6 trainings of ")
    assert result["chosen"]["one"] == "optimizer.learning_rate=0.005"  # at the other none learns
    assert "not drawn" not in result["chosen"]
    points = points_of(result)
    shown = [[p[key] for key in ("curve", "models", "views", "dim", "total")] for p in points]
    assert shown == [
        ["one vector", 1, 1, 4, 4],
        ["one vector", 1, 1, 8, 8],
        ["one vector", 1, 1, 12, 12],
        ["models", 2, 1, 4, 8],
        ["models", 3, 1, 4, 12],
        ["views", 1, 2, 4, 8],
    ]
    for point in points[:3]:
        assert point["oracle_view"] is None
        assert point["above_total"] is None
    for point, alike in zip(points[3:], (points[1], points[2], points[1]), strict=True):
        assert point["oracle_view"] >= point["best_view"]
        assert point["above_total"] == pytest.approx(point["rsum"] - alike["rsum"], abs=0.2)
        assert point["low"] <= point["above_total"] <= point["high"]
        assert point["above_view"] == pytest.approx(point["rsum"] - points[0]["rsum"], abs=0.2)
    assert points[3]["rsum"] == points[3]["mean_of_views"]  # an ensemble averages
    assert points[5]["rsum"] == points[5]["max_of_views"]  # MV-VSE's score is the maximum
    assert -1 <= points[5]["view_cosine"] <= 1
    assert 50 <= points[5]["wins_top"] <= 100
    page = (world / PAGE.name).read_text()
    assert page.startswith("Before.\n")
    assert "| views | 1 | 2 | 4 | 8 |" in page
    assert "![rsum against numbers an image and a view](headroom_toys.svg)" in page
    drawn = ET.parse(world / "headroom_toys.svg").getroot()
    words = [text for element in drawn.iter() if (text := (element.text or "").strip())]
    assert {"2 models", "3 models", "views", "oracle view"} <= set(words)


def test_running_again_trains_nothing_and_draws_the_same(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(world) == 0
    before = {path: path.read_bytes() for path in world.glob("headroom_toys.*")}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a training began")

    monkeypatch.setattr("training.experiments.trial.build_trainer", refuse)
    assert run(world) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_other_settings_leave_the_documents_alone(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (world / PAGE.name).read_text()
    assert run(world, "--set", "epochs=1") == 0
    assert (world / PAGE.name).read_text() == before
    assert not list(world.glob("headroom_toys.*"))
    assert (world / "runs" / "headroom_toys.svg").is_file()
    assert "| views | 1 | 2 | 4 | 8 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('row = "several"', 'row = "many"'), 'study toys has no row "many"; it has one, several'),
        (("points =", "point ="), "headroom toys: curves[0] "),
        (('study = "toys"', 'study = "moon"'), 'there is no study "moon"'),
        (("embed_dim=12", "embed_dim=none"), "embed_dim must"),
    ],
)
def test_nonsense_is_refused(
    world: Path, change: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = world / "figures" / "toys.toml"
    path.write_text(path.read_text().replace(*change))
    assert run(world) == 1
    assert said in capsys.readouterr().err


def test_an_unknown_figure_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headroom.main(["moon", "--results", str(world)]) == 1
    assert 'there is no headroom figure of "moon"; choose one of' in capsys.readouterr().err


def test_an_oracle_takes_for_each_query_the_view_that_is_right() -> None:
    image_of = np.array([0, 1])
    right, wrong = np.eye(2), 1 - np.eye(2)
    first = np.stack([right[0], wrong[1]])  # row 1 lies, and with it both columns
    found = choice_of_views(np.stack([first, right]), image_of)
    assert found["oracle_view"] == retrieval_metrics(right, image_of)["rsum"] == 600.0
    assert found["best_view"] == 600.0
    both = choice_of_views(np.stack([right, wrong]), image_of)
    assert both["mean_of_views"] == both["max_of_views"] == 400.0  # all tie, which counts as wrong
    lying = choice_of_views(np.stack([wrong, wrong]), image_of)
    assert lying["oracle_view"] == lying["best_view"] == 400.0


@pytest.mark.parametrize("name", DEFINED)
def test_every_figure_is_whole(name: str) -> None:
    found = load_headroom(name)
    rows = found.rows((), {curve.row: {} for curve in found.curves})
    assert len(rows) == sum(len(curve.points) for curve in found.curves)
    assert len({curve.label for curve in found.curves}) == len(found.curves)
    assert {config.seed for row in rows for (config,) in row.trainings} >= {0, 1, 2, 3}  # averaged


@pytest.mark.parametrize("name", DEFINED)
def test_the_page_here_says_what_the_file_says(name: str, tmp_path: Path) -> None:
    copy, key = tmp_path / "page.md", load_headroom(name).key
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    assert f"<!-- {key} -->" in copy.read_text("utf-8")
    path = RESULTS / f"{key}.json"
    if path.is_file():
        result = json.loads(path.read_text("utf-8"))
        assert result["columns"] == list(COLUMNS.values())
        replace_part(copy, key, headroom_lines(result))
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8"), f"python -m training.headroom {name}"
