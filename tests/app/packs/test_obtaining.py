"""From the Hub into the app: said before it is fetched, and nothing half done is left."""

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gradio as gr
import pytest
import torch
from huggingface_hub import constants

from app.blocks.tabs.models import view
from app.blocks.tabs.models.tab import ModelsTab
from app.blocks.tabs.session import Session
from app.packs.description import describe
from app.packs.jobs import CancelledError
from app.packs.obtaining import Obtainer
from app.packs.open_packs import OpenPacks
from app.settings import Settings
from export.build.offer import CLIP, PACK, VSE_INFTY, Offer, look
from export.hub.client import Repo as HubRepo
from export.hub.client import UnreachableError
from export.obtain import obtain
from export.pack.reading import list_files, load_info
from tests.export import releases
from tests.export.faults import Fault
from tests.export.hub_server import HubState, Repo
from tests.published import save_clip

pytestmark = [pytest.mark.network, pytest.mark.slow]
ID, NET, VSE = "owner/shapes", "owner/clip", "cccjc/vse-infty"
VISITOR = Mock(session_hash="visitor")


@pytest.fixture
def open_packs(tiny_pack: Path, tmp_path: Path) -> OpenPacks:
    return OpenPacks(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")


@pytest.fixture
def tab(open_packs: OpenPacks) -> ModelsTab:
    with gr.Blocks() as blocks:
        session = Session(open_packs, blocks, gr.State(""), Mock(), Mock(), gr.State(None))
        with gr.Tabs(), gr.Tab("Models") as own:
            return ModelsTab(session, own.select)


def stock_pack(hub: HubState, pack: Path, title: str = "From the Hub") -> None:
    files = {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}
    manifest = json.loads(files["pack.json"])
    manifest["title"], manifest["tokenizer"]["max_length"] = title, 9
    files["pack.json"] = json.dumps(manifest).encode()
    hub.repos[ID] = Repo(card={"license": "apache-2.0"})
    hub.repos[ID].add_commit("main", {**files, "huge.bin": b"0" * 1000})


def stock_clip(hub: HubState, folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in save_clip(folder).iterdir()}
    hub.repos[NET] = Repo(card={"license": "mit"})
    hub.repos[NET].add_commit("main", {**files, "pytorch_model.bin": b"never"})


def fetched(hub: HubState) -> list[str]:
    return [request for request in hub.requests if "/resolve/" in request]


def press(tab: ModelsTab, kind: str, address: str, offer: Offer | None = None) -> list[Any]:
    """Presses the button, and says what it showed last, offered, and loaded."""
    *_, last = tab.load("", kind, address, offer, VISITOR)
    return [last[tab._message], last[tab._offer], last.get(tab._session.pack)]


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
    hub.repos[VSE] = Repo()
    hub.repos[VSE].add_commit("main", {"f30k/model_best.pth": stored.getvalue(), "else.pth": b"x"})
    hub.repos["google-bert/bert-base-uncased"] = Repo(card={"license": "apache-2.0"})
    pieces = {"vocab.txt": b"v" * 10, "config.json": b"{}", "model.safetensors": b"large"}
    hub.repos["google-bert/bert-base-uncased"].add_commit("main", pieces)

    packed = look(PACK, ID)
    whole = sum(map(len, hub.repos[ID].commits[packed.parts[0].commit].values()))
    assert (packed.missing_bytes, packed.unknown, packed.at_most) == (whole, 0, True)
    assert packed.parts[0].licence == "apache-2.0"
    network = look(CLIP, f"{NET}@main")
    sizes = network.parts[0].files
    assert sizes["model.safetensors"] == (tmp_path / "clip/model.safetensors").stat().st_size
    assert "pytorch_model.bin" not in sizes
    vse = look(VSE_INFTY, f"{VSE}/f30k")
    assert [part.licence for part in vse.parts] == [None, "apache-2.0"]
    assert vse.missing_bytes == len(stored.getvalue()) + 12
    card = view.offer_card(vse)
    assert "unknown: its card states none" in card
    assert "about 4 GB of memory" in card
    assert fetched(hub) == []
    assert not (tmp_path / "hub").exists()


def test_what_the_hub_does_not_say_is_unknown() -> None:
    part = HubRepo("a/b", "0" * 40, None, frozenset(), {"x": None, "y": 2_000_000}, {})
    offer = Offer(CLIP, "a/b", [part])
    assert view.amount(offer) == "2.0 MB and one file of unknown size"
    assert "size unknown" in view.offer_card(offer)


def test_what_cannot_be_had_is_a_sentence(hub: HubState, tiny_pack: Path, tmp_path: Path) -> None:
    stock_clip(hub, tmp_path / "clip")
    hub.repos["owner/secret"] = Repo(private=True)
    hub.repos["owner/old"] = Repo()
    hub.repos["owner/old"].add_commit("main", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    stock_pack(hub, tiny_pack)
    for kind, address, sentence in (
        (PACK, "owner/nothing", "there is no owner/nothing at"),
        (PACK, "owner/secret", "or it is private or the token is not valid"),
        (PACK, f"{ID}@v9", "no such revision"),
        (PACK, NET, "is not a pack: it has no pack.json"),
        (CLIP, "owner/old", "holds no weights as safetensors"),
        (VSE_INFTY, "somewhere", "takes owner/name/FOLDER_OR_FILE"),
        (CLIP, "not an id", '"not an id" is no Hub id'),
    ):
        with pytest.raises(ValueError, match=sentence):
            look(kind, address)


def test_offline_is_a_sentence_and_a_folder_still_loads(
    hub: HubState, tab: ModelsTab, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="cannot be reached"):
        look(CLIP, NET)
    said, offer, _ = press(tab, CLIP, NET)
    assert "cannot be reached" in said
    assert "a pack in a folder on this machine loads without" in said
    assert offer is None
    assert "is not, or not all, in the local cache" in press(tab, PACK, ID)[0]
    assert "is loaded" in press(tab, PACK, str(tiny_pack))[0]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in press(tab, VSE_INFTY, f"{VSE}/f30k")[0]
    assert hub.requests == []


def test_a_pack_is_offered_fetched_and_found_again(
    hub: HubState, tab: ModelsTab, open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    stock_pack(hub, tiny_pack)
    said, offer, loaded = press(tab, PACK, ID)
    assert "To download: at most" in said
    assert "apache-2.0" in said
    assert loaded is None
    assert fetched(hub) == []
    hub.damaged.add("vsepp/head.safetensors")
    said, after, loaded = press(tab, PACK, ID, offer)
    assert "vsepp/head.safetensors came damaged" in said
    assert "Shapes &lt;b&gt; goes on serving" in said
    assert (after, loaded) == (None, None)
    assert open_packs.packs().keys() == {""}
    assert leftovers(tmp_path) == []

    hub.damaged.clear()
    said, _, loaded = press(tab, PACK, ID, look(PACK, ID))
    assert "From the Hub is loaded" in said
    assert open_packs.get(loaded).info.title == "From the Hub"
    commit = hub.repos[ID].branches["main"]
    assert describe(open_packs.get(loaded))["pack"]["from"] == {"repository": ID, "commit": commit}
    assert f"{ID}@{commit}" in tab.refresh(loaded)[tab._pack]
    assert describe(open_packs.first)["pack"]["from"] is None
    assert not any("huge.bin" in request for request in fetched(hub))
    hub.down = True
    assert press(tab, PACK, ID)[2] == loaded


def test_clip_is_converted_once_and_then_needs_no_hub(
    hub: HubState, tab: ModelsTab, open_packs: OpenPacks, tmp_path: Path
) -> None:
    stock_clip(hub, tmp_path / "clip")
    _, offer, _ = press(tab, CLIP, NET)
    assert fetched(hub) == []
    shown = [updates[tab._message] for updates in tab.load("", CLIP, NET, offer, VISITOR)]
    assert any("Converting" in message for message in shown)
    assert "CLIP, clip is loaded" in shown[-1]
    hub.down = True
    loaded = press(tab, CLIP, NET)[2]
    info = open_packs.get(loaded).info
    assert (list(info.methods), info.licence) == (["clip"], "mit")
    assert leftovers(tmp_path) == []


def test_a_cancelled_download_leaves_nothing(hub: HubState, tmp_path: Path) -> None:
    stock_clip(hub, tmp_path / "clip")
    hub.faults["GET .*model.safetensors"] = Fault("trickle", 100)  # so that it cannot have ended
    obtainer = Obtainer(tmp_path / "cache" / "packs")
    signs = obtainer.run(look(CLIP, NET), "one")
    next(signs)
    with pytest.raises(ValueError, match="only one at a time"):
        next(obtainer.run(look(CLIP, NET), "two"))
    assert not obtainer.cancel("two")
    assert obtainer.cancel("one")
    with pytest.raises(CancelledError, match="Cancelled after"):
        list(signs)
    assert obtainer.find(CLIP, NET) is None
    assert leftovers(tmp_path) == []
    assert not obtainer.cancel("one")


def test_what_changed_since_it_was_shown_is_not_fetched(hub: HubState, tiny_pack: Path) -> None:
    stock_pack(hub, tiny_pack)
    shown = look(PACK, ID).parts[0].commit
    hub.repos[ID].add_commit("main", {"more.bin": b"0" * 9})
    with pytest.raises(ValueError, match="has changed since it was looked at; look again"):
        obtain(PACK, ID, None, shown)
    assert fetched(hub) == []


def test_a_public_app_converts_nothing(tiny_pack: Path, tmp_path: Path) -> None:
    public = OpenPacks(Settings(str(tiny_pack), device="cpu", host="0.0.0.0"), tmp_path / "cache")
    with pytest.raises(ValueError, match="only where no other machine reaches the app"):
        public.sources.find(CLIP, NET)
