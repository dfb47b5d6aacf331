"""Downloads from a local Hub: sizes before, progress, cancellation, limits for visitors."""

import json
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from polyview.app.api.shell import main as search
from polyview.app.packs.description import describe
from polyview.app.packs.downloads import Downloads, Job, pack_folder
from polyview.app.packs.state import AppState
from polyview.app.refusal import Refusal
from polyview.app.settings import Settings
from polyview.export.hub.client import UnreachableError
from polyview.export.obtain import CLIP, PACK, find_offer, obtain
from polyview.export.pack.reading import list_files, load_info
from tests.app.conftest import draw
from tests.app.serving import until
from tests.export.hub_server import DOWN, READER, Fault, HubState
from tests.published import save_clip

pytestmark = [pytest.mark.network, pytest.mark.slow]
ALLOWED = tuple(f"owner/{name}" for name in ("shapes", "altered", "secret", "large"))
ID, NET = "owner/shapes", "owner/clip"
HUGE = "gallery/huge.bin"  # a file that pack.json does not list
TINY = "wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "app"))


@pytest.fixture
def downloads(state: AppState) -> Downloads:
    return state.downloads


def stock_pack(hub: HubState, pack: Path, repo_id: str = ID, **values: Any) -> None:
    """Puts a pack on the Hub, with other values in pack.json, and `HUGE`."""
    files = {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}
    files["pack.json"] = json.dumps({**json.loads(files["pack.json"]), **values}).encode()
    hub.add(repo_id, files | {HUGE: bytes(3_000_000)}, card={"license": "apache-2.0"})


def stock_clip(hub: HubState, folder: Path, repo_id: str = NET) -> str:
    """Puts published weights on the Hub; returns their commit."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return hub.add(repo_id, files | {"pytorch_model.bin": b"never"}, card={"license": "mit"})


def fetched(hub: HubState) -> list[str]:
    """The requests for files so far."""
    return [request for request in hub.requests if "/resolve/" in request]


def fetch(downloads: Downloads, kind: str, address: str) -> Job:
    """Starts a download and waits until it ends."""
    job = downloads.start(address, kind)
    until(lambda: job.state != "running")
    return job


def leftovers(tmp_path: Path) -> list[Path]:
    """Incomplete files and unfinished conversions."""
    half = [*(tmp_path / "cache").rglob("*.incomplete"), *(tmp_path / "app/packs").glob(".*")]
    return [path for path in half if path.exists()]


def test_a_look_fetches_nothing(hub: HubState, tiny_pack: Path, tmp_path: Path) -> None:
    stock_pack(hub, tiny_pack)
    stock_clip(hub, save_clip(tmp_path / "clip"))
    hub.add("owner/old", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    packed = find_offer(PACK, ID).repo
    whole = sum(map(len, hub.repos[ID].commits[packed.commit].values()))
    assert (packed.missing_bytes, packed.licence) == (whole, "apache-2.0")
    sizes = find_offer(CLIP, f"{NET}@main").repo.files
    assert sizes["model.safetensors"] == (tmp_path / "clip/model.safetensors").stat().st_size
    assert "pytorch_model.bin" not in sizes
    for kind, address, sentence in (
        (PACK, "owner/nothing", "there is no owner/nothing at"),
        (PACK, NET, "is not a pack: it has no pack.json"),
        (CLIP, "owner/old", "has no safetensors weights"),
        (CLIP, "not an id", '"not an id" is not a Hub id'),
    ):
        with pytest.raises(ValueError, match=sentence):
            find_offer(kind, address)
    assert fetched(hub) == []
    assert not (tmp_path / "cache").exists()


def test_offline_messages_and_packs_in_folders(
    hub: HubState,
    downloads: Downloads,
    tiny_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="packs in folders on this machine load without"):
        downloads.start(NET, CLIP)
    with pytest.raises(ValueError, match="is not completely in the local cache"):
        downloads.start(ID, PACK)
    assert fetch(downloads, PACK, str(tiny_pack)).state == "ready"
    with pytest.raises(FileNotFoundError, match="scenes_moving, tinyclip, tinyclip-39m, siglip"):
        pack_folder("clip", tmp_path)
    assert search(["a dog", "--pack", "tinyclip"]) == 2
    assert "TinyCLIP 8M is not on this machine yet" in capfd.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        downloads.start(NET, CLIP)
    assert hub.requests == []


def test_a_pack_is_fetched_and_found_again(
    hub: HubState, downloads: Downloads, state: AppState, tiny_pack: Path, tmp_path: Path
) -> None:
    stock_pack(hub, tiny_pack, title="From the Hub")
    hub.damaged.add("vsepp/head.safetensors")
    problem = fetch(downloads, PACK, ID).error
    assert "vsepp/head.safetensors does not match its SHA-256" in problem
    assert leftovers(tmp_path) == []
    hub.damaged.clear()
    job = fetch(downloads, PACK, ID)
    retriever = state.retriever(job.pack)
    assert retriever.info.title == "From the Hub"
    commit = hub.repos[ID].branches["main"]
    assert describe(retriever)["pack"]["from"] == {"repository": ID, "commit": commit}
    assert describe(state.first)["pack"]["from"] is None
    assert not any(HUGE in request for request in fetched(hub))
    hub.faults["/"] = DOWN
    assert fetch(downloads, PACK, ID).pack == job.pack


def test_cancellation(hub: HubState, downloads: Downloads, state: AppState, tmp_path: Path) -> None:
    stock_clip(hub, save_clip(tmp_path / "clip"))
    hub.faults["GET .*model.safetensors"] = Fault("trickle", 100)  # outlasts the cancellation
    job = downloads.start(NET, CLIP)
    with pytest.raises(Refusal, match="another download is running"):
        downloads.start(NET, CLIP)
    with pytest.raises(Refusal):
        downloads.cancel("another")
    assert downloads.cancel(job.job).state == "cancelled"
    assert "Cancelled after" in job.error
    hub.faults.clear()
    hub.over.set()  # the client requests the remaining bytes, and notices the cancellation

    def fetch_again() -> Job | None:  # refused until the thread has ended
        with suppress(Refusal):
            return fetch(downloads, CLIP, NET)
        return None

    again = until(fetch_again)
    assert (job.state, job.pack, again.state) == ("cancelled", "", "ready")
    assert list(state.packs()[again.pack].methods) == ["clip"]
    assert leftovers(tmp_path) == []


def test_a_pack_that_changed_is_not_fetched(hub: HubState, tiny_pack: Path, tmp_path: Path) -> None:
    stock_pack(hub, tiny_pack)
    offer = find_offer(PACK, ID)
    hub.repos[ID].add_commit("main", {"more.bin": b"0" * 9})
    with pytest.raises(ValueError, match="has changed since it was inspected; inspect it again"):
        obtain(offer, tmp_path, lambda *_: None, Event())
    assert fetched(hub) == []


def test_preset_download(hub: HubState, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    twin = save_clip(tmp_path / "twin")
    # 12 MB of unused weights: the Hub's client reads 10 MB at a time
    weights = load_file(twin / "model.safetensors") | {"unread": torch.rand(3_000_000)}
    save_file(weights, twin / "model.safetensors", {"format": "pt"})
    commit = stock_clip(hub, twin, TINY)
    images = tmp_path / "images"
    images.mkdir()
    for i in range(3):
        draw(i)[0].save(images / f"{i}.png")
    assert search(["a red dog", "--pack", "tinyclip", "--gallery", str(images)]) == 0
    printed = capfd.readouterr()
    size = sum(path.stat().st_size for path in twin.iterdir() if path.name != "merges.txt")
    source = f"TinyCLIP 8M from {TINY}@{commit[:8]}: {size / 1e6:,.0f} MB, licence mit"
    assert f"fetching {source}" in printed.err
    assert len(printed.out.splitlines()) == 3
    hub.faults["/"], count = DOWN, len(hub.requests)
    state = AppState(Settings("tinyclip", images, "cpu"), tmp_path / "app")
    info = state.first.info
    assert (list(info.methods), info.licence) == (["clip"], "mit")
    assert f"{TINY}@{commit}" in info.credits
    assert fetch(state.downloads, CLIP, "tinyclip").pack == state.first_pack
    assert len(hub.requests) == count
    assert leftovers(tmp_path) == []


@pytest.fixture
def public(
    hub: HubState,  # noqa: ARG001
    tiny_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AppState:
    """A public app that may fetch packs; the machine's owner has a token for the Hub."""
    monkeypatch.setenv("HF_TOKEN", READER)
    settings = Settings(str(tiny_pack), device="cpu", host="0.0.0.0", allow_packs=ALLOWED)
    return AppState(settings, tmp_path / "cache with a space")


def load(public: AppState, address: str) -> str:
    """Fetches a pack as a visitor; returns its title, or the error message."""
    try:
        job = fetch(public.downloads, PACK, address)
    except ValueError as error:
        sentence = public.public_message(error)
    else:
        if job.state == "ready":
            return public.retriever(job.pack).info.title
        sentence = job.error
    for secret in (str(public.cache), str(public.settings.pack), "/tmp", "snapshots"):
        assert secret not in sentence
    assert len(sentence) < 1000
    return sentence


def cached_bytes(name: str) -> int:
    """The bytes of a repository in the cache."""
    files = Path(constants.HF_HUB_CACHE, f"models--owner--{name}").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def test_packs_that_visitors_may_not_load(public: AppState, hub: HubState, tiny_pack: Path) -> None:
    stock_pack(hub, tiny_pack, "owner/unknown")
    allowed = "may be loaded here; name one of clip_tiny, photos, scenes, scenes_moving"
    revisions = (f"owner/shapes@{revision}" for revision in ("main", "refs/pr/1", "../../x"))
    for address in ("owner/unknown", *revisions, "/etc", f"owner/{'x' * 40_000}"):
        assert allowed in load(public, address)
    assert hub.requests == []
    stock_pack(hub, tiny_pack, "owner/secret")
    hub.repos["owner/secret"].private = True
    assert "here is no owner/secret" in load(public, "owner/secret")
    assert any("owner/secret" in request for request in hub.requests)
    assert set(hub.tokens) == {""}  # the owner's token is not used
    stated = json.loads((tiny_pack / "pack.json").read_text("utf-8"))["files"]
    stated["image_encoder.onnx"]["bytes"] = hub.stated["image_encoder.onnx"] = 2_100_000_000
    stock_pack(hub, tiny_pack, "owner/large", files=stated)
    assert "more than the 2,000,000,000 that visitors may load" in load(public, "owner/large")
    assert cached_bytes("secret") == cached_bytes("large") == 0
    assert not any("onnx" in request for request in hub.requests)


def test_allowed_packs_are_fetched(public: AppState, hub: HubState, tiny_pack: Path) -> None:
    stock_pack(hub, tiny_pack, "owner/altered", title="Altered", credits="A thief")
    stock_pack(hub, tiny_pack, title="Genuine")
    assert load(public, "owner/altered") == "Altered"
    assert load(public, ID) == "Genuine"
    # packs with equal weights and different titles are different packs
    assert {"Altered", "Genuine"} <= {info.title for info in public.packs().values()}
    assert 0 < cached_bytes("shapes") < 3_000_000
    assert not any(HUGE in request for request in hub.requests)
    assert set(hub.tokens) == {""}
