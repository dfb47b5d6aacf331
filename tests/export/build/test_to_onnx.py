"""The command that builds a pack: what it writes, what it refuses, and that drift stops it."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from polyview.export import to_onnx
from polyview.export.build import pack as pack_module
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from tests.export.conftest import LABELS, NAME, write_backbone, write_run


def command(runs: Path, out: Path, *more: str) -> list[str]:
    """The command line that exports the first method."""
    made = ("--backbone", f"{runs / 'backbone'}", "--run", f"{runs / NAME}")
    labels = ("--licence", "MIT", "--credits", "nobody", "--description", "Random weights.")
    return [*made, "--out", f"{out}", "--name", "tiny", "--title", "Tiny", *labels, *more]


def test_a_pack_holds_several_models_of_a_method(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = Path(shutil.copytree(runs / "mvam", tmp_path / "again"))
    arguments = ["--run", f"{runs / 'mvam'}", "--run"]
    another = f"both hold mvam; give one of them another name: --run mvam_2={again}"
    wrong = "holds mvam, which cannot be called avse"
    for run, sentence in ((f"{again}", another), (f"avse={again}", wrong)):
        assert to_onnx.main(command(runs, tmp_path / "out", *arguments, run)) == 1
        assert sentence in capsys.readouterr().err
    assert to_onnx.main(command(runs, tmp_path / "out", *arguments, f"mvam_4_codes={again}")) == 0
    runtime = Runtime.load(tmp_path / "out", "cpu")
    (first, other) = (runtime.methods[name] for name in ("mvam", "mvam_4_codes"))
    assert type(first) is type(other)
    assert (first.title, other.title) == ("MVAM", "MVAM, 4 codes")
    views = [runtime.text_views(["a dog"], name).embeddings for name in ("mvam", "mvam_4_codes")]
    assert views[0].equal(views[1])
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "| `mvam_4_codes` | MVAM, 4 codes | Cui et al., arXiv 2402.17237 |" in card


def test_existing_folders(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the logs of the encoders that one went on from."""
    first, out = tmp_path / "first", tmp_path / "mine"
    first.mkdir()
    (first / "config.toml").write_text("epochs = 3\n")
    (first / "log.csv").write_text("epoch,loss\n1,2.0\n")
    backbone = Path(shutil.copytree(runs / "backbone", tmp_path / "backbone"))
    (backbone / "config.toml").write_text(f'init = "{first}"\n')
    arguments = command(runs, out, "--backbone", f"{backbone}")
    out.mkdir()
    (out / "precious.txt").write_text("keep")
    assert to_onnx.main(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert (out / "precious.txt").read_text() == "keep"
    assert to_onnx.main([*arguments, "--force"]) == 0
    assert not (out / "precious.txt").exists()
    assert "training/backbone_2/log.csv" in load_info(out).files
    assert (out / "training/backbone_2/config.toml").read_text() == "epochs = 3\n"


def test_a_wrong_weight_in_onnx_ends_with_an_error_and_without_a_pack(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export = pack_module.export_text_encoder

    def export_wrongly(encoder: object, path: Path) -> None:
        export(encoder, path)  # type: ignore[arg-type]
        model = onnx.load(path)
        largest = max(model.graph.initializer, key=lambda tensor: np.prod(tensor.dims))
        values = numpy_helper.to_array(largest).copy()
        values += 0.25
        largest.CopyFrom(numpy_helper.from_array(values, largest.name))
        onnx.save(model, path)

    monkeypatch.setattr(pack_module, "export_text_encoder", export_wrongly)
    assert to_onnx.main(command(runs, tmp_path / "mine")) == 1
    message = capsys.readouterr().err
    assert NAME in message
    assert "text features" in message
    assert "more than 0.0001" in message
    assert not list(tmp_path.iterdir())


def test_what_does_not_belong_together_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, other = tmp_path / "out", write_backbone(tmp_path / "other")
    with pytest.raises(ValueError, match="trained on another image encoder"):
        to_onnx.export_runs(out, other, [runs / NAME], LABELS)
    run = write_run(tmp_path / "run", NAME, runs / "backbone")
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="is not the tokenizer"):
        to_onnx.export_runs(out, runs / "backbone", [run], LABELS)
    for option, mistyped, near in (("--run", "mvan", "mvam"), ("--backbone", "bakb", "backbone")):
        assert to_onnx.main(command(runs, out, option, f"{runs / mistyped}")) == 1
        assert f"; did you mean {runs / near}?" in capsys.readouterr().err
    assert not out.exists()
