"""The page in a real browser: what a visitor types, clicks, uploads and sees."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from models import METHODS
from tests.app import hostile
from tests.app.conftest import HOSTILE, IMAGES, draw
from tests.app.packs.test_open_packs import variant
from tests.app.serving import Server
from tests.app.visitor import WORDS, Guests, Visitor

pytestmark = pytest.mark.browser


@pytest.fixture
def visitor(guests: Guests, server: Server) -> Iterator[Visitor]:
    """The visitor who stays on the page over the tiny pack."""
    with guests.at(server) as guest:
        guest.open_tab("Search")
        guest.close()
        guest.choose_method("VSE∞")
        yield guest


@pytest.fixture(scope="module")
def second(guests: Guests, server: Server) -> Iterator[Visitor]:
    """A visitor beside that one, who enters anew in each test."""
    with guests.visits(server) as open_page:
        yield open_page()


def upload(visitor: Visitor, path: Path) -> None:
    """Asks with a picture, from the drawer that may be open already."""
    field = visitor.page.locator("#pv-upload input[type=file]")
    if not field.count():
        visitor.page.get_by_text("A picture of yours", exact=True).click()
    field.set_input_files(path)


def test_captions_are_shown_as_text(visitor: Visitor) -> None:
    visitor.enter()
    visitor.look(0)  # the sample begins with picture 0, whose last caption is hostile
    panel = visitor.page.locator("#pv-inspector")
    expect(panel).to_contain_text(HOSTILE)
    assert visitor.page.title() == "Polyview"
    visitor.search(HOSTILE[:59])
    assert visitor.page.title() == "Polyview"


def test_copies_are_what_the_standard_says(visitor: Visitor) -> None:
    ours = """() => {
      const inner = [1], given = [1, "a", null, undefined, 2n, NaN, { inner }, new Date(0)];
      const copied = structuredClone(given);
      const alone = given.slice(0, 6).map((one) => structuredClone(one));
      const buffer = new ArrayBuffer(1);
      structuredClone(buffer, { transfer: [buffer] });
      let refused = 0;
      for (const one of [() => 0, Symbol()]) try { structuredClone(one) } catch { refused++ }
      return [alone.every((one, i) => Object.is(one, given[i])), copied[6].inner !== inner,
              copied[7] instanceof Date, buffer.byteLength, refused];
    }"""
    assert visitor.page.evaluate(ours) == [True, True, True, 0, 2]


def test_words_find_pictures_and_a_click_looks_inside(visitor: Visitor, server: Server) -> None:
    visitor.search("a red circle")
    answer = server.ask("search_text", "a red circle", "vse_infty", IMAGES)["hits"]
    for name, hit in zip(visitor.hits(), answer, strict=True):
        start, caption = name.rsplit(" · ", 1)
        assert start == f"{hit['rank']} · {hit['score']:.3f}"
        assert caption in hit["captions"]
    visitor.look(1)
    panel = visitor.page.locator("#pv-inspector")
    expect(panel).to_contain_text(answer[1]["file"])
    expect(panel).to_contain_text(f"score {answer[1]['score']:.3f}")
    expect(panel).to_contain_text("All words together")
    visitor.page.get_by_label("Attention", exact=True).check()
    expect(panel).to_contain_text(METHODS["vse_infty"].attention_is)
    for caption in answer[1]["captions"]:
        expect(panel).to_contain_text(caption)


def test_the_map_can_be_taken_off(visitor: Visitor) -> None:
    visitor.look(0)
    image = visitor.page.locator("#pv-map img")
    with_map = image.get_attribute("src")
    visitor.page.get_by_label("Picture", exact=True).check()
    expect(image).not_to_have_attribute("src", str(with_map))
    expect(visitor.page.locator(".pv-legend")).to_have_count(0)


def test_an_example_is_one_click_away(visitor: Visitor) -> None:
    chip = visitor.page.locator(".pv-chip").first
    words = chip.inner_text()
    chip.click()
    expect(visitor.page.locator("#pv-answer")).to_contain_text(f"for “{words}”")
    assert visitor.page.input_value(WORDS) == words


def test_another_method_answers_the_same_question(visitor: Visitor, server: Server) -> None:
    visitor.search("a blue bar")
    visitor.choose_method("VSE++")
    expect(visitor.page.locator("#pv-answer")).to_contain_text("VSE++")
    first = server.ask("search_text", "a blue bar", "vsepp", 1)["hits"][0]
    expect(visitor.page.locator("#pv-grid img").first).to_have_attribute(
        "alt", re.compile(re.escape(f"1 · {first['score']:.3f} · "))
    )


def test_an_upload_finds_captions_and_images(
    visitor: Visitor, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "mine.png"
    draw(6)[0].save(path)
    visitor.page.fill(WORDS, "")
    upload(visitor, path)
    answer = visitor.page.locator("#pv-answer")
    expect(answer).to_contain_text("like mine.png")
    expected = server.ask_image(path, "vse_infty", 8)
    captions = visitor.page.locator(".pv-captions li")
    expect(captions).to_have_count(8)
    expect(captions.first).to_contain_text(expected["captions"][0]["text"])
    assert draw(6)[1][0] in visitor.hits()[0]
    visitor.page.get_by_label("Remove Image").click()
    expect(visitor.page.locator("#pv-upload img")).to_have_count(0)


def test_a_found_picture_can_be_the_next_question(visitor: Visitor) -> None:
    visitor.search("a green square")
    visitor.look(2)
    file = visitor.page.locator(".pv-subject h2").inner_text()
    visitor.page.get_by_role("button", name="Search with this picture").click()
    expect(visitor.page.locator("#pv-answer")).to_contain_text(f"like {file}")
    assert visitor.hits()[0].startswith("1 · ")
    assert len(visitor.hits()) == IMAGES - 1
    assert visitor.page.locator(f'#pv-grid [data-picture="{int(file[-11:-5])}"]').count() == 0


def test_mistakes_get_a_sentence_beside_the_question(visitor: Visitor, tmp_path: Path) -> None:
    visitor.page.fill(WORDS, "   ")
    visitor.page.press(WORDS, "Enter")
    alert = visitor.page.get_by_role("alert")
    expect(alert).to_contain_text("The query is empty")
    upload(visitor, hostile.write(tmp_path, "text.jpg"))
    expect(alert).to_contain_text("text.jpg is not a picture")
    expect(visitor.page.locator("#pv-upload img")).to_have_count(0)  # ready for another
    visitor.search("a red bar")
    expect(alert).to_have_count(0)


@pytest.mark.parametrize(
    ("width", "dark"), [(360, True), (390, False), (1280, True), (1920, False)]
)
def test_nothing_is_cut_off_at_any_width(visitor: Visitor, width: int, dark: bool) -> None:
    visitor.resize(width, dark)
    visitor.search(f"a pink circle {width}")
    visitor.look(0)
    for tab in ("Search", "Models"):
        visitor.open_tab(tab)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
    expect(visitor.page.get_by_text("CPUExecutionProvider")).to_be_visible()


def test_results_arrive_without_a_jump(visitor: Visitor) -> None:
    tops = []
    for words in ("a red circle", "a blue bar"):
        visitor.search(words)
        box = visitor.page.locator("#pv-grid").bounding_box()
        assert box is not None
        tops.append(box["y"])
    assert tops[0] == tops[1]


def test_visitors_do_not_meet(visitor: Visitor, second: Visitor, server: Server) -> None:
    one, two = visitor, second
    two.enter()
    two.choose_method("VSE∞")
    one.search("a red circle")
    two.search("a green bar")
    one.look(0)
    first = server.ask("search_text", "a red circle", "vse_infty", 1)["hits"][0]
    expect(one.page.locator("#pv-inspector")).to_contain_text(first["file"])
    expect(two.page.locator("#pv-answer")).to_contain_text("a green bar")
    expect(two.page.locator("#pv-inspector")).to_contain_text("Choose a picture")


def test_a_pack_is_loaded_for_one_visitor_only(
    visitor: Visitor, second: Visitor, tiny_pack: Path, tmp_path: Path
) -> None:
    other = variant(tiny_pack, tmp_path / "other", 9, title="Another title")
    one, two = second, visitor
    one.enter()
    for who in (one, two):
        who.open_tab("Models")
    address, message = one.page.locator("#pv-address input"), one.page.locator("#pv-load-message")
    address.fill("neither here nor there")
    one.page.get_by_role("button", name="Load", exact=True).click()
    expect(message).to_contain_text("is no pack")
    expect(message).to_contain_text("Shapes <b> goes on serving")
    address.fill(str(other))
    address.press("Enter")
    expect(message).to_contain_text("Another title is loaded")
    expect(one.page.locator("#pv-top")).to_contain_text("Another title")
    expect(two.page.locator("#pv-top")).to_contain_text("Shapes <b>")
    one.page.get_by_role("tab", name="Search").click()
    one.search("a red circle")
    one.look(0)


def test_a_choice_names_its_address_and_says_that_it_is_offline(visitor: Visitor) -> None:
    visitor.open_tab("Models")
    visitor.resize(360, dark=True)
    page = visitor.page
    page.locator("#pv-kind").get_by_text("CLIP, zero-shot").click()
    message = page.locator("#pv-load-message")
    expect(message).to_contain_text("HF_HUB_OFFLINE is set")
    address = page.locator("#pv-address input")
    expect(address).to_have_value("openai/clip-vit-base-patch32")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    address.fill("owner/another")
    page.locator("#pv-load-go").click()
    expect(message).to_contain_text("HF_HUB_OFFLINE is set")
    expect(message).to_contain_text("Shapes <b> goes on serving")
