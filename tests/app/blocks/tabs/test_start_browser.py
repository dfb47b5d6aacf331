"""The choice to start with, in a real browser: the scenes, a folder, or files."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from tests.app.conftest import draw
from tests.app.serving import Server
from tests.app.visitor import WORDS, Guests, Visit, arrive

pytestmark = [pytest.mark.browser, pytest.mark.slow]
BOTH = pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])


@pytest.fixture
def visit(guests: Guests, bundled: Server) -> Iterator[Visit]:
    """Opens the page over the scenes."""
    with guests.visits(bundled) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five images unlike any scene, a copy, and a file that is none."""
    folder = tmp_path_factory.mktemp("mine")
    random = np.random.default_rng(0)
    for i in range(4):
        noise = random.integers(256, size=(64, 96, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"noise{i}.png")
    draw(3)[0].save(folder / "shapes.png")
    shutil.copy(folder / "shapes.png", folder / "zcopy.png")
    (folder / "broken.jpg").write_text("no picture")
    return folder


@BOTH
def test_who_only_types_is_not_kept(visit: Visit, width: int, dark: bool) -> None:
    visitor = visit(width, dark)
    page = visitor.page
    choice = page.locator(".pv-start-choice")
    expect(choice).to_be_visible()
    box = choice.bounding_box()
    assert box is not None
    assert box["height"] < 50
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visitor.search("a dog")
    expect(choice).to_be_hidden()
    visitor.enter("tab=search&q=a+dog")
    expect(page.locator("#pv-answer")).to_contain_text("for “a dog”")
    expect(choice).to_be_hidden()


@BOTH
def test_a_folder_is_searched_with_a_pack_that_suits_and_stays(
    visit: Visit, mine: Path, width: int, dark: bool
) -> None:
    visitor = visit(width, dark)
    page = visitor.page
    page.get_by_role("button", name="Search my images").first.click()
    place = page.locator("#pv-place")
    place.fill(str(mine / "nowhere"))
    place.press("Enter")
    expect(page.locator("#pv-start-line")).to_contain_text("There is no folder")
    expect(page.locator("#pv-start-line")).to_be_visible()
    place.fill(str(mine))
    place.press("Enter")
    top, note = page.locator("#pv-top"), page.locator("#pv-note")
    expect(top).to_contain_text("5 pictures")
    expect(page.locator(".pv-start")).to_be_hidden()
    expect(note).to_contain_text("Searched with Photographs")
    expect(page.locator("#pv-answer")).to_contain_text("5 pictures to search")
    assert sum("zcopy" in hit or "broken" in hit for hit in visitor.hits()) == 0
    page.get_by_role("button", name="2 left out").click()
    expect(page.locator("#pv-out")).to_contain_text("zcopy.png is the same as shapes.png")
    page.get_by_role("button", name="2 left out").click()
    expect(page.locator("#pv-out")).to_be_hidden()
    visitor.search("a red circle")
    visitor.open_tab("Models")
    page.get_by_role("button", name="Use Scenes", exact=True).click()
    expect(note).to_contain_text("emoji only")
    expect(top).to_contain_text("5 pictures")  # the folder stayed
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Use the photographs' pack").click()
    expect(note).to_contain_text("Searched with")
    visitor.open_tab("Search")
    expect(page.locator("#pv-answer")).to_contain_text("5 of 5 pictures for “a red circle”")


@BOTH
def test_files_are_sent_and_searched(visit: Visit, mine: Path, width: int, dark: bool) -> None:
    visitor = visit(width, dark)
    page = visitor.page
    page.get_by_role("button", name="Search my images").first.click()
    files = [*sorted(mine.iterdir()), *(mine / f"noise{i}.png" for i in range(4))]  # two uploads
    page.locator(".pv-drop input").set_input_files(files)
    expect(page.locator("#pv-top")).to_contain_text("your files")
    expect(page.locator("#pv-top")).to_contain_text("5 pictures")
    visitor.search("a red circle")
    assert any("shapes.png" in hit for hit in visitor.hits())
    page.get_by_role("button", name="Search my images").click()
    page.get_by_role("button", name="Close", exact=True).click()
    visitor.enter()
    page.get_by_role("button", name="Try the scenes").click()
    expect(page.locator(WORDS)).to_be_focused()
    expect(page.locator(".pv-start-choice")).to_be_hidden()
    expect(page.locator("#pv-top")).to_contain_text("1,000 pictures")


@pytest.mark.parametrize(("width", "height"), [(1280, 2 * 900), (390, 4 * 844)])
def test_the_benchmark_is_short_and_whole(visit: Visit, width: int, height: int) -> None:
    visitor = visit(width)
    page = visitor.page
    visitor.open_tab("Benchmark")
    expect(page.locator("#pv-bench-results tbody tr")).to_have_count(7)
    expect(page.locator("#pv-bench-plot svg:visible")).to_have_count(1)
    choice = page.locator("#pv-bench-ablation input")
    expect(choice).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") <= height
    table = page.locator(".pv-bench-scroll")
    for group in page.locator(".pv-bench-groups button").all():
        if group.is_visible():
            group.click()
        assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    choice.click()
    page.get_by_role("option").first.click()
    expect(page.locator(".pv-ablation")).to_have_count(1)


def test_the_first_load_is_light(browser: Browser, bundled: Server) -> None:
    """All that comes over the network until the page is still, with its first images."""
    visitor = arrive(browser, bundled)
    devtools = visitor.page.context.new_cdp_session(visitor.page)
    devtools.send("Network.enable")
    received = Counter[str]()

    def note(event: dict[str, Any]) -> None:
        received[event["requestId"]] += event["encodedDataLength"]

    devtools.on("Network.dataReceived", note)
    visitor.page.goto(bundled.url)
    expect(visitor.page.locator("#pv-grid img").first).to_be_visible()
    before = -1
    while received.total() > before:  # until nothing came for two seconds
        before = received.total()
        visitor.page.wait_for_timeout(2000)
    assert 100_000 < received.total() < 500_000
    assert not visitor.complaints  # such as a request to anywhere else
    visitor.page.context.close()
