"""Methods move between packs of one encoder; the others stay as they are."""

from pathlib import Path

import pytest

from export.build import merge
from export.build.to_onnx import export_runs
from export.pack.reading import list_files, load_info, update_metrics
from export.runtime import Runtime
from tests.export.conftest import LABELS, write_backbone, write_run

METRICS = {"split": "test", "command": "c", "hardware": "h", "seed": 3, "values": {"rsum": 5.0}}


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A pack of two methods, one of a third and the second again, and one of another encoder."""
    root = tmp_path_factory.mktemp("merge")
    backbone, other = write_backbone(root / "backbone"), write_backbone(root / "other")
    first = [write_run(root / f"a_{name}", name, backbone) for name in ("vsepp", "mvam")]
    second = [write_run(root / f"b_{name}", name, backbone) for name in ("mvam", "pvse")]
    foreign = [write_run(root / "c_pvse", "pvse", other)]
    export_runs(root / "pack", backbone, first, LABELS)
    export_runs(root / "more", backbone, second, LABELS)
    export_runs(root / "foreign", other, foreign, LABELS)
    update_metrics(root / "pack", "vsepp", METRICS)
    update_metrics(root / "pack", "mvam", METRICS)
    return root / "pack", root / "more", root / "foreign"


def test_methods_are_replaced_and_added(packs: tuple[Path, Path, Path]) -> None:
    pack, more, _ = packs
    before, given = load_info(pack), load_info(more)
    assert before.files["mvam/head.safetensors"] != given.files["mvam/head.safetensors"]
    assert merge.main(["--pack", str(pack), "--source", str(more)]) == 0
    info = load_info(pack)  # every checksum holds
    assert list(info.methods) == ["vsepp", "mvam", "pvse"]
    assert info.methods["vsepp"] == before.methods["vsepp"]
    assert info.methods["mvam"].metrics is None  # what was measured spoke of other weights
    assert info.files["mvam/head.safetensors"] == given.files["mvam/head.safetensors"]
    assert set(list_files(info)) == {
        path.relative_to(pack).as_posix() for path in pack.rglob("*") if path.is_file()
    }
    texts = ["a red dog"]
    ours, theirs = (Runtime.load(p, "cpu").text_views(texts, "mvam") for p in (pack, more))
    assert ours.embeddings.equal(theirs.embeddings)
    assert not [path for path in pack.parent.iterdir() if path.name.startswith(".")]


def test_packs_that_do_not_fit_stay_as_they_are(
    packs: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pack, more, foreign = packs
    before = load_info(pack)
    assert merge.main(["--pack", str(pack), "--source", str(foreign)]) == 1
    assert "different image encoders" in capsys.readouterr().err
    assert merge.main(["--pack", str(pack), "--source", str(more), "--method", "avse"]) == 1
    assert 'no method "avse"; choose one of mvam, pvse' in capsys.readouterr().err
    assert merge.main(["--pack", f"{pack}s", "--source", str(more)]) == 1
    assert f"there is no pack folder {pack}s; did you mean {pack}?" in capsys.readouterr().err
    assert load_info(pack) == before
