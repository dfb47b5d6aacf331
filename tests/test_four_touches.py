"""A new method needs only a class, an objective and a recipe.

The test registers a toy method, which training, export, evaluation, the model card, search and
evidence then find in the registries.
"""

from pathlib import Path

import pytest

from polyview.app.api.library import Library
from polyview.export import to_onnx
from polyview.models import METHODS
from polyview.models.mvam import BaseAttention
from polyview.training import evaluate
from polyview.training.objectives import OBJECTIVES
from polyview.training.objectives.losses import Triplet
from tests.export.conftest import write_gallery
from tests.training.conftest import RECIPE, run_training, write_encoder, write_photographs


class Toy(BaseAttention):
    """MVAM's baseline under a name that is not in the code."""

    title = "Toy method"
    paper = "Nobody, nowhere, this year"


@pytest.mark.slow
def test_a_toy_method_is_trained_exported_evaluated_and_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(OBJECTIVES, "toy", Triplet)
    monkeypatch.setitem(METHODS, "toy", Toy)
    data = write_photographs(tmp_path / "photographs", {"train": 8, "val": 4})
    backbone, gallery = write_encoder(tmp_path / "backbone"), write_gallery(tmp_path / "own", 12)
    recipe, run, pack = tmp_path / "toy.toml", tmp_path / "run", tmp_path / "pack"
    recipe.write_text(RECIPE.format(method="toy"))
    settings = "batch_size=4", "objective.margin=0.3"
    run_training(recipe, run, f"data={data}", f"backbone={backbone}", *settings)
    made = ("--backbone", backbone, "--run", run, "--gallery", gallery, "--out", pack)
    assert to_onnx.main([*map(str, made), "--licence", "MIT"]) == 0
    assert "toy" in capsys.readouterr().out
    evaluate.main(["--pack", str(pack), "--all"])
    assert "toy" in capsys.readouterr().out
    assert "Toy method" in (pack / "README.md").read_text("utf-8")

    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "cache"))
    with Library(pack) as library:
        hits = library.search("a red dog", 3)
        assert hits[0].score >= hits[1].score >= hits[2].score
        why = library.explain("a red dog", hits[0])
    assert why.base + why.cells.sum() == pytest.approx(hits[0].score, abs=1e-5)
