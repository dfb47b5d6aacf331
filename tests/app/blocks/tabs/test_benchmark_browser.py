"""The Benchmark tab in a real browser: sorting and measuring speed."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from app.packs.candidates import record
from export.pack.reading import update_metrics
from export.runtime import Runtime
from tests.app.serving import Serve, Server
from tests.app.visitor import Guests, Visitor
from tests.measuring import measure
from training.data.pack_gallery import from_pack

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def stated(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pack with its numbers."""
    pack = shutil.copytree(tiny_pack, tmp_path_factory.mktemp("stated") / "pack")
    runtime, data = Runtime.load(pack, "cpu"), from_pack(pack, "test")
    for name in ("vsepp", "vse_infty"):
        values = measure(runtime, name, data)
        command = f"python -m training.evaluate --pack {pack.name} --method {name} --split test"
        about = {"split": "test", "command": command, "hardware": "here", "seed": 0}
        update_metrics(pack, name, {**about, "values": values})
    growth = {"images": [1000, 100_000], "median": {"vsepp": [0.05, 5.0], "scan": [40.0, 4000.0]}}
    more = {"queries": 3, "hardware": "here", "command": "it"}
    record(pack).write_text(json.dumps({**growth, **more}))
    return pack


@pytest.fixture(scope="module")
def benchmark_server(serve: Serve, stated: Path) -> Server:
    return serve("--pack", stated)


@pytest.fixture
def visitor(guests: Guests, benchmark_server: Server) -> Iterator[Visitor]:
    """The visitor who stays on the page over that pack."""
    with guests.at(benchmark_server) as guest:
        yield guest


def opened(visitor: Visitor) -> Page:
    """The page with its Benchmark tab open."""
    visitor.open_tab("Benchmark")
    page = visitor.page
    expect(page.locator("#pv-bench-results tbody tr")).to_have_count(2)
    return page


def titled(page: Page, title: str) -> Locator:
    """A column's title, which sorts."""
    name = re.compile(f"^{title}")
    return page.locator("#pv-bench-results button[data-column]", has_text=name)


def column(page: Page, title: str) -> list[str]:
    """The values of a column from the top down."""
    button = titled(page, title)
    place = int(str(button.get_attribute("data-column")))
    rows = page.locator("#pv-bench-results tbody tr").all()
    return [str(row.locator("th, td").nth(place).get_attribute("data-value")) for row in rows]


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False), (1920, True)])
def test_the_table_sorts_and_the_plot_fits(visitor: Visitor, width: int, dark: bool) -> None:
    visitor.open_tab("Search")
    visitor.resize(width, dark)
    page = opened(visitor)
    if width < 1180:  # where there is no room for all groups of columns
        page.get_by_role("button", name="Overall").click()
    button = titled(page, "rsum")
    head = button.locator("xpath=..")
    for wanted, down in (("descending", True), ("ascending", False)):
        button.press("Enter")
        expect(head).to_have_attribute("aria-sort", wanted)
        found = [float(value) for value in column(page, "rsum")]
        assert found == sorted(found, reverse=down)
    before = column(page, "rsum")
    page.locator("#pv-bench-time").click()
    expect(page.locator("#pv-bench-plot")).to_contain_text("just now")
    assert column(page, "rsum") == before  # shown anew, in the same order
    assert all(float(ms) > 0 for ms in column(page, "ms"))
    plot = page.locator("#pv-bench-plot svg:visible")
    expect(plot).to_have_count(1)
    assert "VSE++" in str(plot.get_attribute("aria-label"))
    if not page.locator("#pv-bench-candidates").is_visible():  # the page stays from test to test
        page.get_by_role("button", name="How a query slows down").click()
    growth = page.locator("#pv-bench-candidates svg:visible")
    expect(growth).to_have_count(1)
    drawn = growth.evaluate("svg => svg.getBoundingClientRect().toJSON()")
    for words in growth.locator("text").all():  # no name and no number is cut off
        box = words.evaluate("text => text.getBoundingClientRect().toJSON()")
        assert drawn["left"] - 1 <= box["left"], words.text_content()
        assert box["right"] <= drawn["right"] + 1, words.text_content()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator(".pv-bench-scroll")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")  # nothing is cut off
