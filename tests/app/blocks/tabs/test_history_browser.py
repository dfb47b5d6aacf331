"""Back, Forward, a reload and a link bring again what was asked, opened and compared."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from app.search.links import write_look
from models import METHODS
from tests.app.serving import Server
from tests.app.visitor import WIDTH, WORDS, Guests, Visit, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COMPARED = "#pv-cmp-words :is(textarea, input)"
HEAD = "#pv-head"


@pytest.fixture
def visitor(guests: Guests, views_server: Server) -> Iterator[Visitor]:
    """The visitor who stays on the page over the pack with several views, with nothing asked."""
    with guests.at(views_server) as guest:
        guest.enter()
        yield guest


@pytest.fixture
def visit(guests: Guests, views_server: Server) -> Iterator[Visit]:
    """Opens that page for another visitor."""
    with guests.visits(views_server) as open_page:
        yield open_page


def address(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def compare(page: Page, words: str) -> None:
    page.fill(COMPARED, words)
    page.press(COMPARED, "Enter")
    expect(page.locator("#pv-cmp-line")).to_contain_text(f"for “{words}”")


def shows(page: Page, words: str, image: str = "") -> None:
    """Waits until Search shows the answer to some words, and one image open or none."""
    expect(page.locator("#pv-answer")).to_contain_text(f"for “{words}”")
    expect(page.locator(WORDS)).to_have_value(words)
    expect(page.locator("#pv-answer")).to_be_visible()
    head = page.locator(HEAD)
    expect(head).to_contain_text(image or "Choose a picture")
    assert ("image" in address(page)) is bool(image)


@pytest.mark.parametrize("width", [WIDTH, 390])
def test_back_and_forward_through_all_that_was_seen(visitor: Visitor, width: int) -> None:
    visitor.resize(width)
    page = visitor.page
    visitor.search("a red circle")
    visitor.search("a blue bar")
    visitor.look(1)
    file = page.locator(".pv-subject h2").inner_text()
    visitor.open_tab("Compare")
    compare(page, "a green bar")
    page.go_back()  # to Compare before it was asked
    expect(page.locator(".pv-cmp-ghost")).to_be_visible()
    page.go_back()
    shows(page, "a blue bar", file)
    page.go_back()
    shows(page, "a blue bar")
    page.go_back()
    shows(page, "a red circle")
    page.go_back()
    expect(page.locator("#pv-answer")).to_contain_text("to search")
    assert page.url.startswith(visitor.home)
    for _ in range(3):
        page.go_forward()
    shows(page, "a blue bar", file)
    page.go_forward()
    page.go_forward()
    expect(page.locator("#pv-cmp-line")).to_contain_text("for “a green bar”")
    expect(page.locator("#pv-cmp-line")).to_be_visible()


def test_back_faster_than_anything_is_answered(visitor: Visitor) -> None:
    page = visitor.page
    for words in ("a red circle", "a blue bar", "a green bar", "a pink square"):
        visitor.search(words)
    page.evaluate(
        """async () => {
            for (let i = 0; i < 2; i++) {
                history.back();
                await new Promise((done) => addEventListener("popstate", done, { once: true }));
            }
        }"""
    )
    shows(page, "a blue bar")
    page.go_back()
    shows(page, "a red circle")
    for words in ("a blue bar", "a green bar", "a pink square"):
        page.go_forward()
        shows(page, words)


def test_open_images_are_entries_and_closing_is_none(visitor: Visitor) -> None:
    page = visitor.page
    visitor.search("a red circle")
    before = page.url
    visitor.look(0)
    first = page.locator(".pv-subject h2").inner_text()
    visitor.look(3)
    expect(page.locator(".pv-subject h2")).not_to_have_text(first)
    third = page.locator(".pv-subject h2").inner_text()
    page.go_back()
    shows(page, "a red circle", first)
    page.go_forward()
    shows(page, "a red circle", third)
    page.keyboard.press("Escape")
    shows(page, "a red circle")
    assert page.url == before
    page.go_back()
    expect(page.locator("#pv-answer")).to_contain_text("to search")


def test_a_link_and_a_reload_hold_the_open_image(visitor: Visitor, visit: Visit) -> None:
    page = visitor.page
    visitor.search("a red circle")
    visitor.look(2)
    file = page.locator(".pv-subject h2").inner_text()
    other = visit(address=urlsplit(page.url).query)
    shows(other.page, "a red circle", file)
    assert other.page.locator("#pv-grid [aria-current]").count() == 1
    visitor.reload()
    shows(page, "a red circle", file)
    page.get_by_role("button", name="Close", exact=True).click()
    shows(page, "a red circle")
    page.go_back()
    expect(page.locator("#pv-answer")).to_contain_text("to search")
    other.close()
    shows(other.page, "a red circle")


def test_another_method_keeps_the_image_open(visitor: Visitor) -> None:
    page = visitor.page
    visitor.search("a red circle")
    visitor.look(0)
    file = page.locator(".pv-subject h2").inner_text()
    title = METHODS["vse_infty"].title
    visitor.choose_method(title)
    expect(page.locator(HEAD)).to_contain_text(title)
    shows(page, "a red circle", file)
    page.go_back()
    expect(page.locator(HEAD)).to_contain_text(METHODS["mv_vse"].title)
    shows(page, "a red circle", file)


def test_links_into_compare_and_views(visitor: Visitor, views_server: Server) -> None:
    page = visitor.page
    visitor.open_tab("Compare")
    compare(page, "a pink bar")
    expect(page).to_have_url(re.compile("ranks="))
    link = page.url
    visitor.leave()
    page.goto(link)
    expect(page.locator("#pv-cmp-line")).to_contain_text("for “a pink bar”")
    expect(page.locator("#pv-cmp-line")).to_be_visible()
    expect(page.locator(COMPARED)).to_have_value("a pink bar")
    words = "a red circle & more"
    visitor.leave()
    page.goto(f"{views_server.url}/?tab=views&q={words.replace('&', '%26')}&method=vse_infty")
    line = page.locator("#pv-v-answer")
    expect(line).to_contain_text(METHODS["vse_infty"].title)
    expect(page.locator("#pv-v-words :is(input, textarea)")).to_have_value(words)
    expect(page).to_have_url(re.compile(re.escape(write_look(0, "vse_infty", words))))
    page.locator(".pv-v-strip button[data-picture='3']").click()
    expect(line).to_contain_text("test-000003")
    page.go_back()
    expect(line).to_contain_text("test-000000")


def test_earlier_questions_outlive_the_page_until_they_are_cleared(visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    for words in ("a red circle", "a blue bar"):
        visitor.search(words)
    visitor.reload()
    shows(page, "a blue bar")
    earlier = page.locator("#pv-history .pv-again")
    page.locator("#pv-earlier button").first.click()
    expect(earlier).to_have_text(["a blue bar", "a red circle"])
    earlier.last.click()
    shows(page, "a red circle")
    expect(earlier).to_have_text(["a red circle", "a blue bar"])
    page.locator(".pv-forget").click()
    expect(earlier).to_have_count(0)
    visitor.reload()
    shows(page, "a red circle")  # which the address holds
    page.locator("#pv-earlier button").first.click()
    expect(earlier).to_have_text(["a red circle"])


def test_two_steps_back_at_once_open_the_later_ones_tab(visitor: Visitor) -> None:
    """Also where the server is slow with the first one."""
    page = visitor.page
    visitor.search("a red circle")
    visitor.open_tab("Compare")
    compare(page, "a green bar")
    page.evaluate(
        """() => {
            const send = window.fetch;
            let held = false;
            window.fetch = async (...request) => {
                const first = !held && request[1]?.method === "POST";
                held ||= first;
                if (first) await new Promise((done) => setTimeout(done, 1500));
                return send(...request);
            };
            window.pvSend = send;
        }"""
    )
    page.go_back()
    page.go_back()
    shows(page, "a red circle")
    page.wait_for_timeout(3_000)  # when all that was held is answered
    shows(page, "a red circle")
    page.evaluate("() => { window.fetch = window.pvSend; }")
