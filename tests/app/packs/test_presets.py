"""Stronger packs by one name: fetched once, kept, opened offline; and what goes wrong, said."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.app.api.library import Library
from polyview.app.api.shell import main as search
from polyview.app.packs.downloads import make_offer, pack_folder
from polyview.app.packs.opened import Opened
from polyview.app.settings import Settings
from polyview.export.hub.client import UnreachableError
from polyview.export.obtain import CLIP
from tests.app.packs.test_obtaining import fetched, leftovers, stock
from tests.clip_twins import SIGLIP, VIT_B_32, enlarge, save_twin
from tests.export.hub_server import HubState

pytestmark = [pytest.mark.network, pytest.mark.slow]
TINY = "wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M"
SIGLIP_224, SIGLIP_256 = "google/siglip-base-patch16-224", "google/siglip-base-patch16-256"


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def twin(hub: HubState, tmp_path: Path) -> Path:
    """A twin of the preset's CLIP, on the Hub under its name, large enough to be cut off."""
    folder = enlarge(save_twin(tmp_path / "twin", VIT_B_32))
    stock(hub, TINY, read(folder), "mit")
    return folder


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(3):
        noise = random.integers(256, size=(64, 96, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{i}.png")
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_clip_is_fetched_by_name_and_then_needs_no_network(
    hub: HubState, twin: Path, tmp_path: Path, photographs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert search(["a red dog", "--pack", "tinyclip", "--gallery", str(photographs)]) == 0
    printed = capfd.readouterr()
    size = sum(path.stat().st_size for path in twin.iterdir() if path.name != "merges.txt")
    commit = hub.repos[TINY].branches["main"]
    assert (
        f"fetching TinyCLIP 8M from {TINY}@{commit[:8]}: {size / 1e6:,.0f} MB, licence mit"
        in printed.err
    )
    assert len(printed.out.splitlines()) == 3
    hub.down = True
    query = len(hub.requests)
    opened = Opened(Settings("tinyclip", photographs, "cpu"), tmp_path / "cache")
    assert opened.first.info.licence == "mit"
    assert f"{TINY}@{commit}" in opened.first.info.credits
    with Library("tinyclip", photographs, device="cpu") as library:
        assert library.methods == ("clip",)
        assert len(library.search("a red dog")) == 3
    assert len(hub.requests) == query
    assert leftovers(tmp_path) == []


def test_of_several_repositories_the_first_with_safe_weights_is_taken(
    hub: HubState, tmp_path: Path
) -> None:
    stock(hub, SIGLIP_224, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    stock(hub, SIGLIP_256, read(save_twin(tmp_path / "twin", SIGLIP)))
    offer = make_offer(CLIP, "siglip")
    assert offer.address == SIGLIP_256
    assert not any("pytorch_model" in name for name in offer.parts[0].files)
    assert fetched(hub) == []


def test_without_a_network_nothing_but_a_sentence(
    hub: HubState,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileNotFoundError, match="or one of tinyclip, tinyclip-39m, siglip"):
        pack_folder("clip", tmp_path)
    with pytest.raises(UnreachableError, match=r"cannot be reached.* is fetched once, and then"):
        pack_folder("tinyclip", tmp_path / "cache")
    assert search(["a dog", "--pack", "tinyclip"]) == 2
    assert "TinyCLIP 8M is not on this machine yet" in capfd.readouterr().err
    assert hub.requests == []
