"""True captions beside false ones: the measurement, against one score at a time."""

import json
from pathlib import Path

import pytest
from PIL import Image

from polyview.export.runtime import Runtime
from polyview.training.data.open_split import from_pack
from polyview.training.evaluate import main
from polyview.training.evaluation.kinds import foil_metrics
from polyview.training.scenes.foils import KINDS, Foil

BUNDLED = Path(__file__).parents[3] / "app" / "bundled"


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime.load(BUNDLED / "scenes", "cpu")


@pytest.fixture(scope="module")
def foils() -> list[Foil]:
    """Of the first scenes."""
    data = from_pack(BUNDLED / "scenes", "test")
    assert data.foils is not None
    return [foil for foil in data.foils() if foil.image < 6]


@pytest.mark.parametrize("method", ["vse_infty", "avse"])
def test_a_share_is_what_single_scores_say(
    runtime: Runtime, foils: list[Foil], method: str
) -> None:
    data = from_pack(BUNDLED / "scenes", "test")
    views = [
        runtime.image_views(runtime.image_features([data.images[row]]), method) for row in range(6)
    ]
    together = runtime.image_views(
        runtime.image_features([data.images[row] for row in range(6)]), method
    )
    results = foil_metrics(runtime, method, together, foils)
    for kind in KINDS:
        right = []
        for foil in foils:
            if foil.kind == kind:
                texts = runtime.text_views([foil.true, foil.false], method)
                true, false = runtime.methods[method].score(views[foil.image], texts)[0].tolist()
                right.append(true > false)
        if right:
            assert results[f"foil_{kind}"] == pytest.approx(100 * sum(right) / len(right))
            assert results[f"foil_{kind}_pairs"] == len(right)


def test_who_cannot_tell_gets_half(runtime: Runtime, foils: list[Foil]) -> None:
    foils = [foil._replace(false=foil.true) for foil in foils]
    views = runtime.image_views(runtime.image_features([Image.new("RGB", (224, 224))]), "vsepp")
    results = foil_metrics(runtime, "vsepp", views, [foil for foil in foils if foil.image == 0])
    assert {results[key] for key in results if key.removeprefix("foil_") in KINDS} == {50.0}


def test_captions_alone_are_refused() -> None:
    clips = ["--pack", str(BUNDLED / "scenes_moving"), "--method", "vsepp", "--foils"]
    with pytest.raises(SystemExit, match="are made of rendered scenes"):
        main(clips)


@pytest.mark.font
def test_the_command_prints_and_writes_them(
    scenes_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "found.json"
    arguments = ["--method", "vsepp", "--foils", "--json", str(written)]
    data = ["--data", str(scenes_folder), "--split", "val"]
    main(["--pack", str(BUNDLED / "scenes"), *data, *arguments])
    shares = json.loads(written.read_text())["methods"]["vsepp"]
    line = next(
        x for x in capsys.readouterr().out.splitlines() if x.startswith("| vsepp | ") and "±" in x
    )
    query = [kind for kind in KINDS if f"foil_{kind}" in shares]
    assert len(query) > 5
    assert all(f"{shares[f'foil_{kind}']:.1f} ± " in line for kind in query)
