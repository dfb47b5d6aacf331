"""Encoders by Hub id: fetched once, found again without a connection, or a sentence."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from polyview.export.encoders.sources import load_image_source
from polyview.export.hub.packs import resolve
from tests.export.hub_server import HubState, Repo
from tests.published import save_image_model

pytestmark = pytest.mark.network
ID = "owner/net"


def _stock(server: HubState, folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.repos[ID] = Repo()
    server.repos[ID].add_commit("main", {**files, "other.bin": b"large", "onnx/model.onnx": b"no"})


def test_an_image_encoder_is_fetched_and_found_again(
    server: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stock(server, save_image_model(tmp_path / "vit", "vit"))
    encoder, _, about = load_image_source(ID)
    assert encoder.grid(64) == (4, 4)
    assert about["source"] == ID
    cached = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/*")}
    assert cached == {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert load_image_source(f"{ID}@main")[2]["sha256"] == about["sha256"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_image_source(ID)[2] == about
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set; unset it"):
        load_image_source("owner/else")


def test_a_mistyped_folder_is_no_question_to_the_hub(
    server: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "yours_pack").mkdir(parents=True)
    for find in (resolve, load_image_source):
        with pytest.raises(FileNotFoundError, match="yours_pak; did you mean runs/yours_pack"):
            find("runs/yours_pak")
    assert not server.requests
