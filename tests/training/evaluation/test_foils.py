"""True captions beside false ones: the measurement, against one score at a time."""

import json
from pathlib import Path

import pytest

from polyview.export.runtime import Runtime
from polyview.training.data.open_split import from_pack
from polyview.training.evaluate import main
from polyview.training.evaluation.kinds import foil_metrics
from polyview.training.scenes.foils import KINDS
from tests.training.sample import BUNDLED


@pytest.mark.parametrize("method", ["vse_infty", "avse"])
def test_a_share_is_what_single_scores_say(method: str) -> None:
    runtime, data = Runtime.load(BUNDLED, "cpu"), from_pack(BUNDLED, "test")
    assert data.foils is not None
    foils = [foil for foil in data.foils() if foil.image < 6]
    features = [runtime.image_features([data.images[row]]) for row in range(6)]
    views = [runtime.image_views(each, method) for each in features]
    together = runtime.image_views(
        runtime.image_features([data.images[row] for row in range(6)]), method
    )
    results = foil_metrics(runtime, method, together, foils)
    for kind in {foil.kind for foil in foils}:
        right = []
        for foil in [foil for foil in foils if foil.kind == kind]:
            texts = runtime.text_views([foil.true, foil.false], method)
            true, false = runtime.methods[method].score(views[foil.image], texts)[0].tolist()
            right.append(true > false)
        assert results[f"foil_{kind}"] == pytest.approx(100 * sum(right) / len(right))
        assert results[f"foil_{kind}_pairs"] == len(right)


def test_who_cannot_tell_gets_half() -> None:
    runtime, data = Runtime.load(BUNDLED, "cpu"), from_pack(BUNDLED, "test")
    assert data.foils is not None
    same = [foil._replace(false=foil.true) for foil in data.foils() if foil.image == 0]
    views = runtime.image_views(runtime.image_features([data.images[0]]), "vsepp")
    results = foil_metrics(runtime, "vsepp", views, same)
    assert {results[key] for key in results if key.removeprefix("foil_") in KINDS} == {50.0}


@pytest.mark.font
def test_the_command_prints_and_writes_them(
    scenes_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "found.json"
    arguments = ["--method", "vsepp", "--foils", "--json", str(written)]
    main(["--pack", str(BUNDLED), "--data", str(scenes_folder), "--split", "val", *arguments])
    shares = json.loads(written.read_text())["methods"]["vsepp"]
    line = next(
        x for x in capsys.readouterr().out.splitlines() if x.startswith("| vsepp | ") and "±" in x
    )
    query = [kind for kind in KINDS if f"foil_{kind}" in shares]
    assert len(query) > 5
    assert all(f"{shares[f'foil_{kind}']:.1f} ± " in line for kind in query)
