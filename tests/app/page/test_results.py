"""Results in a browser: the table sorts, explains and stars; labels of the plot do not collide."""

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.app.api.conftest import Running, run  # noqa: F401  # a fixture

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(run: Callable[..., Running]) -> Running:  # noqa: F811
    """The app over the bundled scenes."""
    return run()


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desktop", "phone"])
def page(browser: Browser, server: Running, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The screen, wide and light or narrow and dark."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{server.url}/?screen=results")
    expect(page.locator(".numbers").first).to_be_visible()
    yield page
    context.close()


def test_the_table_sorts_stars_and_explains(server: Running, page: Page) -> None:
    answer = server.get("results")
    rows = page.locator(".numbers").first.locator("tbody tr")
    by_title = {row["title"]: row["values"] for row in answer["methods"].values()}
    for key, down in (("query_ms", False), ("t2i_r1", True)):
        head = page.locator(f"th[data-key={key}]")
        head.locator("button").click()
        expect(head).to_have_attribute("aria-sort", "descending" if down else "ascending")
        titles = rows.locator("th").all_inner_texts()
        assert titles == sorted(by_title, key=lambda t: by_title[t][key], reverse=down)
        expect(page.locator(".tip")).to_contain_text("image")
    best = max(by_title, key=lambda title: by_title[title]["rsum"])
    column = [each["key"] for each in answer["columns"]].index("rsum")
    starred = rows.filter(has=page.locator(f"th:text-is('{best}')")).locator("td").nth(column)
    expect(starred).to_contain_text("★")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_labels_do_not_collide_and_axe_is_content(server: Running, page: Page) -> None:
    boxes = page.locator(".plot svg:visible .name").evaluate_all(
        "names => names.map(name => name.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == len(server.get("results")["methods"])
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            assert across <= 1 or down <= 2
    expect(page.locator(".plot table tr")).to_have_count(len(boxes) + 1)
    fold = page.locator(".ablations .fold").first
    fold.locator("summary").click()
    expect(fold).to_contain_text("The paper found")
    expect(fold).to_contain_text("Here")
    serious = [
        (violation["id"], violation["nodes"][0]["html"])
        for violation in Axe().run(page).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []
