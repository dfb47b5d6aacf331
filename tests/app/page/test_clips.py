"""Explore and Inspect over the bundled clips."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.api.conftest import Run
from tests.app.page.conftest import NewTab

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_clip_has_a_moment_a_player_and_a_timeline(run: Run, new_tab: NewTab) -> None:
    tab = new_tab(run("--pack", "scenes_moving").url)
    tab.open()
    expect(tab.tiles.first).to_have_attribute("data-right", "")
    expect(tab.tiles.first.locator(".badge")).to_contain_text(":0")
    tab.page.get_by_role("button", name="Play").click()
    player = tab.page.locator(".panel .stage img")
    expect(player).to_have_attribute("src", re.compile("/clip/"))
    tab.page.get_by_role("button", name="Inspect").click()
    expect(tab.page.locator(".strip figure")).to_have_count(16)
    expect(tab.page.get_by_role("heading", name="Over time")).to_be_visible()
