"""One press to something stronger, in a real browser, from a Hub on this machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.app.conftest import draw
from tests.app.serving import Serve, Server
from tests.app.visitor import Guests, Visit
from tests.clip_twins import VIT_B_32, enlarge, save_twin
from tests.export.faults import Fault
from tests.export.hub_server import HubState, Repo, running_hub

pytestmark = [pytest.mark.browser, pytest.mark.network, pytest.mark.slow]
CLIP = "openai/clip-vit-base-patch32"
MODEL = "GET .*model.safetensors"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubState]:
    """A Hub that holds a twin of CLIP under its name."""
    twin = enlarge(save_twin(tmp_path_factory.mktemp("twin") / "clip", VIT_B_32))
    with running_hub() as state:
        state.repos[CLIP] = Repo(card={"license": "mit"})
        files = {path.name: path.read_bytes() for path in twin.iterdir()}
        state.repos[CLIP].add_commit("main", files)
        yield state


@pytest.fixture(scope="module")
def app(serve: Serve, hub: HubState, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The app without arguments, which asks that Hub."""
    place = tmp_path_factory.mktemp("hub")
    return serve(
        HF_ENDPOINT=hub.url,
        HF_HUB_OFFLINE="0",
        HF_HUB_CACHE=str(place / "cache"),
        HF_TOKEN_PATH=str(place / "no-token"),
        NO_PROXY="127.0.0.1",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six drawn images."""
    place = tmp_path_factory.mktemp("mine")
    for i in range(6):
        draw(i)[0].save(place / f"shapes{i}.png")
    return place


@pytest.fixture
def visit(guests: Guests, app: Server) -> Iterator[Visit]:
    """Opens the page."""
    with guests.visits(app) as open_page:
        yield open_page


def test_without_the_hub_and_after_a_cancel_the_app_goes_on(visit: Visit, hub: HubState) -> None:
    page = visit(390, dark=True).page
    page.get_by_role("tab", name="Lab", exact=True).click()
    page.get_by_role("tab", name="Models", exact=True).click()
    stronger = page.locator("#pv-stronger")
    expect(stronger).to_contain_text("About 605 MB once, MIT licence, then some minutes")
    expect(stronger).to_contain_text("Set POLYVIEW_PHOTOS_LARGE to the Hub id")
    expect(stronger.get_by_role("button")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fetch = page.get_by_role("button", name="Fetch CLIP")
    said = page.locator("#pv-start-line")
    hub.faults["GET /api"] = Fault("status", 503)
    fetch.click()
    expect(said).to_contain_text("CLIP is not on this machine yet; it is fetched once")
    expect(said).to_be_visible()
    hub.faults = {MODEL: Fault("trickle", 11_000_000)}
    fetch.click()
    expect(said).to_contain_text(f"Downloading {CLIP}")
    expect(said).to_contain_text("of 12.6 MB")
    expect(said.get_by_role("progressbar")).to_be_visible()
    page.locator("#pv-start-cancel").click()
    expect(said).to_contain_text("nothing was kept")
    hub.faults = {}
    expect(page.locator("#pv-top")).to_contain_text("Scenes")


def test_one_press_searches_a_folder_with_clip(visit: Visit, folder: Path) -> None:
    visitor = visit(1280)
    page = visitor.page
    page.get_by_role("button", name="Search my images").first.click()
    page.locator("#pv-place").fill(str(folder))
    page.locator("#pv-place").press("Enter")
    note, top = page.locator("#pv-note"), page.locator("#pv-top")
    expect(note).to_contain_text("CLIP finds more: about 605 MB once, MIT licence")
    expect(top).to_contain_text("6 pictures")
    visitor.search("a red dog on the beach")
    visitor.open_tab("Models")
    page.locator("#pv-stronger").get_by_role("button", name="Fetch CLIP").click()
    expect(page.locator("#pv-start-line")).to_contain_text("Converting")
    expect(page.locator("#pv-start-row")).to_be_hidden()
    expect(top).to_contain_text("6 pictures")
    visitor.open_tab("Search")  # what was asked is asked again
    expect(page.locator("#pv-answer")).to_contain_text("CLIP")
    expect(page.locator("#pv-evidence")).to_contain_text("of each picture as a whole")
    visitor.search("two cars")
    assert len(visitor.hits()) == 6
    expect(page.locator("[data-testid=toast-body]")).to_have_count(0)
    visitor.open_tab("Models")
    expect(page.locator(".pv-card", has_text="Credits")).to_contain_text(CLIP)
    expect(page.locator("#pv-stronger").get_by_role("button")).to_have_count(0)


def test_what_was_fetched_needs_no_network(visit: Visit, hub: HubState, folder: Path) -> None:
    hub.down = True
    asked = len(hub.requests)
    visitor = visit(390)
    page = visitor.page
    page.get_by_role("button", name="Search my images").first.click()
    page.locator("#pv-place").fill(str(folder))
    page.locator("#pv-place").press("Enter")
    page.locator("#pv-note").get_by_role("button", name="Use CLIP").click()
    expect(page.locator("#pv-note")).to_be_hidden()
    expect(page.locator("#pv-method input")).to_have_value(re.compile("CLIP"))
    visitor.search("a red dog on the beach")
    assert len(visitor.hits()) == 6
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert len(hub.requests) == asked
