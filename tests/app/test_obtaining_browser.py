"""The Models tab in a real browser, while the Hub cannot be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.app.conftest import draw
from tests.app.serving import Server
from tests.app.visitor import SECONDS, Guests


@pytest.mark.browser
def test_a_choice_names_its_address_and_says_that_it_is_offline(
    guests: Guests, server: Server
) -> None:
    with guests.at(server) as visitor:
        visitor.open_tab("Models")
        visitor.resize(360, dark=True)
        page = visitor.page
        page.locator("#pv-kind").get_by_text("CLIP, zero-shot").click()
        message = page.locator("#pv-load-message")
        expect(message).to_contain_text("while HF_HUB_OFFLINE is set", timeout=SECONDS)
        address = page.locator("#pv-address input")
        expect(address).to_have_value("openai/clip-vit-base-patch32")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        address.fill("owner/another")
        page.locator("#pv-load-go").click()
        expect(message).to_contain_text("owner/another cannot be reached", timeout=SECONDS)
        expect(message).to_contain_text("Shapes <b> goes on serving")


@pytest.mark.browser
def test_pictures_of_this_machine_are_searched_and_looked_into(
    guests: Guests, server: Server, tmp_path: Path
) -> None:
    for i in range(3):
        draw(i)[0].save(tmp_path / f"mine{i}.png")
    with guests.at(server) as visitor:
        visitor.open_tab("Models")
        page = visitor.page
        page.locator("#pv-kind").get_by_text("Pictures of yours").click()
        page.locator("#pv-address input").fill(str(tmp_path))
        page.locator("#pv-load-go").click()
        expect(page.locator("#pv-load-message")).to_contain_text("Reading 3 pictures of")
        expect(page.locator("#pv-top")).to_contain_text("3 pictures", timeout=SECONDS)
        visitor.open_tab("Search")
        visitor.search("a red circle")
        assert {name for hit in visitor.hits() for name in re.findall(r"mine\d", hit)} == {
            "mine0", "mine1", "mine2"
        }  # fmt: skip
        visitor.open_tab("Views")
        expect(page.locator("#pv-v-answer")).to_contain_text("mine0", timeout=SECONDS)
        expect(page.get_by_test_id("toast-body")).to_have_count(0)
