"""The bundled pack of clips in a browser: its hits, a clip that is open, and its frames."""

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.app.blocks.tabs.test_accessible import found
from tests.app.serving import Server
from tests.app.visitor import Guests

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ONE_DECIMAL = re.compile(r"at \d\.\d s\.")


def peak(strip: Locator) -> int:
    """The frame where a hit's strip is brightest."""
    return int(
        strip.evaluate(
            """strip => {
                const { data } = strip.getContext("2d").getImageData(0, 0, strip.width, 1);
                const bright = [...Array(strip.width).keys()].map((i) => data[4 * i]);
                return bright.indexOf(Math.max(...bright));
            }"""
        )
    )


def test_a_clip_is_found_by_all_its_frames(guests: Guests, bundled: Server) -> None:
    with guests.visits(bundled) as open_page:
        visitor = open_page()
        page = visitor.page
        visitor.open_tab("Models")
        page.get_by_role("button", name="Use Scenes in motion").click()
        expect(page.locator("#pv-top")).to_contain_text("300 pictures")
        visitor.open_tab("Search")
        visitor.search("a dog runs in")
        tiles = page.locator("#pv-grid .pv-tile")
        expect(tiles).to_have_count(40)
        expect(tiles.first.locator(".pv-when")).to_have_text(re.compile(r"▶ 0:0\d(\.\d)?$"))
        said = page.locator("#pv-evidence .pv-ev-said")
        expect(said).to_contain_text(ONE_DECIMAL)
        strip = tiles.first.locator(".pv-ev-strip")
        expect(strip).to_have_js_property("width", 16)
        expect(strip).to_have_css("height", "8px")
        best = peak(strip)

        tiles.first.click()
        line = page.locator(".pv-time")
        expect(line).to_have_attribute("data-best", str(best))
        expect(page.locator(".pv-time-said")).to_contain_text("adds 0.")
        expect(page.locator("#pv-map img")).to_be_visible()
        assert not found(page)
        of_all = str(line.get_attribute("aria-valuetext"))
        drawn = str(line.locator("polyline").get_attribute("points"))
        page.locator("#pv-evidence .pv-ev-word", has_text="in").last.hover()
        expect(line.locator("polyline")).not_to_have_attribute("points", drawn)
        expect(line).not_to_have_attribute("aria-valuetext", of_all)
        expect(page.locator("#pv-inspector")).to_contain_text(re.compile("“in” (brings|takes)"))
        page.mouse.move(0, 0)
        expect(line).to_have_attribute("aria-valuetext", of_all)
        still = page.locator(".pv-clip > img")
        before = str(still.get_attribute("src"))
        line.press("End")
        line.press("Enter")  # an animation shows the frame itself
        expect(still).not_to_have_attribute("src", before)
        expect(line).to_have_attribute("aria-valuetext", re.compile(r"^3\.1 seconds, \w+ 0\.\d+$"))

        page.get_by_role("button", name="Look inside").click()
        expect(page.locator("#pv-v-answer")).to_contain_text("0.1 to 3.1 seconds")
        expect(page.locator("#pv-v-evidence")).to_contain_text(ONE_DECIMAL)
        expect(page.locator("#pv-v-answer")).to_be_visible()  # on slow machines, later
        visitor.open_tab("Compare")
        page.fill("#pv-cmp-words textarea, #pv-cmp-words input", "a dog runs in")
        page.keyboard.press("Enter")
        expect(page.locator("#pv-cmp-evidence")).to_contain_text("all frames of a clip")
        whens = page.locator(".pv-cmp-grid .pv-cmp-when")
        expect(whens.first).to_have_text(re.compile(r"▶ 0:0\d(\.\d)?$"))
