"""The Compare tab in a real browser: columns, frames, light, keys, files."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.app.blocks.api.test_compare_api import BOTH, caption
from tests.app.conftest import IMAGES, draw
from tests.app.serving import Server
from tests.app.visitor import Guests, Visitor

pytestmark = pytest.mark.browser

WORDS = "#pv-cmp-words textarea, #pv-cmp-words input"


@pytest.fixture
def visitor(guests: Guests, server: Server) -> Iterator[Visitor]:
    """The visitor who stays on the page over the tiny pack, with the tab open."""
    with guests.at(server) as guest:
        guest.open_tab("Compare")
        yield guest


@pytest.fixture
def empty(visitor: Visitor) -> Visitor:
    """The same, with no answer on the page."""
    if not visitor.page.locator(".pv-cmp-ghost").is_visible():
        visitor.page.fill(WORDS, " ")
        visitor.page.press(WORDS, "Enter")
    expect(visitor.page.locator(".pv-cmp-ghost")).to_be_visible()
    return visitor


def ask(visitor: Visitor, words: str) -> None:
    visitor.page.fill(WORDS, words)
    visitor.page.press(WORDS, "Enter")
    expect(visitor.page.locator("#pv-cmp-line")).to_contain_text(f"for “{words}”")
    columns = visitor.page.get_by_role("grid", name=f"for {words}")  # which may come after the line
    expect(columns).to_be_visible()


def tile(visitor: Visitor, column: int, rank: int) -> Locator:
    return visitor.page.locator(f'.pv-cmp-tile[data-column="{column}"][data-row="{rank}"]')


def test_what_is_right_is_framed_at_the_apis_rank(visitor: Visitor, server: Server) -> None:
    ask(visitor, caption(9))
    answer = server.ask("compare", caption(9), BOTH, 10)
    heads = visitor.page.locator(".pv-cmp-head")
    for c, column in enumerate(answer["columns"]):
        expect(heads.nth(c)).to_contain_text(column["title"])
        expect(heads.nth(c)).to_contain_text(str(column["best_true_rank"]))
        framed = visitor.page.locator(f'.pv-cmp-right[data-column="{c}"]')
        ranks = [int(str(place.get_attribute("data-row"))) for place in framed.all()]
        assert ranks == [rank for rank in column["true_ranks"] if rank <= 10]
        for hit in column["hits"]:
            shown = tile(visitor, c, hit["rank"])
            expect(shown).to_have_attribute("data-id", str(hit["image_id"]))
            assert shown.locator("img").get_attribute("alt") == hit["captions"][0]
    share = f"{100 * answer['overlap'][0][1]:.0f}"
    assert visitor.page.locator(".pv-cmp-matrix td[title]").first.inner_text() == share


@contextmanager
def held(page: Page, event: str) -> Iterator[list[Route]]:
    """Holds the first request of an event until what is done meanwhile is done."""
    find = "name => gradio_config.dependencies.find((one) => one.api_name == name).id"
    number, routes = page.evaluate(find, event), list[Route]()

    def hold(route: Route) -> None:
        first = json.loads(route.request.post_data or "{}").get("fn_index") == number and not routes
        routes.append(route) if first else route.continue_()

    page.route("**/queue/join*", hold)
    yield routes
    for route in routes:
        route.continue_()
    page.unroute("**/queue/join*")


def test_the_tab_that_opens_late_leaves_the_columns_that_were_chosen(visitor: Visitor) -> None:
    """The answer to its opening came after the choice, or the page's own, and put back what was."""
    page = visitor.page
    chosen = page.locator("#pv-cmp-columns .token")
    visitor.open_tab("Search")
    with held(page, "compare_select") as requests:
        visitor.open_tab("Compare")
        page.locator("#pv-cmp-columns input").click()
        page.get_by_role("option", name="VSE++ + VSE∞, averaged").click()
        page.keyboard.press("Escape")
        expect(chosen).to_have_count(3)
    assert requests
    for words in ("a red circle", "a blue circle"):
        ask(visitor, words)
        expect(page.locator(".pv-cmp-head")).to_have_count(3)
    expect(chosen).to_have_count(3)
    visitor.enter()
    visitor.open_tab("Compare")
    expect(chosen).to_have_count(2)


def test_what_is_typed_while_the_page_opens_stays(visitor: Visitor) -> None:
    page = visitor.page
    with held(page, "compare_open") as requests:
        visitor.enter()
        visitor.open_tab("Compare")
        page.fill(WORDS, "a cyan bar")
    assert requests
    expect(page.locator(".pv-cmp-try").first).to_be_visible()  # so that the page is complete
    expect(page.locator(WORDS)).to_have_value("a cyan bar")
    page.press(WORDS, "Enter")
    expect(page.locator("#pv-cmp-line")).to_contain_text("for “a cyan bar”")


def test_a_picture_lights_up_in_every_column_and_opens(visitor: Visitor, server: Server) -> None:
    ask(visitor, "a red circle")
    page = visitor.page
    page.press(WORDS, "ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(tile(visitor, 1, 2)).to_be_focused()
    wanted = tile(visitor, 1, 2).get_attribute("data-id")
    lit = page.locator(".pv-cmp-same")
    expect(lit).not_to_have_count(0)  # the focus is there a moment before its event
    assert {same.get_attribute("data-id") for same in lit.all()} == {wanted}
    page.keyboard.press("Enter")
    dialog = page.locator(".pv-cmp-look")
    expect(dialog).to_be_visible()
    hits = server.ask("compare", "a red circle", BOTH, IMAGES)["columns"]
    for row, column in zip(dialog.locator("dd").all(), hits, strict=True):
        (rank,) = [h["rank"] for h in column["hits"] if str(h["image_id"]) == wanted]
        assert row.inner_text() == f"rank {rank}"
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    tile(visitor, 0, 3).hover()
    wanted = tile(visitor, 0, 3).get_attribute("data-id")
    assert {same.get_attribute("data-id") for same in lit.all()} == {wanted}


def test_images_ask_and_answers_save(visitor: Visitor, server: Server, tmp_path: Path) -> None:
    page = visitor.page
    line = page.locator("#pv-cmp-line")
    page.get_by_text("Compare with a picture instead").click()
    path = tmp_path / "mine.png"
    draw(6)[0].save(path)
    page.set_input_files("#pv-cmp-upload input[type=file]", path)
    expect(line).to_contain_text("like mine.png")
    expect(tile(visitor, 0, 1)).to_have_attribute("data-id", "6")
    tile(visitor, 0, 1).click()
    page.get_by_role("button", name="Compare with this picture").click()
    expect(line).to_contain_text("like images/test-000006.webp")
    expect(page.locator('.pv-cmp-tile[data-id="6"]')).to_have_count(0)  # it would always win
    page.locator("#pv-cmp-number input").fill("99")
    page.get_by_role("button", name="Compare with it").click()
    expect(page.get_by_role("alert")).to_contain_text("no picture 99")
    ask(visitor, caption(2))
    with page.expect_download() as download:
        page.get_by_role("button", name="Save JSON").click()
    download.value.save_as(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text())
    answer = server.ask("compare", caption(2), BOTH, 10)
    assert [c["hits"] for c in saved["columns"]] == [c["hits"] for c in answer["columns"]]


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False), (1920, True)])
def test_nothing_is_cut_off_and_nothing_jumps(empty: Visitor, width: int, dark: bool) -> None:
    visitor, page = empty, empty.page
    visitor.resize(width, dark)
    before = page.locator(".pv-cmp-scroll").bounding_box()
    ask(visitor, f"a pink circle {width}")
    expect(tile(visitor, 0, 1).locator("img")).to_be_visible()
    after = page.locator(".pv-cmp-scroll").bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] == pytest.approx(before["height"], abs=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_columns_are_chosen_and_mistakes_get_a_sentence(empty: Visitor) -> None:
    visitor = empty
    page = visitor.page
    example = page.locator(".pv-cmp-try").first
    words = example.locator("span").inner_text()
    example.click()
    expect(page.locator("#pv-cmp-line")).to_contain_text(f"2 columns for “{words}”")
    page.locator("#pv-cmp-columns input").click()
    page.get_by_role("option", name="VSE++ + VSE∞, averaged").click()
    expect(page.locator("#pv-cmp-line")).to_contain_text("3 columns")
    expect(page.locator(".pv-cmp-head").nth(2)).to_contain_text("averaged scores")
    page.keyboard.press("Escape")
    page.fill(WORDS, "  ")
    page.press(WORDS, "Enter")
    expect(page.get_by_role("alert")).to_contain_text("The query is empty")
    expect(page.locator(".pv-cmp-ghost .pv-cmp-head")).to_have_count(3)  # the old answer is gone
    expect(page.get_by_role("button", name="Save PNG")).to_be_disabled()
    ask(visitor, "a blue bar")
    expect(page.get_by_role("alert")).to_have_count(0)
