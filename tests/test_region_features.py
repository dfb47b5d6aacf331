"""Precomputed region features, as SCAN's of Flickr30K and COCO: evaluation, export and search."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from polyview.app.explain.evidence import explain
from polyview.app.gallery.scan import from_pack
from polyview.app.search.retriever import Retriever, Term
from polyview.export import to_onnx
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from polyview.models.checkpoint import load_tensors, save_tensors
from polyview.models.files import sha256_of
from polyview.training import evaluate
from polyview.training.data.features import Extraction
from polyview.training.data.open_split import open_split
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.scoring import image_features, score_matrix, split_views
from polyview.training.loop.trainer import run_views
from tests.app.conftest import finish, maps_of
from tests.training.conftest import LABELS, shared_world, write_photographs, write_regions

BUNDLED = Path(__file__).parents[1] / "app" / "bundled" / "scenes"


@pytest.fixture(autouse=True)
def at_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the read-only folder of `write_world` the working directory."""
    monkeypatch.chdir(shared_world(tmp_path_factory))


def measure(tmp_path: Path, *arguments: str) -> dict[str, dict[str, float]]:
    evaluate.main([*arguments, "--json", str(tmp_path / "rows.json")])
    rows: dict[str, dict[str, float]] = json.loads((tmp_path / "rows.json").read_text())["methods"]
    return rows


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        evaluate.main(list(arguments))
    return str(end.value)


def test_runs_are_averaged_and_compared(tmp_path: Path) -> None:
    split, names = "testall", ["runs/vsepp_0", "runs/mv_vse_0"]
    runs = ["--run", names[0], "--run", names[1], "--split", split]
    pairs = ["--compare", ",".join(names), "--compare", "average,runs/vsepp_0"]
    rows = measure(tmp_path, *runs, *pairs, "--scores", str(tmp_path / "scores.npz"))
    measured = json.loads((tmp_path / "rows.json").read_text())
    weights = {name: sha256_of(Path(name, "best.safetensors")) for name in names}
    assert measured["sources"] == weights
    for values, pair in zip(measured["differences"], pairs[1::2], strict=True):
        first, second = pair.split(",")
        expected = rows[first]["rsum"] - rows[second]["rsum"]
        assert values["difference"] == pytest.approx(expected)
        assert values["low"] <= expected <= values["high"]
    assert set(np.load(tmp_path / "scores.npz")) >= {"runs/vsepp_0", "average:t2i_ranks"}
    message = refusal(*runs, "--compare", "runs/vsepp_0,runs/mv_vse_1")
    assert message.startswith('there is no run "runs/mv_vse_1"; did you mean "runs/mv_vse_0"?')
    views = [run_views(Path(name), split, Extraction(device="cpu")) for name in names]
    scores = [score_matrix(method, images, texts) for _, method, images, texts, _ in views]
    average = retrieval_metrics((scores[0] + scores[1]) / 2, views[0][-1].image_of)
    assert rows["average"] == pytest.approx(average)
    assert measure(tmp_path, *runs[:2], "--split", split) == {"vsepp": rows[names[0]]}


def test_search_evidence_and_maps_agree_with_the_evaluation(tmp_path: Path) -> None:
    info = load_info(Path("pack"))
    assert (info.image_encoder.file, info.image_encoder.dim) == (None, 16)
    assert list(info.methods) == ["vsepp", "vsepp_2", "mv_vse"]
    assert "60 images with 120 captions" in info.description
    assert "The app searches only the gallery of the pack" in Path("pack/README.md").read_text()
    runtime = Runtime.load(Path("pack"), "cpu")
    retriever = Retriever(runtime, from_pack(Path("pack")), tmp_path)
    finish(retriever.index)
    data = open_split(Path("data"), "test")
    regions, caption = runtime.regions, data.captions[6]
    assert regions is not None
    for name, method in runtime.methods.items():
        features = image_features(runtime, data, method=name)
        scores = score_matrix(method, *split_views(runtime, name, data, features))
        hits = retriever.search([Term(caption)], name, 20).hits
        order = np.argsort(-scores[:, 6], kind="stable")
        np.testing.assert_allclose([hit.score for hit in hits], scores[order, 6], atol=1e-5)
        row = hits[0].image_id
        results = explain(retriever, [Term(caption)], name, [row, 3])
        for place, score in enumerate(results.scores):
            terms = results.cells[place].sum() + results.whole_sentence[place].sum()
            assert results.base[place] + terms == pytest.approx(score, abs=1e-5)
        seen = retriever.views([row], name, attention=True).attention
        assert seen is not None
        drawn = regions.sum_map if method.attention_sums_to_one else regions.max_map
        maps = maps_of(retriever, row, name)
        np.testing.assert_allclose(maps, drawn(row, seen[0]).numpy(), atol=1e-6)


def test_a_pack_is_evaluated_on_its_gallery(tmp_path: Path) -> None:
    own = measure(tmp_path, "--pack", "pack", "--split", "test", "--folds", "5")
    pack = shutil.copytree("pack", tmp_path / "pack")
    options = ("--data", "data", "--folds", "5", "--write", "--ensemble", "vsepp+mv_vse")
    assert own.items() < measure(tmp_path, "--pack", str(pack), *options).items()
    metrics = load_info(pack).methods["vsepp"].metrics
    assert metrics is not None
    assert metrics.command.endswith("--data data --split test --folds 5")


def changed(run: str, folder: Path, **about: object) -> str:
    """Copies a run with changed metadata."""
    shutil.copytree(run, folder)
    tensors, was = load_tensors(folder / "best.safetensors")
    save_tensors(folder / "best.safetensors", tensors, was | about)
    return str(folder)


def test_mismatched_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = str(write_regions(tmp_path / "wide"))
    for path in Path(wide).glob("*_ims.npy"):
        np.save(path, np.concatenate([np.load(path)] * 2, axis=2))
    photographs = str(write_photographs(tmp_path / "photographs", {"train": 4, "test": 4}))
    run = ("--run", "runs/vsepp_0")
    images = ("--run", changed("runs/vsepp_0", tmp_path / "run", backbone_sha256="0" * 64))
    narrow = changed("runs/mv_vse_0", tmp_path / "narrow", image_dim=8)
    pack, gallery = ("--pack", "pack"), str(BUNDLED / "gallery")
    for values, data, sentence in (
        (run, photographs, "was trained on precomputed features, but .* holds images"),
        (images, "data", "was trained on images, but data holds precomputed features"),
        (run, wide, "reads features of width 16, but .* has width 32"),
        (pack, photographs, "holds images, but the pack reads precomputed features of width 16"),
        (pack, wide, "holds features of width 32, but the pack reads width 16"),
        (("--pack", str(BUNDLED)), "data", "data holds precomputed features, but the pack reads"),
    ):
        assert re.search(sentence, refusal(*values, "--data", data)), sentence
    assert "needs a grid of cells" in refusal(*pack, "--data", "data", "--evidence")
    for more, sentence in (
        (images, "was trained on images; pass the backbone of its config.toml as --backbone"),
        ((*run, "--backbone", str(BUNDLED)), "on precomputed features; leave --backbone out"),
        (run, "the licence of weights trained on data is not known; state it"),
        ((*run, "--run", narrow, *LABELS), "MVVSE needs (12, 8)"),
        ((*run, "--gallery", gallery, *LABELS), "python -m polyview region-gallery"),
    ):
        assert to_onnx.main([*more, "--out", str(tmp_path / "pack")]) == 1
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()


def test_runs_of_different_data_are_not_averaged(tmp_path: Path) -> None:
    first = ("--run", "runs/vsepp_0", "--split", "test")
    assert "names a folder twice" in refusal(*first, "--run", "runs/../runs/vsepp_0")
    shutil.copytree("data", tmp_path / "data")
    captions = (tmp_path / "data/test_caps.txt").read_text()
    (tmp_path / "data/test_caps.txt").write_text(captions.replace("thing1", "thing2"))
    other = shutil.copytree("runs/vsepp_1", tmp_path / "run")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('"data"', f'"{tmp_path}/data"'))
    assert "were trained on different data" in refusal(*first, "--run", str(other))
