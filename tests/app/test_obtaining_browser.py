"""The Models tab in a real browser, while the Hub cannot be reached."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

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
