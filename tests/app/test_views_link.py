"""Ways into the Views tab: links, and a hit of the Search tab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from app.links import LookLink, read_look, write_look
from app.retriever import Retriever
from models import METHODS
from tests.app.conftest import Server
from tests.app.visitor import SECONDS, Visit, visits

LINE = "#pv-v-answer"
VIEWS_WORDS = "#pv-v-words :is(input, textarea)"


@pytest.fixture
def visit(browser: Browser, views_server: Server) -> Iterator[Visit]:
    """Opens the page over the pack with several views."""
    with visits(browser, views_server) as open_page:
        yield open_page


def asked(page: Page) -> dict[str, list[str]]:
    """What the page's address holds."""
    return parse_qs(urlsplit(page.url).query, keep_blank_values=True)


def test_a_look_is_read_as_it_was_written(views_retriever: Retriever) -> None:
    address = write_look(7, "vse_infty", "a bar & <b>")
    assert read_look(parse_qsl(address), views_retriever) == LookLink(7, "vse_infty", "a bar & <b>")
    assert write_look(None, "vse_infty", "a bar") == ""
    assert read_look([("q", "a bar")], views_retriever) == LookLink()
    empty = read_look([("image", "3"), ("q", ""), ("method", "mv_vse+vse_infty")], views_retriever)
    assert empty == LookLink(3, "mv_vse", "")
    wrong = read_look([("image", "99"), ("q", "a"), ("method", "x")], views_retriever)
    assert (wrong.image_id, wrong.method, wrong.words) == (None, "", None)
    assert '"99" is no picture' in wrong.problems[0]
    assert 'there is no method "x"' in wrong.problems[1]


@pytest.mark.browser
def test_a_link_restores_picture_method_and_text(visit: Visit, views_server: Server) -> None:
    words = "a red circle & more"
    visitor = visit()
    visitor.leave()
    page = visitor.page
    page.goto(f"{views_server.url}/?tab=views&{write_look(7, 'vse_infty', words)}")
    score = views_server.ask("views", 7, "vse_infty", words)["score"]
    line = page.locator(LINE)
    expect(line).to_contain_text(f"score {score:.3f}", timeout=SECONDS)
    expect(line).to_contain_text("test-000007")
    expect(line).to_contain_text(METHODS["vse_infty"].title)
    expect(page.locator(VIEWS_WORDS)).to_have_value(words)
    page.locator(".pv-v-strip button[data-picture='3']").click()
    expect(line).to_contain_text("test-000003", timeout=SECONDS)
    held = {"tab": ["views"], "image": ["3"], "method": ["vse_infty"], "q": [words]}
    assert asked(page) == held
    page.get_by_role("tab", name="Search").click()  # which has asked the same words
    expect(page.locator("#pv-answer")).to_contain_text(f"for “{words}”")
    expect(page).not_to_have_url(re.compile("image="))
    page.get_by_role("tab", name="Views").click()
    expect(line).to_contain_text("test-000003")
    expect(page).to_have_url(re.compile("image=3"))


@pytest.mark.browser
def test_a_hit_is_looked_at_inside(visit: Visit, views_server: Server) -> None:
    visitor = visit()
    page = visitor.page
    hits = views_server.ask("search_text", "a red circle", "mv_vse", 12)["hits"]
    visitor.search("a red circle")
    for place in (2, 4):
        visitor.open_tab("Search")
        visitor.page.locator("#pv-grid button").nth(place).click()
        expect(page.locator("#pv-head")).to_contain_text(f"rank {place + 1}", timeout=SECONDS)
        page.get_by_role("button", name="Look inside").click()
        line = page.locator(LINE)
        expect(line).to_contain_text(f"{hits[place]['image_id']:06}", timeout=SECONDS)
        expect(line).to_contain_text(f"score {hits[place]['score']:.3f}")
        expect(line).to_be_visible()
        expect(page.locator(VIEWS_WORDS)).to_have_value("a red circle")
    expect(page).to_have_url(re.compile(f"image={hits[4]['image_id']}(&|$)"))


def click_fast(page: Page, box: str, places: list[int]) -> None:
    """Clicks several elements, faster than anything is answered."""
    page.evaluate(
        """async ([box, places]) => {
            for (const place of places) {
                document.querySelectorAll(box)[place].click();
                await new Promise((done) => setTimeout(done, 15));
            }
        }""",
        [box, places],
    )


@pytest.mark.browser
def test_of_fast_clicks_the_last_one_counts(visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.look(0)
    click_fast(page, "#pv-layers input", [1, 2, 0, 3])
    legend = page.locator("#pv-inspector .pv-legend")
    expect(legend).to_have_count(0, timeout=SECONDS)  # the last is the plain picture
    visitor.search("a red circle")
    click_fast(page, "#pv-grid button", [1, 5, 3, 8])
    expect(page.locator("#pv-head")).to_contain_text("rank 9", timeout=SECONDS)
    visitor.open_tab("Views")
    line = page.locator(LINE)
    expect(line).to_contain_text("test-000000", timeout=SECONDS)
    expect(page.locator(".pv-v-strip button")).to_have_count(14)
    click_fast(page, ".pv-v-strip button", [2, 6, 4])
    last = page.locator(".pv-v-strip button").nth(4).get_attribute("data-picture")
    expect(line).to_contain_text(f"test-{int(str(last)):06}", timeout=SECONDS)
    visitor.open_tab("Compare")
    expect(page.locator(".pv-cmp-try").nth(2)).to_be_visible(timeout=SECONDS)
    click_fast(page, ".pv-cmp-try", [1, 0, 2])
    words = page.locator(".pv-cmp-try span").nth(2).inner_text()
    expect(page.locator("#pv-cmp-line")).to_contain_text(f"for “{words}”", timeout=SECONDS)
