"""Packs in a browser: fetched from a local Hub, with progress and cancel; the photographs pack."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.app.conftest import draw
from tests.app.page.conftest import NewTab, Tab
from tests.app.serving import Serve, Server
from tests.export.hub_server import Fault, HubState, running_hub

pytestmark = [pytest.mark.browser, pytest.mark.network, pytest.mark.slow]
ADDRESS = "someone/drawn"
SLOW = "someone/slow"


@pytest.fixture(scope="module")
def hub(tiny_pack: Path) -> Iterator[HubState]:
    """A Hub with the tiny pack in two repositories."""
    with running_hub() as state:
        files = [file for file in tiny_pack.rglob("*") if file.is_file()]
        content = {str(file.relative_to(tiny_pack)): file.read_bytes() for file in files}
        for address in (ADDRESS, SLOW):
            state.add(address, content, card={"license": "apache-2.0"})
        yield state


@pytest.fixture(scope="module")
def server(serve: Serve, hub: HubState, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The app with the photographs pack, over eight images, one of them in three versions."""
    images, place = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("hub")
    for i in range(8):
        draw(i)[0].save(images / f"drawn-{i}.png")
    image = draw(0)[0]
    for name, quality in (("again", 90), ("once-more", 80)):
        image.convert("RGB").save(images / f"drawn-0-{name}.jpg", quality=quality)
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    variables |= {"HF_HUB_CACHE": str(place / "cache"), "HF_TOKEN_PATH": str(place / "no-token")}
    return serve("--gallery", images, **variables)


def look(tab: Tab, address: str) -> None:
    """Opens the collection menu and looks up an address."""
    tab.open("?q=a+red+circle")
    tab.page.locator("#collection").click()
    tab.page.get_by_label("Hub address or folder").fill(address)
    tab.button("Look up").click()
    expect(tab.page.locator("#menu")).to_contain_text("licence apache-2.0")


def test_a_pack_is_fetched_and_used(server: Server, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    look(tab, ADDRESS)
    menu = tab.page.locator("#menu")
    tab.button("Download").click()
    expect(menu).to_contain_text("The pack is ready.")
    menu.locator("[role=status]").get_by_role("button", name="Use").click()
    expect(tab.page.locator("#method option")).to_have_count(2)
    expect(tab.tiles.first).to_be_visible()
    expect(tab.page.locator("#query")).to_have_value("a red circle")


def test_a_download_is_cancelled(server: Server, hub: HubState, new_tab: NewTab) -> None:
    before = server.get("packs")["packs"]
    tab = new_tab(server.url)
    look(tab, SLOW)
    menu = tab.page.locator("#menu")
    hub.faults = {f"GET /{SLOW}.*image_encoder.onnx": Fault("trickle", 2000)}
    tab.button("Download").click()
    expect(menu.get_by_role("progressbar", name="Download")).to_be_visible()
    expect(menu.locator("[role=status] .row span")).to_contain_text(" s")
    tab.button("Cancel").click()
    expect(menu).to_contain_text("Cancelled; the downloaded files were deleted.")
    hub.faults = {}
    assert [pack["key"] for pack in server.get("packs")["packs"]] == [p["key"] for p in before]


def test_photographs_have_no_badges_and_one_notice(server: Server, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open("?q=a+red+circle")
    expect(tab.page.locator("#collection")).to_contain_text("10")
    expect(tab.page.locator(".panel .sure")).to_have_count(0)
    assert "weak" not in tab.page.evaluate("document.body.innerText")
    notice = tab.page.locator("#notes", has_text="This small model often misses")
    expect(notice).to_contain_text("TinyCLIP (97 MB)")
    tab.button("Hide this notice").click()
    tab.page.reload()
    expect(tab.tiles.first).to_be_visible()
    expect(notice).to_have_count(0)
    tab.page.locator("#collection").click()
    cards = tab.page.locator("#menu .card")
    folder = cards.filter(has_text="A folder on this machine")
    expect(folder).to_have_attribute("aria-pressed", "true")
    cards.filter(has_text="emoji on painted").click()
    expect(tab.page.locator("#collection")).to_contain_text("Scenes · 1,000")


def test_near_duplicates_are_folded_and_unfolded(server: Server, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open("?q=a+red+circle")
    expect(tab.tiles).to_have_count(8)
    badge = tab.page.locator(".badge[data-alike]", has_text="+2 alike")
    badge.click()
    expect(tab.tiles).to_have_count(10)
    expect(tab.page.locator(".tile[data-alike]")).to_have_count(2)
    first = tab.page.locator(".tile:has(.badge[data-alike]:not([hidden]))")
    first.click(position={"x": 20, "y": 60})
    tab.button("2 nearly the same").click()
    expect(tab.tiles).to_have_count(8)
