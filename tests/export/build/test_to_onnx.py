"""The command `export`: its output and refusals, half precision, and the parity check."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from polyview.export import to_onnx
from polyview.export.build.pack import check_parity, export_text_encoder, same_ranking
from polyview.export.encoders.sources import load_image_source
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from polyview.models.checkpoint import round_to_half
from polyview.models.encoders.bigru import BiGRUTextEncoder
from tests.export.conftest import LABELS, NAME, write_run


def command(runs: Path, out: Path, *more: str) -> list[str]:
    made = ("--backbone", f"{runs / 'backbone'}", "--run", f"{runs / NAME}")
    labels = ("--licence", "MIT", "--credits", "nobody", "--description", "Random weights.")
    return [*made, "--out", f"{out}", "--name", "tiny", "--title", "Tiny", *labels, *more]


def test_two_models_of_mvam(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = Path(shutil.copytree(runs / "mvam", tmp_path / "again"))
    arguments = ["--run", f"{runs / 'mvam'}", "--run"]
    another = f"both hold mvam; give one of them another name: --run mvam_2={again}"
    wrong = "holds mvam, not avse; choose another name"
    for run, sentence in ((f"{again}", another), (f"avse={again}", wrong)):
        assert to_onnx.main(command(runs, tmp_path / "out", *arguments, run)) == 1
        assert sentence in capsys.readouterr().err
    assert to_onnx.main(command(runs, tmp_path / "out", *arguments, f"mvam_4_codes={again}")) == 0
    runtime = Runtime.load(tmp_path / "out", "cpu")
    names = ("mvam", "mvam_4_codes")
    assert [runtime.methods[name].title for name in names] == ["MVAM", "MVAM, 4 codes"]
    views = [runtime.text_views(["a dog"], name).embeddings for name in names]
    assert views[0].equal(views[1])
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "| `mvam_4_codes` | MVAM, 4 codes | Cui et al., arXiv 2402.17237 |" in card


def test_existing_folders(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine"
    arguments = command(runs, out)
    out.mkdir()
    (out / "precious.txt").write_text("keep")
    assert to_onnx.main(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert (out / "precious.txt").read_text() == "keep"
    assert to_onnx.main([*arguments, "--force"]) == 0
    assert not (out / "precious.txt").exists()
    assert {"training/backbone/log.csv", f"training/{NAME}/log.csv"} <= load_info(out).files.keys()


def test_another_tokenizer_is_refused(runs: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", NAME, runs / "backbone")
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="is not the tokenizer"):
        to_onnx.export_runs(tmp_path / "out", runs / "backbone", [run], LABELS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "noun"), [("image_dim", "feature width"), ("frames", "frames per clip")]
)
def test_runs_over_other_features(
    runs: Path, key: str, noun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = to_onnx.load_run

    def load_other(folder: Path, *more: Any) -> to_onnx.TrainedRun:
        run = load(folder, *more)
        other: dict[str, Any] = {key: 99} if folder.name == "mvam" else {}
        return run._replace(record=replace(run.record, **other))

    monkeypatch.setattr(to_onnx, "load_run", load_other)
    with pytest.raises(ValueError, match=rf"differ in {noun}, 99 and .*; make two packs"):
        to_onnx.export_runs(runs / "out", runs / "backbone", [runs / NAME, runs / "mvam"], LABELS)


def test_other_numbers_are_drift(runs: Path, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _, about = load_image_source(runs / "backbone")
    parts = to_onnx.load_run(runs / NAME, encoder, about).parts
    for module in (parts.image_encoder, parts.text_encoder, parts.head):
        assert module is not None
        module.load_state_dict(round_to_half(module.state_dict(), NAME))
    runtime = Runtime.load(pack, "cpu")
    weight = next(iter(runtime.methods[NAME].parameters()))
    weight[0] += 0.5
    with pytest.raises(ValueError, match=f"{NAME}: .* differ from torch by .*more than 0.0001"):
        check_parity(runtime, NAME, parts, parts)
    weight[0] -= 0.5

    # differences below the tolerance, but larger than ties
    order = torch.arange(1000)[:, None] * 3e-5
    swapped = order - torch.arange(1000).remainder(2)[:, None] * 8e-5
    for method, scores in ((parts.head, order), (runtime.methods[NAME], swapped)):
        table = scores.expand(-1, 1000)
        monkeypatch.setattr(method, "score", lambda i, t, table=table: table[: len(i), : len(t)])
    with pytest.raises(ValueError, match="rankings differ"):
        check_parity(runtime, NAME, parts, parts)


def test_ties_swap() -> None:
    for shipped, reference, same in (
        ([[2.8, 1.2], [1.4, 1.6]], [[0.9, 0.1], [0.2, 0.3]], True),
        ([[0.1, 0.9], [0.2, 0.3]], [[0.9, 0.1], [0.2, 0.3]], False),
        ([[0.9, 0.5], [0.2, 0.3]], [[0.9, 0.1], [0.2, 0.3]], False),  # of a column
        ([[0.5, 0.4, 0.6, 0.1]], [[0.5, 0.5 + 4e-6, 0.5 - 4e-6, 0.1]], True),  # of ties
        ([[0.4, 0.5, 0.1]], [[0.5, 0.5 - 4e-5, 0.1]], False),
    ):
        assert same_ranking(torch.tensor(shipped), torch.tensor(reference)) == same, shipped


def test_weights_in_half_equal_those_of_torch(tmp_path: Path) -> None:
    encoder = BiGRUTextEncoder(vocab_size=60, word_dim=20, hidden_dim=16).eval()
    encoder.load_state_dict(round_to_half(encoder.state_dict(), "test"))
    export_text_encoder(encoder, tmp_path / "text.onnx")
    stored = {t.name: t for t in onnx.load(tmp_path / "text.onnx").graph.initializer}
    weights = stored["embed.weight.half"]
    assert weights.data_type == TensorProto.FLOAT16
    expected = encoder.state_dict()["embed.weight"].numpy()
    np.testing.assert_array_equal(numpy_helper.to_array(weights).astype(np.float32), expected)
    halves = [t for t in stored.values() if t.data_type == TensorProto.FLOAT16]
    assert sum(np.prod(t.dims) for t in halves) == sum(p.numel() for p in encoder.parameters())
    with pytest.raises(ValueError, match=r"run: w holds 7e\+04, more than half precision"):
        round_to_half({"w": torch.tensor([70_000.0])}, "run")
