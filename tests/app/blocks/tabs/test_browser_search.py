"""The Search tab, and its ways into Views, in a real browser; images have several views, facts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import handle_file
from playwright.sync_api import Page, expect

from app.explain.collapse import Meters
from app.search.links import write_look
from app.search.retriever import Retriever
from models import METHODS
from tests.app.conftest import IMAGES, draw
from tests.app.serving import Server
from tests.app.visitor import WORDS, Guests, Visitor

pytestmark = pytest.mark.browser

BOTH = "mv_vse+vse_infty"
TILES = "#pv-grid button"
LINE = "#pv-v-answer"
VIEWS_WORDS = "#pv-v-words :is(input, textarea)"


@pytest.fixture
def newcomer(guests: Guests, views_server: Server) -> Iterator[Visitor]:
    """The visitor over the pack with several views, who has yet to enter as the test wants it."""
    with guests.at(views_server) as guest:
        yield guest


@pytest.fixture
def visitor(newcomer: Visitor) -> Visitor:
    """The same, on the page as it is at first but for what was asked and answered."""
    newcomer.settle()
    newcomer.choose_method(METHODS["mv_vse"].title)
    return newcomer


def ask(visitor: Visitor, words: str, read_as: str) -> None:
    """Asks for several terms."""
    visitor.page.fill(WORDS, words)
    visitor.page.press(WORDS, "Enter")
    reading = visitor.page.locator(".pv-reading")
    expect(reading).to_have_text(read_as)


def badges(visitor: Visitor) -> list[str]:
    """The winning view that each tile names, or nothing."""
    tiles = visitor.page.locator(TILES).all()
    return [" ".join(tile.locator(".pv-view").all_inner_texts()) for tile in tiles]


def shows(visitor: Visitor, hits: list[dict[str, Any]]) -> bool:
    """Whether the results are the API's hits, each with one of its captions."""
    shown = [re.sub(r", view \d+ won", "", name) for name in visitor.hits()]
    return len(shown) == len(hits) and all(map(_is_called, shown, hits))


def _is_called(name: str, hit: dict[str, Any]) -> bool:
    mark = ", satisfies the caption" if hit.get("satisfies") else ""
    lead = f"{hit['rank']} · {hit['score']:.3f} · "
    return any(name == f"{lead}{caption}{mark}" for caption in hit["captions"])


def focused(visitor: Visitor) -> int:
    """Which tile has the focus; -1 for none."""
    return int(
        visitor.page.evaluate(
            "[...document.querySelectorAll('#pv-grid button')].indexOf(document.activeElement)"
        )
    )


def test_a_badge_names_the_view_of_the_api(
    visitor: Visitor, views_server: Server, views_retriever: Retriever
) -> None:
    alike = Meters().collapsed(views_retriever, "mv_vse")  # of random weights: no view is named
    visitor.search("a red circle")
    hits = views_server.ask("search_text", "a red circle", "mv_vse", IMAGES)["hits"]
    assert badges(visitor) == ["" if alike else f"view {hit['view'] + 1}" for hit in hits]
    visitor.page.locator("#pv-method input").click()
    visitor.page.get_by_role("option", name="(ensemble)").click()
    expect(visitor.page.locator("#pv-answer")).to_contain_text(" + ")
    hits = views_server.ask("search_text", "a red circle", BOTH, IMAGES)["hits"]
    assert shows(visitor, hits)
    assert set(badges(visitor)) == {""}
    ask(visitor, "a red circle - a red circle", "a red circle\N{MINUS SIGN} a red circle")
    expect(visitor.page.locator("#pv-answer")).to_contain_text("nothing was asked")
    words = [name.split(" · ")[:2] for name in visitor.hits()]
    assert words == [[str(place + 1), "0.000"] for place in range(IMAGES)]


def test_small_maps_and_keys(visitor: Visitor, views_server: Server) -> None:
    visitor.search("a blue bar")
    hit = views_server.ask("search_text", "a blue bar", "mv_vse", IMAGES)["hits"][2]
    visitor.look(2)
    panel = visitor.page.locator("#pv-inspector")
    expect(panel).to_contain_text(f"view {hit['view'] + 1} of 3 won")
    expect(panel).to_contain_text("no proof that an object is there")
    radios = panel.get_by_role("radio")
    expect(radios).to_have_count(4 + 3 + 1)  # evidence of all words and of each; views; no map
    expect(radios.first).to_be_checked()
    large = panel.locator("#pv-map img")
    seen = {str(large.get_attribute("src"))}
    for place in range(1, 8):
        radios.nth(place).check()
        expect(large).not_to_have_attribute("src", re.compile("|".join(map(re.escape, seen))))
        seen.add(str(large.get_attribute("src")))
        if place == 4 + hit["view"]:
            expect(panel.get_by_label(f"View {hit['view'] + 1}, the winner")).to_be_checked()
            expect(panel).to_contain_text(METHODS["mv_vse"].attention_is)
    assert len(seen) == 8
    expect(panel.locator(".pv-legend")).to_have_count(0)  # the last is the plain picture
    page = visitor.page
    page.get_by_role("button", name="Close").click()
    expect(panel).to_contain_text("Choose a picture")
    assert focused(visitor) == 2
    tops = [tile.bounding_box() for tile in page.locator(TILES).all()]
    columns = sum(
        box is not None and tops[0] is not None and box["y"] == tops[0]["y"] for box in tops
    )
    assert 1 < columns < IMAGES
    page.focus(WORDS)
    for key, place in (
        ("ArrowDown", 0), ("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns),
        ("ArrowUp", 0), ("ArrowLeft", 0), ("End", IMAGES - 1), ("ArrowRight", IMAGES - 1),
        ("Home", 0),        ("ArrowRight", 1),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert focused(visitor) == place, key
    page.keyboard.press("Enter")
    expect(panel).to_contain_text("rank 2")
    page.keyboard.press("Escape")
    expect(panel).to_contain_text("Choose a picture")
    assert focused(visitor) == 1


def test_pointing_into_the_open_image_tells_what_the_cell_brings(
    visitor: Visitor, views_server: Server
) -> None:
    page = visitor.page
    visitor.search("a red circle")
    visitor.look(0)
    image = int(str(page.locator(TILES).first.get_attribute("data-picture")))
    told = views_server.ask("explain", "a red circle", image, "mv_vse")
    rows, columns = told["grid"]
    expect(page.locator('#pv-layers input[value="evidence:0"]')).to_be_checked()
    shown = page.locator("#pv-map img")
    shown.scroll_into_view_if_needed()
    frame = shown.bounding_box()
    assert frame is not None
    spot = page.locator(".pv-ev-spot")
    for row, column in ((0, 0), (rows - 1, 0), (rows // 2, columns - 1)):
        x = frame["x"] + (column + 0.5) / columns * frame["width"]
        page.mouse.move(x, frame["y"] + (row + 0.5) / rows * frame["height"])
        expect(spot).to_contain_text(f"of {told['score']:.3f} from here")
        value = float(spot.inner_text().split()[0].replace("\N{MINUS SIGN}", "-"))
        assert value == pytest.approx(sum(told["cells"][row * columns + column]), abs=2e-3)
    page.mouse.move(5, 5)
    expect(spot).to_be_hidden()


def test_everything_fits_at_any_width(visitor: Visitor) -> None:
    page = visitor.page
    before = page.locator("#pv-grid").bounding_box()
    times = "\N{MULTIPLICATION SIGN}"
    ask(visitor, "2: a red circle + a blue bar", f"2 {times} a red circle+ a blue bar")
    after = page.locator("#pv-grid").bounding_box()
    assert before is not None
    assert after is not None
    assert after["y"] == before["y"]  # nothing moved when the answer came
    for drawer in ("Filters", "A picture of yours", "Earlier questions", "What am I looking at?"):
        page.get_by_text(drawer).first.click()
    expect(page.get_by_text("It does not outline objects")).to_be_visible()
    expect(page.locator("#pv-about")).to_contain_text(METHODS["mv_vse"].paper)
    visitor.look(0)
    for width in (1280, 360):
        visitor.resize(width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for part in (".pv-view", ".pv-foot", ".pv-layer", ".pv-copy", ".pv-term"):
            for box in page.locator(part).all():
                place = box.bounding_box()
                assert place is not None
                assert 0 <= place["x"] <= place["x"] + place["width"] <= width, part


def test_ticks_and_filters_are_true(newcomer: Visitor, views_server: Server) -> None:
    newcomer.enter()
    caption = f"a picture of a {draw(5)[1][1]}"
    newcomer.search(caption)
    hits = views_server.ask("search_text", caption, "mv_vse", IMAGES)["hits"]
    assert shows(newcomer, hits)
    tiles = newcomer.page.locator(TILES).all()
    ticked = [tile.locator(".pv-true").count() == 1 for tile in tiles]
    assert ticked == [caption in hit["captions"] for hit in hits]
    assert any(ticked)
    assert not all(ticked)
    newcomer.page.get_by_text("Filters", exact=True).click()
    newcomer.page.get_by_label("Setting").click()
    newcomer.page.get_by_role("option", name="dusk (8)").click()
    answer = newcomer.page.locator("#pv-answer")
    expect(answer).to_contain_text("8 of 8 pictures")
    expect(answer).to_contain_text("setting: dusk")
    expect(newcomer.page.locator("#pv-filters")).to_contain_text("Filters (1)")
    wanted = {"setting": ["dusk"]}
    reply = views_server.ask("search_text", caption, "mv_vse", IMAGES, wanted)
    assert [hit["image_id"] % 3 for hit in reply["hits"]] == [2] * 8
    assert shows(newcomer, reply["hits"])
    assert newcomer.asked()["only"] == ["setting:dusk"]


def test_a_link_restores_question_method_and_tab(newcomer: Visitor, views_server: Server) -> None:
    newcomer.enter(f"q=2:+a+bar+-+a+circle&method={BOTH.replace('+', '%2B')}")
    page = newcomer.page
    expect(page.locator(".pv-term")).to_have_count(2)
    assert page.input_value(WORDS) == "2: a bar - a circle"
    assert "(ensemble)" in page.input_value("#pv-method input")
    hits = views_server.ask("search_text", "2: a bar - a circle", BOTH, IMAGES)["hits"]
    assert shows(newcomer, hits)
    newcomer.look(0)
    maps = page.locator("#pv-inspector .pv-strip")
    expect(maps.get_by_role("radio")).to_have_count((1 + 4) + 3 + 1 + 1)
    methods = [METHODS["mv_vse"].title, METHODS["vse_infty"].title]
    expect(maps.locator("h3")).to_have_text(["What the words find", *methods, "Without a map"])
    newcomer.search("a green square & more")
    expect(page).to_have_url(re.compile("q=a\\+green"))
    assert newcomer.asked() == {
        "__theme": ["light"], "tab": ["search"], "q": ["a green square & more"],
        "method": [BOTH],
    }  # fmt: skip
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    newcomer.open_tab("Models")
    expect(page).to_have_url(re.compile("tab=models"))
    expect(page.get_by_text("CPUExecutionProvider")).to_be_visible()
    newcomer.reload()
    expect(page.get_by_text("CPUExecutionProvider")).to_be_visible()
    page.get_by_role("tab", name="Search").click()
    expect(page.locator("#pv-answer")).to_contain_text("“a green square & more”")


def test_a_hostile_link_gets_sentences(newcomer: Visitor) -> None:
    hostile = "%3Cimg%20src=x%20onerror=document.title='owned'%3E"
    newcomer.enter(f"q=a+bar&tab={hostile}&method={hostile}&like=../x&only={hostile}:%00")
    alerts = newcomer.page.locator("#pv-answer").get_by_role("alert")
    expect(alerts).to_have_count(3)
    expect(alerts.nth(1)).to_contain_text("there is no method", ignore_case=True)
    expect(newcomer.page.get_by_text("There is no tab")).to_be_visible()
    expect(newcomer.page.locator("#pv-answer")).to_contain_text("for “a bar”")
    assert newcomer.page.title() == "Polyview"


def test_an_image_with_words_again(newcomer: Visitor, views_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "mine.png"
    draw(6)[0].save(path)
    newcomer.enter()
    page = newcomer.page
    page.get_by_text("A picture of yours", exact=True).click()
    page.set_input_files("#pv-upload input[type=file]", path)
    answer = page.locator("#pv-answer")
    expect(answer).to_contain_text("like mine.png")
    expect(answer).to_contain_text("A link cannot hold an uploaded picture")
    expect(page.get_by_role("button", name="Copy link")).to_be_disabled()
    ask(newcomer, "a pink bar", "mine.png+ a pink bar")
    weight = page.locator("#pv-weight input[type=number]")
    weight.fill("2.5")
    weight.press("Enter")
    expect(page.locator(".pv-reading")).to_contain_text("2.5 ")
    image = handle_file(path)
    reply = views_server.ask("search_image", image, "mv_vse", IMAGES, "a pink bar", 2.5)
    assert shows(newcomer, reply["images"])
    page.get_by_label("Remove Image").click()
    expect(answer).to_contain_text("for “a pink bar”")
    page.get_by_text("Earlier questions (3)").click()
    earlier = page.locator(".pv-again")
    expect(earlier).to_have_text(["a pink bar", "mine.png with “a pink bar”", "like mine.png"])
    earlier.nth(1).click()
    expect(page.locator(".pv-reading")).to_contain_text("mine.png+ a pink bar")
    expect(page.locator("#pv-upload img")).to_be_visible()
    expect(earlier).to_have_text(["mine.png with “a pink bar”", "a pink bar", "like mine.png"])
    page.get_by_role("button", name="Clear the list").click()
    expect(earlier).to_have_count(0)


def test_a_link_into_views_restores_all_of_it(newcomer: Visitor, views_server: Server) -> None:
    words = "a red circle & more"
    newcomer.leave()
    page = newcomer.page
    page.goto(f"{views_server.url}/?tab=views&{write_look(7, 'vse_infty', words)}")
    score = views_server.ask("views", 7, "vse_infty", words)["score"]
    line = page.locator(LINE)
    expect(line).to_contain_text(f"score {score:.3f}")
    expect(line).to_contain_text("test-000007")
    expect(line).to_contain_text(METHODS["vse_infty"].title)
    expect(page.locator(VIEWS_WORDS)).to_have_value(words)
    page.locator(".pv-v-strip button[data-picture='3']").click()
    expect(line).to_contain_text("test-000003")
    held = {"tab": ["views"], "image": ["3"], "method": ["vse_infty"], "q": [words]}
    assert newcomer.asked() == held
    page.get_by_role("tab", name="Search").click()  # which has asked the same words
    expect(page.locator("#pv-answer")).to_contain_text(f"for “{words}”")
    expect(page).not_to_have_url(re.compile("image="))
    newcomer.open_tab("Views")
    expect(line).to_contain_text("test-000003")
    expect(page).to_have_url(re.compile("image=3"))


def test_a_hit_is_looked_at_inside(visitor: Visitor, views_server: Server) -> None:
    page = visitor.page
    hits = views_server.ask("search_text", "a red circle", "mv_vse", IMAGES)["hits"]
    visitor.search("a red circle")
    for place in (2, 4):
        visitor.open_tab("Search")
        visitor.page.locator("#pv-grid button").nth(place).click()
        expect(page.locator("#pv-head")).to_contain_text(f"rank {place + 1}")
        page.get_by_role("button", name="Look inside").click()
        line = page.locator(LINE)
        expect(line).to_contain_text(f"{hits[place]['image_id']:06}")
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


def test_of_fast_clicks_the_last_one_counts(newcomer: Visitor) -> None:
    newcomer.enter()
    page = newcomer.page
    newcomer.look(0)
    click_fast(page, "#pv-layers input", [1, 2, 0, 3])
    legend = page.locator("#pv-inspector .pv-legend")
    expect(legend).to_have_count(0)  # the last is the plain picture
    newcomer.search("a red circle")
    click_fast(page, "#pv-grid button", [1, 5, 3, 8])
    expect(page.locator("#pv-head")).to_contain_text("rank 9")
    newcomer.open_tab("Views")
    line = page.locator(LINE)
    expect(line).to_contain_text("test-000000")
    expect(page.locator(".pv-v-strip button")).to_have_count(14)
    click_fast(page, ".pv-v-strip button", [2, 6, 4])
    last = page.locator(".pv-v-strip button").nth(4).get_attribute("data-picture")
    expect(line).to_contain_text(f"test-{int(str(last)):06}")
    newcomer.open_tab("Compare")
    expect(page.locator(".pv-cmp-try").nth(2)).to_be_visible()
    click_fast(page, ".pv-cmp-try", [1, 0, 2])
    words = page.locator(".pv-cmp-try span").nth(2).inner_text()
    expect(page.locator("#pv-cmp-line")).to_contain_text(f"for “{words}”")
