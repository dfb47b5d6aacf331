"""From the Hub into the app: said before it is fetched, and nothing half done is left."""

import json
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from huggingface_hub import constants

from polyview.app.api.shell import main as search
from polyview.app.packs.description import describe
from polyview.app.packs.downloads import Downloads, Job, pack_folder
from polyview.app.packs.state import AppState
from polyview.app.refusal import Refusal
from polyview.app.settings import Settings
from polyview.export.hub.client import UnreachableError
from polyview.export.obtain import CLIP, PACK, look, obtain
from polyview.export.pack.reading import list_files, load_info
from tests.app.conftest import draw
from tests.export.hub_server import READER, Fault, HubState, Repo
from tests.published import enlarge, save_clip

pytestmark = [pytest.mark.network, pytest.mark.slow]
ALLOWED = tuple(f"owner/{name}" for name in ("shapes", "altered", "secret", "large"))
ID, NET = "owner/shapes", "owner/clip"
TINY = "wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M"


@pytest.fixture
def downloads(state: AppState) -> Downloads:
    return state.downloads


def stock(hub: HubState, repo_id: str, files: dict[str, bytes], licence: str | None = None) -> str:
    """Puts files on the Hub; returns their commit."""
    hub.repos[repo_id] = Repo(card={"license": licence} if licence else {})
    return hub.repos[repo_id].add_commit("main", files)


def stock_pack(
    hub: HubState, pack: Path, repo_id: str, more: dict[str, bytes] | None = None, **values: Any
) -> None:
    """Puts a pack on the Hub, with other values in pack.json, and more files."""
    files = {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}
    files["pack.json"] = json.dumps({**json.loads(files["pack.json"]), **values}).encode()
    stock(hub, repo_id, files | (more or {}), "apache-2.0")


def stock_clip(hub: HubState, folder: Path) -> None:
    stock(hub, NET, {**read(save_clip(folder)), "pytorch_model.bin": b"never"}, "mit")


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
    half = [*(tmp_path / "cache").rglob("*.incomplete"), *(tmp_path / "app/packs").glob(".*")]
    return [path for path in half if path.exists()]


def test_a_look_fetches_nothing(hub: HubState, tiny_pack: Path, tmp_path: Path) -> None:
    stock_pack(hub, tiny_pack, ID, {"huge.bin": bytes(3_000_000)}, title="From the Hub")
    stock_clip(hub, tmp_path / "clip")
    stock(hub, "owner/old", {"config.json": b"{}", "pytorch_model.bin": b"x"})

    packed = look(PACK, ID).repo
    whole = sum(map(len, hub.repos[ID].commits[packed.commit].values()))
    assert (packed.missing_bytes, packed.licence) == (whole, "apache-2.0")
    sizes = look(CLIP, f"{NET}@main").repo.files
    assert sizes["model.safetensors"] == (tmp_path / "clip/model.safetensors").stat().st_size
    assert "pytorch_model.bin" not in sizes
    for kind, address, sentence in (
        (PACK, "owner/nothing", "there is no owner/nothing at"),
        (PACK, NET, "is not a pack: it has no pack.json"),
        (CLIP, "owner/old", "has no safetensors weights"),
        (CLIP, "not an id", '"not an id" is not a Hub id'),
    ):
        with pytest.raises(ValueError, match=sentence):
            look(kind, address)
    assert fetched(hub) == []
    assert not (tmp_path / "cache").exists()


def test_offline_is_a_sentence_and_a_folder_still_loads(
    hub: HubState,
    downloads: Downloads,
    tiny_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "app"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="packs in folders on this machine load without"):
        downloads.start(NET, CLIP)
    with pytest.raises(ValueError, match="is not completely in the local cache"):
        downloads.start(ID, PACK)
    assert fetch(downloads, PACK, str(tiny_pack)).state == "ready"
    with pytest.raises(FileNotFoundError, match="or one of tinyclip, tinyclip-39m, siglip"):
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
    stock_pack(hub, tiny_pack, ID, {"huge.bin": bytes(3_000_000)}, title="From the Hub")
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
    assert not any("huge.bin" in request for request in fetched(hub))
    hub.down = True
    assert fetch(downloads, PACK, ID).pack == job.pack


def test_cancellation(hub: HubState, downloads: Downloads, state: AppState, tmp_path: Path) -> None:
    stock_clip(hub, tmp_path / "clip")
    hub.faults["GET .*model.safetensors"] = Fault("trickle", 100)  # so that it cannot have ended
    job = downloads.start(NET, CLIP)
    with pytest.raises(Refusal, match="another download is running"):
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
            again = fetch(downloads, CLIP, NET)
            break
        time.sleep(0.1)
    assert (job.state, job.pack, again.state) == ("cancelled", "", "ready")
    assert list(state.packs()[again.pack].methods) == ["clip"]
    assert leftovers(tmp_path) == []


def test_a_pack_that_changed_is_not_fetched(hub: HubState, tiny_pack: Path, tmp_path: Path) -> None:
    stock_pack(hub, tiny_pack, ID, {"huge.bin": bytes(3_000_000)}, title="From the Hub")
    offer = look(PACK, ID)
    hub.repos[ID].add_commit("main", {"more.bin": b"0" * 9})
    with pytest.raises(ValueError, match="has changed since it was inspected; inspect it again"):
        obtain(offer, tmp_path, lambda *_: None, Event())
    assert fetched(hub) == []


def test_a_preset_is_fetched_by_name_and_then_needs_no_network(
    hub: HubState,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "app"))
    twin = enlarge(save_clip(tmp_path / "twin"))  # to 12 MB
    stock(hub, TINY, read(twin), "mit")
    images = tmp_path / "images"
    images.mkdir()
    for i in range(3):
        draw(i)[0].save(images / f"{i}.png")
    assert search(["a red dog", "--pack", "tinyclip", "--gallery", str(images)]) == 0
    printed = capfd.readouterr()
    size = sum(path.stat().st_size for path in twin.iterdir() if path.name != "merges.txt")
    commit = hub.repos[TINY].branches["main"]
    assert (
        f"fetching TinyCLIP 8M from {TINY}@{commit[:8]}: {size / 1e6:,.0f} MB, licence mit"
        in printed.err
    )
    assert len(printed.out.splitlines()) == 3
    hub.down, asked = True, len(hub.requests)
    state = AppState(Settings("tinyclip", images, "cpu"), tmp_path / "app")
    info = state.first.info
    assert (list(info.methods), info.licence) == (["clip"], "mit")
    assert f"{TINY}@{commit}" in info.credits
    assert fetch(state.downloads, CLIP, "tinyclip").pack == state.first_pack
    assert len(hub.requests) == asked
    assert leftovers(tmp_path) == []


@pytest.fixture
def public(
    hub: HubState,  # noqa: ARG001
    tiny_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AppState:
    """A public app that knows the Hub; its machine's owner has a token."""
    monkeypatch.setenv("HF_TOKEN", READER)
    settings = Settings(str(tiny_pack), device="cpu", host="0.0.0.0", allow_packs=ALLOWED)
    return AppState(settings, tmp_path / "cache with a space")


def load(public: AppState, address: str) -> str:
    """The title of a pack that a visitor fetched, or the sentence of the refusal."""
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
    """How many bytes of a repository are in the cache."""
    files = Path(constants.HF_HUB_CACHE, f"models--owner--{name}").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def test_what_visitors_may_not_load(public: AppState, hub: HubState, tiny_pack: Path) -> None:
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
    assert set(hub.tokens) == {""}  # the owner's is not used
    stated = json.loads((tiny_pack / "pack.json").read_text("utf-8"))["files"]
    stated["image_encoder.onnx"]["bytes"] = hub.stated["image_encoder.onnx"] = 2_100_000_000
    stock_pack(hub, tiny_pack, "owner/large", files=stated)
    assert "more than the 2,000,000,000 that visitors may load" in load(public, "owner/large")
    assert cached_bytes("secret") == cached_bytes("large") == 0
    assert not any("onnx" in request for request in hub.requests)


def test_allowed_packs_are_fetched(public: AppState, hub: HubState, tiny_pack: Path) -> None:
    stock_pack(hub, tiny_pack, "owner/altered", title="Altered", credits="A thief")
    big = {"gallery/big.bin": bytes(3_000_000)}
    stock_pack(hub, tiny_pack, ID, big, title="Genuine")
    assert load(public, "owner/altered") == "Altered"
    assert load(public, ID) == "Genuine"
    # the same weights as those that the app began with, under other words
    assert {"Altered", "Genuine"} <= {info.title for info in public.packs().values()}
    assert 0 < cached_bytes("shapes") < 3_000_000
    assert not any("big.bin" in request for request in hub.requests)
    assert set(hub.tokens) == {""}
