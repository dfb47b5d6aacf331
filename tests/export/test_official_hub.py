"""Released checkpoints on the Hub, fetched by the real client from a local server."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from export.official.__main__ import main
from export.runtime import Runtime
from tests.export import releases
from tests.export.hub_server import HubState, Repo, running_hub

pytestmark = pytest.mark.network
REPO, NAME = "cccjc/vse-infty", "f30k_wsl_grid_bert"
PIECES = "google-bert/bert-base-uncased"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubState]:
    """A server with the authors' repository and BERT's, and a client that knows nothing but it."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    torch.manual_seed(5)
    with running_hub() as state:
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        stored = io.BytesIO()
        torch.save(releases.vse_infty_grid(), stored)
        state.repos[REPO] = Repo()
        state.repos[REPO].add_commit(
            "main",
            {
                "README.md": b"weights",
                f"{NAME}/model_best.pth": stored.getvalue(),
                f"{NAME}/checkpoint.pth": b"the last epoch, not the best",
                "other/one.pth": b"",
                "other/two.pth": b"",
            },
        )
        folder = releases.write_pieces(tmp_path / "bert")
        state.repos[PIECES] = Repo()
        files = {name: (folder / name).read_bytes() for name in ("vocab.txt", "config.json")}
        state.repos[PIECES].add_commit("main", {**files, "model.safetensors": b"large"})
        yield state


def test_one_command_from_the_hub_to_a_pack(
    server: HubState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--from", "vse_infty", "--hub", f"{REPO}/{NAME}", "--out"]
    assert main([*arguments, str(tmp_path / "pack")]) == 0, capsys.readouterr().err
    asked = [request for request in server.requests if request.startswith("GET /")]
    assert any(request.endswith("model_best.pth") for request in asked)
    assert not any(re.search(r"checkpoint\.pth|one\.pth|model\.safetensors", r) for r in asked)
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    commit = server.repos[REPO].branches["main"]
    origin = runtime.info.methods["vse_infty"].config["origin"]
    assert origin == f"{REPO}/{NAME}/model_best.pth@{commit}"
    assert runtime.info.name == "vse_infty_f30k_wsl_grid_bert"
    assert runtime.preprocess.size == releases.SIZE
    assert runtime.text_views(["a dog runs"], "vse_infty").embeddings.shape[1] == 1
    # again without a connection, from the cache
    server.down = True
    assert main([*arguments, str(tmp_path / "again")]) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("somewhere", "takes owner/name/FOLDER_OR_FILE"),
        ("nobody/nothing/x", "there is no nobody/nothing"),
        (f"{REPO}/absent", "no checkpoint under absent; there is .*model_best.pth"),
        (f"{REPO}/other", "several checkpoints under other; name one of other/one.pth, other/two"),
        (f"{REPO}/{NAME}@nowhere", "no such revision"),
        (f"{REPO}/other/one.pth", "is not a whole PyTorch checkpoint"),
    ],
)
def test_addresses_that_lead_nowhere(
    address: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--from", "vse_infty", "--hub", address, "--out", str(tmp_path / "pack")]
    assert main(arguments) == 1
    said = capsys.readouterr().err.splitlines()[-1]  # behind the client's progress
    assert said.startswith("conversion failed: ")
    assert re.search(sentence, said), said
    assert not (tmp_path / "pack").exists()


def test_a_file_and_the_hub_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--from", "pvse", "x.pth", "--hub", "a/b/c", "--out", str(tmp_path / "pack")]
    assert main(both) == 1
    assert "not both" in capsys.readouterr().err


def test_an_option_of_another_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--from", "pvse", "x.pth", "--out", str(tmp_path / "pack"), "--block-dim", "4"]
    assert main(arguments) == 1
    assert "--block-dim is for avse only" in capsys.readouterr().err


def test_a_pack_that_exists_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pack").mkdir()
    assert main(["--from", "pvse", "x.pth", "--out", str(tmp_path / "pack")]) == 1
    assert "--force" in capsys.readouterr().err
