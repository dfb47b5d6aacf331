"""What axe-core finds on every tab, wide and light, narrow and dark."""

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.app.serving import Server
from tests.app.visitor import WIDTH, Guests, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]
AXE = Axe()
SETTLED = """() => Promise.all(document.getAnimations()
    .filter((one) => one instanceof CSSTransition).map((one) => one.finished))"""
GRAVE = ("moderate", "serious", "critical")


@pytest.fixture
def visitor(guests: Guests, bundled: Server) -> Iterator[Visitor]:
    """The visitor who stays on the page over the bundled pack."""
    with guests.at(bundled) as guest:
        yield guest


def found(page: Page) -> list[tuple[str, str, str]]:
    """What is wrong, the grave alone: (rule, how grave, element); once nothing is pending."""
    expect(page.locator(".pending")).to_have_count(0)
    page.evaluate(SETTLED)
    violations: list[dict[str, Any]] = AXE.run(page).response["violations"]
    return [
        (one["id"], one["impact"], node["html"][:300])
        for one in violations
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(("width", "dark"), [(WIDTH, False), (390, True)])
def test_nothing_grave_on_any_tab(visitor: Visitor, width: int, dark: bool) -> None:
    page = visitor.page
    wrong = {}
    visitor.open_tab("Search")
    visitor.search("a dog")
    visitor.resize(width, dark)
    visitor.look(0)
    wrong["Search"] = found(page)
    visitor.close()
    visitor.open_tab("Compare")
    page.fill("#pv-cmp-words textarea, #pv-cmp-words input", "a dog")
    page.keyboard.press("Enter")
    expect(page.locator(".pv-cmp-tile img").first).to_be_visible()
    wrong["Compare"] = found(page)
    for tab, shown in (
        ("Views", ".pv-v-cells"),
        ("Benchmark", ".pv-bench"),
        ("Models", ".pv-here"),
    ):
        visitor.open_tab(tab)
        expect(page.locator(shown).first).to_be_visible()
        wrong[tab] = found(page)
    assert not any(wrong.values()), wrong
