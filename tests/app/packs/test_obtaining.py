"""From the Hub into the app: said before it is fetched, and nothing half done is left."""

import io
import json
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
import torch
from huggingface_hub import constants

from polyview.app.access import Refusal
from polyview.app.packs.description import describe
from polyview.app.packs.downloads import Downloads, Job, converted_pack
from polyview.app.packs.opened import Opened
from polyview.app.settings import Settings
from polyview.export.hub.client import UnreachableError
from polyview.export.obtain import CLIP, PACK, VSE_INFTY, look, obtain
from polyview.export.pack.reading import list_files, load_info
from tests.export import releases
from tests.export.hub_server import Fault, HubState, Repo
from tests.published import save_clip

pytestmark = [pytest.mark.network, pytest.mark.slow]
ID, NET, VSE = "owner/shapes", "owner/clip", "cccjc/vse-infty"


@pytest.fixture
def opened(tiny_pack: Path, tmp_path: Path) -> Opened:
    return Opened(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")


@pytest.fixture
def downloads(opened: Opened) -> Downloads:
    return opened.downloads


def stock(hub: HubState, repo_id: str, files: dict[str, bytes], licence: str | None = None) -> str:
    """Puts files on the Hub; returns their commit."""
    hub.repos[repo_id] = Repo(card={"license": licence} if licence else {})
    return hub.repos[repo_id].add_commit("main", files)


def stock_pack(hub: HubState, pack: Path) -> None:
    files = {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}
    manifest = json.loads(files["pack.json"])
    manifest["title"], manifest["tokenizer"]["max_length"] = "From the Hub", 9
    files["pack.json"] = json.dumps(manifest).encode()
    stock(hub, ID, {**files, "huge.bin": b"0" * 1000}, "apache-2.0")


def stock_clip(hub: HubState, folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in save_clip(folder).iterdir()}
    stock(hub, NET, {**files, "pytorch_model.bin": b"never"}, "mit")


def fetched(hub: HubState) -> list[str]:
    return [request for request in hub.requests if "/resolve/" in request]


def fetch(downloads: Downloads, kind: str, address: str) -> Job:
    """Fetches what an address holds, and waits for the end."""
    job = downloads.start(address, kind)
    deadline = time.monotonic() + 120
    while job.state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return job


def leftovers(tmp_path: Path) -> list[Path]:
    """What was not fetched whole, or converted half."""
    half = [*(tmp_path / "hub").rglob("*.incomplete"), *(tmp_path / "cache/packs").glob(".*")]
    return [path for path in half if path.exists()]


def test_the_hub_is_asked_for_sizes_and_licences_and_nothing_is_fetched(
    hub: HubState, tiny_pack: Path, tmp_path: Path
) -> None:
    stock_pack(hub, tiny_pack)
    stock_clip(hub, tmp_path / "clip")
    stored = io.BytesIO()
    torch.save(releases.vse_infty_grid(), stored)
    stock(hub, VSE, {"f30k/model_best.pth": stored.getvalue(), "else.pth": b"x"})
    pieces = {"vocab.txt": b"v" * 10, "config.json": b"{}", "model.safetensors": b"large"}
    stock(hub, "google-bert/bert-base-uncased", pieces, "apache-2.0")

    packed = look(PACK, ID)
    whole = sum(map(len, hub.repos[ID].commits[packed.parts[0].commit].values()))
    assert (packed.missing_bytes, packed.unknown) == (whole, 0)
    assert packed.parts[0].licence == "apache-2.0"
    network = look(CLIP, f"{NET}@main")
    sizes = network.parts[0].files
    assert sizes["model.safetensors"] == (tmp_path / "clip/model.safetensors").stat().st_size
    assert "pytorch_model.bin" not in sizes
    vse = look(VSE_INFTY, f"{VSE}/f30k")
    assert [part.licence for part in vse.parts] == [None, "apache-2.0"]
    assert vse.missing_bytes == len(stored.getvalue()) + 12
    assert fetched(hub) == []
    assert not (tmp_path / "hub").exists()


def test_what_cannot_be_had_is_a_sentence(hub: HubState, tiny_pack: Path, tmp_path: Path) -> None:
    stock_clip(hub, tmp_path / "clip")
    hub.repos["owner/secret"] = Repo(private=True)
    stock(hub, "owner/old", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    stock_pack(hub, tiny_pack)
    for kind, address, sentence in (
        (PACK, "owner/nothing", "there is no owner/nothing at"),
        (PACK, "owner/secret", "or it is private or the token is not valid"),
        (PACK, f"{ID}@v9", "no such revision"),
        (PACK, NET, "is not a pack: it has no pack.json"),
        (CLIP, "owner/old", "holds no weights as safetensors"),
        (VSE_INFTY, "somewhere", "takes owner/name/FOLDER_OR_FILE"),
        (CLIP, "not an id", '"not an id" is not a Hub id'),
    ):
        with pytest.raises(ValueError, match=sentence):
            look(kind, address)


def test_offline_is_a_sentence_and_a_folder_still_loads(
    hub: HubState, downloads: Downloads, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="a pack in a folder on this machine loads without"):
        downloads.start(NET, CLIP)
    with pytest.raises(ValueError, match="is not, or not all, in the local cache"):
        downloads.start(ID, PACK)
    assert fetch(downloads, PACK, str(tiny_pack)).state == "ready"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        downloads.start(f"{VSE}/f30k", VSE_INFTY)
    assert hub.requests == []


def test_a_pack_is_fetched_and_found_again(
    hub: HubState, downloads: Downloads, opened: Opened, tiny_pack: Path, tmp_path: Path
) -> None:
    stock_pack(hub, tiny_pack)
    hub.damaged.add("vsepp/head.safetensors")
    job = fetch(downloads, PACK, ID)
    assert job.state == "failed"
    assert "vsepp/head.safetensors does not match its SHA-256" in job.error
    assert leftovers(tmp_path) == []

    hub.damaged.clear()
    job = fetch(downloads, PACK, ID)
    retriever = opened.retriever(job.pack)
    assert retriever.info.title == "From the Hub"
    commit = hub.repos[ID].branches["main"]
    assert describe(retriever)["pack"]["from"] == {"repository": ID, "commit": commit}
    assert describe(opened.first)["pack"]["from"] is None
    assert not any("huge.bin" in request for request in fetched(hub))
    hub.down = True
    assert fetch(downloads, PACK, ID).pack == job.pack


def test_clip_is_converted_once_and_then_needs_no_hub(
    hub: HubState, downloads: Downloads, opened: Opened, tmp_path: Path
) -> None:
    stock_clip(hub, tmp_path / "clip")
    job = fetch(downloads, CLIP, NET)
    assert job.state == "ready", job.error
    hub.down = True
    assert fetch(downloads, CLIP, NET).pack == job.pack
    info = opened.packs()[job.pack]
    assert (list(info.methods), info.licence) == (["clip"], "mit")
    assert leftovers(tmp_path) == []


def test_a_cancelled_download_leaves_nothing(
    hub: HubState, downloads: Downloads, opened: Opened, tmp_path: Path
) -> None:
    stock_clip(hub, tmp_path / "clip")
    hub.faults["GET .*model.safetensors"] = Fault("trickle", 100)  # so that it cannot have ended
    job = downloads.start(NET, CLIP)
    with pytest.raises(Refusal, match="something is being fetched already"):
        downloads.start(NET, CLIP)
    with pytest.raises(Refusal):
        downloads.cancel("another")
    assert downloads.cancel(job.job).state == "cancelled"
    assert "Cancelled after" in job.error
    hub.faults.clear()
    hub.over.set()  # the client asks for the rest, and sees at the next piece that it is cancelled
    deadline = time.monotonic() + 60
    while True:  # the next one starts when the thread has noticed
        assert time.monotonic() < deadline
        with suppress(Refusal):
            downloads.cancel(downloads.start(NET, CLIP).job)
            break
        time.sleep(0.1)
    assert converted_pack(opened.cache, CLIP, NET) is None
    assert (job.state, job.pack) == ("cancelled", "")
    assert leftovers(tmp_path) == []


def test_a_pack_that_changed_since_it_was_looked_at_is_not_fetched(
    hub: HubState, tiny_pack: Path, tmp_path: Path
) -> None:
    stock_pack(hub, tiny_pack)
    offer = look(PACK, ID)
    hub.repos[ID].add_commit("main", {"more.bin": b"0" * 9})
    with pytest.raises(ValueError, match="has changed since it was looked at; look again"):
        obtain(offer, tmp_path, lambda *_: None, Event())
    assert fetched(hub) == []
