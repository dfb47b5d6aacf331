"""Released checkpoints on the Hub, fetched by the real client from a local server."""

import io
import re
from pathlib import Path

import pytest
import torch

from polyview.export.official import main
from polyview.export.runtime import Runtime
from tests.export import releases
from tests.export.hub_server import HubState, Repo

pytestmark = pytest.mark.network
REPO, NAME = "cccjc/vse-infty", "f30k_wsl_grid_bert"
PIECES = "google-bert/bert-base-uncased"


@pytest.fixture(autouse=True)
def authors(server: HubState, tmp_path: Path) -> None:
    """Puts the authors' repository and BERT's on the server."""
    torch.manual_seed(5)
    stored = io.BytesIO()
    torch.save(releases.vse_infty_grid(), stored)
    files = {
        "README.md": b"weights",
        f"{NAME}/model_best.pth": stored.getvalue(),
        f"{NAME}/checkpoint.pth": b"the last epoch, not the best",
        "other/one.pth": b"",
        "other/two.pth": b"",
    }
    folder = releases.write_pieces(tmp_path / "bert")
    pieces = {name: (folder / name).read_bytes() for name in ("vocab.txt", "config.json")}
    for name, content in ((REPO, files), (PIECES, {**pieces, "model.safetensors": b"large"})):
        server.repos[name] = Repo()
        server.repos[name].add_commit("main", content)


def test_one_command(server: HubState, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--from", "vse_infty", "--hub", f"{REPO}/{NAME}", "--out"]
    assert main([*arguments, str(tmp_path / "pack")]) == 0, capsys.readouterr().err
    requested = [request for request in server.requests if request.startswith("GET /")]
    assert any(request.endswith("model_best.pth") for request in requested)
    assert not any(re.search(r"checkpoint\.pth|one\.pth|model\.safetensors", r) for r in requested)
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    commit = server.repos[REPO].branches["main"]
    origin = runtime.info.methods["vse_infty"].config["origin"]
    assert origin == f"{REPO}/{NAME}/model_best.pth@{commit}"
    assert runtime.info.name == "vse_infty_f30k_wsl_grid_bert"
    assert runtime.preprocess.size == releases.SIZE
    assert runtime.text_views(["a dog runs"], "vse_infty").embeddings.shape[1] == 1


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("somewhere", "takes owner/name/FOLDER_OR_FILE"),
        ("nobody/nothing/x", "there is no nobody/nothing"),
        (f"{REPO}/absent", "no checkpoints under absent; name one of .*model_best.pth"),
        (f"{REPO}/other", "2 checkpoints under other; name one of other/one.pth, other/two"),
        (f"{REPO}/{NAME}@nowhere", "no such revision"),
        (f"{REPO}/other/one.pth", "is not a whole PyTorch checkpoint"),
    ],
)
def test_addresses_that_lead_nowhere(
    address: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--from", "vse_infty", "--hub", address, "--out", str(tmp_path / "pack")]
    assert main(arguments) == 1
    errors = capsys.readouterr().err.splitlines()[-1]  # behind the client's progress
    assert errors.startswith("export failed: ")
    assert re.search(sentence, errors), errors
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(["x.pth", "--hub", "a/b/c"], "not both"), (["x.pth"], "there is no checkpoint x.pth")],
)
def test_options_that_do_not_fit(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--from", "pvse", *options, "--out", str(tmp_path / "pack")]) == 1
    assert sentence in capsys.readouterr().err
