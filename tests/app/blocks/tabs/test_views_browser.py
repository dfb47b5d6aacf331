"""The Views tab in a real browser: what is drawn is what the endpoints say."""

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from app.explain import heatmaps
from app.explain.look import maps_of
from app.search.retriever import Retriever
from models import METHODS
from tests.app import hostile
from tests.app.conftest import IMAGES, draw
from tests.app.serving import Server
from tests.app.visitor import WIDTH, Guests, Visitor

pytestmark = pytest.mark.browser
LINE, MAPS = "#pv-v-answer", "#pv-v-grid .pv-v-view"


@pytest.fixture
def visitor(guests: Guests, many_server: Server) -> Iterator[Visitor]:
    """The visitor who stays on the page over the pack of many methods, with the tab open."""
    with guests.at(many_server) as guest:
        guest.open_tab("Views")
        expect(guest.page.locator(LINE)).to_contain_text("test-")
        yield guest


def choose_method(page: Page, name: str) -> None:
    """Chooses whose views are shown, unless that is so already."""
    title = f"{METHODS[name].title} ({METHODS[name].paper})"
    box = page.locator("#pv-v-method input")
    if box.input_value() != title:
        box.click()
        page.get_by_role("option", name=title).click()
    expect(page.locator(LINE)).to_contain_text(METHODS[name].title)


def look_at(page: Page, number: int, words: str | None = None) -> None:
    """Chooses a picture by its number, and asks for words beside it."""
    page.fill("#pv-v-number input", str(number))
    expect(page.locator(LINE)).to_contain_text(f"test-{number:06}")
    if words is not None:
        page.fill("#pv-v-words :is(input, textarea)", words)
        page.click("#pv-v-go")


def light(drawn: Image.Image) -> np.ndarray:
    """How bright each pixel is, (height, width)."""
    return np.asarray(drawn.convert("RGB"), np.float32) @ np.array([0.2126, 0.7152, 0.0722])


def brightest(values: np.ndarray) -> np.ndarray:
    """The (y, x) of the pixels that are the brightest, or nearly so: (P, 2)."""
    return np.argwhere(values > values.max() - 2)


def clearest_view(retriever: Retriever) -> tuple[int, int]:
    """The picture and its view in which one cell rises furthest above all others."""

    def lead(place: tuple[int, int]) -> float:
        second, first = np.sort(maps[place[0]][place[1]], axis=None)[-2:]
        return float(first / second)

    maps = [maps_of(retriever, image_id, "mvam") for image_id in range(IMAGES)]
    clearest = max(itertools.product(range(IMAGES), range(16)), key=lead)
    assert lead(clearest) > 1.5
    return clearest


def test_evidence_is_that_of_the_api(visitor: Visitor, many_server: Server) -> None:
    page, text = visitor.page, "a red circle"
    choose_method(page, "mv_vse")
    look_at(page, 6, text)
    answer = many_server.ask("explain", text, 6, "mv_vse", True)
    words = page.locator("#pv-v-evidence .pv-ev-word")
    expect(words).to_have_count(len(answer["words"]))
    scores = [f"{one['score']:.3f}" for one in (answer, *answer["per_view"])]
    expect(page.locator("#pv-v-evidence .pv-v-points")).to_have_text(scores)
    said = page.locator("#pv-v-evidence .pv-ev-said")
    words.nth(1).click()
    sums = [abs(np.array(one["cells"])[:, 1].sum()) for one in (answer, answer["per_view"][2])]
    expect(said).to_contain_text(f"{sums[0]:.3f} of the score {scores[0]}")
    page.locator("#pv-v-evidence .pv-v-stage").nth(3).focus()
    expect(said).to_contain_text(
        f"{sums[1]:.3f} of View 3\N{RIGHT SINGLE QUOTATION MARK}s score {scores[3]}"
    )
    words.nth(1).click()  # lets it go


def test_the_displayed_peak_lies_in_the_peak_cell(
    visitor: Visitor, many_server: Server, many_retriever: Retriever
) -> None:
    page = visitor.page
    visitor.resize(WIDTH, dark=True)  # so that nothing around the map is brighter
    image, clear = clearest_view(many_retriever)
    choose_method(page, "mvam")
    look_at(page, image, "a red circle")
    answer = many_server.ask("views", image, "mvam", "a red circle")
    expect(page.locator(LINE)).to_contain_text(f"score {answer['score']:.3f}")
    expect(page.locator(MAPS)).to_have_count(16 + 2)
    for mode in ("raw", "overlay"):
        page.check(f"#pv-v-mode input[value={mode}]")
        page.fill("#pv-v-opacity input[type=number]", "100")
        page.press("#pv-v-opacity input[type=number]", "Enter")
        expect(page.locator("#pv-v-maps")).to_have_attribute("data-mode", mode)
        expect(page.locator("#pv-v-maps")).to_have_css("--pv-opacity", "1")
        for view in {clear, answer["winner"]}:
            attention = np.array(answer["views"][view]["attention"], np.float32)
            stage = page.locator(".pv-v-stage").nth(view)
            drawn = light(Image.open(io.BytesIO(stage.screenshot())))
            size = (drawn.shape[1], drawn.shape[0])
            raw = mode == "raw"
            scaled = Image.Resampling.NEAREST if raw else Image.Resampling.BILINEAR
            expected = light(heatmaps.tile(attention, smooth=not raw).resize(size, scaled))
            peak = brightest(drawn)
            away = np.abs(peak[:, None] - brightest(expected)[None]).max(axis=-1).min(axis=1)
            assert away.max() <= 2  # pixels from where the same enlargement has its peak
            if raw or view == clear:
                cells = peak.mean(axis=0) / drawn.shape * attention.shape
                highest = np.unravel_index(attention.argmax(), attention.shape)
                assert tuple(np.floor(cells)) == highest
    shown = page.locator("#pv-v-grid .pv-v-points").all_inner_texts()
    assert shown == [f"{view['score']:.3f}" for view in answer["views"]]


def lens_ids(page: Page) -> list[int]:
    buttons = page.locator(".pv-v-lens-hits button").all()
    return [int(str(button.get_attribute("data-picture"))) for button in buttons]


def expect_lens(page: Page, answer: dict[str, Any]) -> None:
    """Waits for the ranking of an answer of /lens, and compares what stands beside each."""
    hits = answer["hits"]
    scores = [f"{hit['score']:.3f} view {hit['view'] + 1}" for hit in hits]
    expect(page.locator(".pv-v-small")).to_have_text(scores)
    assert lens_ids(page) == [hit["image_id"] for hit in hits]
    for place, hit in enumerate(hits):
        moved = hit["before"] - hit["rank"]
        sign = "=" if not moved else f"▲ {moved}" if moved > 0 else f"▼ {-moved}"
        expect(page.locator(".pv-v-lens-hits li").nth(place)).to_contain_text(sign)


def test_the_lens_ranks_as_the_endpoint(visitor: Visitor, many_server: Server) -> None:
    page = visitor.page
    choose_method(page, "mv_vse")
    words = "a green square beside a pink bar"
    look_at(page, 3, words)

    def ask(*weights: float) -> dict[str, Any]:
        return many_server.ask("lens", words, "mv_vse", list(weights), 12)

    expect_lens(page, ask(1, 1, 1))
    page.uncheck(".pv-v-lens-view[data-view='0'] input[type=checkbox]")
    expect_lens(page, ask(0, 1, 1))
    expect(page.locator(".pv-v-lens-view output").first).to_have_text("off")
    slider = page.locator(".pv-v-lens-view[data-view='1'] input[type=range]")
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    expect_lens(page, ask(0, 0.7, 1))
    page.get_by_role("button", name="Only view 1", exact=True).click()
    expect_lens(page, ask(1, 0, 0))
    page.uncheck(".pv-v-lens-view[data-view='0'] input[type=checkbox]")
    expect(page.locator("#pv-v-hits")).to_contain_text(
        "Every view is switched off; leave at least one on"
    )
    page.get_by_role("button", name="All views on").click()
    expect_lens(page, ask(1, 1, 1))
    third = lens_ids(page)[2]
    page.locator(".pv-v-lens-hits button").nth(2).click()
    expect(page.locator(LINE)).to_contain_text(f"test-{third:06}")
    expect(page.locator("#pv-v-number input")).to_have_value(str(third))
    choose_method(page, "pvse")  # begins anew with every view on
    expect(page.locator(".pv-v-lens-view")).to_have_count(2)
    expect_lens(page, many_server.ask("lens", words, "pvse", [1, 1], 12))


def test_captions_words_and_known_objects(visitor: Visitor, many_server: Server) -> None:
    page = visitor.page
    choose_method(page, "pvse")
    look_at(page, 5)
    first, second = draw(5)[1]
    page.get_by_role("button", name=f"a picture of a {second}").click()
    answer = many_server.ask("views", 5, "pvse", f"a picture of a {second}")
    expect(page.locator(LINE)).to_contain_text(f"score {answer['score']:.3f}")
    rows = page.locator(".pv-v-word-rows p")
    expect(rows).to_have_count(2)
    for row, shares in zip(rows.all(), answer["word_attention"], strict=True):
        expected = [f"{share:.1%}".replace("%", " %") for share in shares]
        assert row.locator("small").all_inner_texts() == expected
    outlines = page.locator(".pv-v-objects").first
    expect(outlines).to_be_hidden()
    page.get_by_label("Outline known objects").check()
    expect(outlines).to_be_visible()
    expect(page.locator("#pv-v-objects .pv-v-told title")).to_have_text([second])
    expect(page.locator("#pv-v-objects .pv-v-there title")).to_have_text([first])
    expect(page.locator(".pv-legend", has_text=f"The text mentions {second}")).to_be_visible()
    page.get_by_label("Outline known objects").uncheck()


def test_knobs_turn_matching_and_the_meter(visitor: Visitor, many_server: Server) -> None:
    page = visitor.page
    choose_method(page, "avse")
    look_at(page, 0, "a red circle")
    panels = page.locator("#pv-v-panels")
    expect(panels).to_contain_text("Score by Sinkhorn, 20 iterations")
    page.fill("#pv-v-turns input[type=range]", "3")
    expect(panels).to_contain_text("Score by Sinkhorn, 3 iterations")
    expect(panels).to_contain_text("Sinkhorn plan")
    page.check("#pv-v-turns input[value=maxsim]")
    expect(panels).not_to_contain_text("Sinkhorn plan")
    inside = many_server.ask("views", 0, "avse", "a red circle")["inside"]
    (best,) = [panel["values"] for panel in inside if panel["title"] == "Score by MaxSim"]
    expect(panels).to_contain_text(f"{best:.3f}")
    choose_method(page, "mvam")
    expect(page.locator("#pv-v-turns input")).to_have_count(0)
    expect(panels).to_contain_text("Spread of each view's attention")
    verdict = page.locator(".pv-v-verdict")
    expect(verdict).to_contain_text("16 views, wins from")
    expect(page.locator(".pv-v-wins li")).to_have_count(16)
    expect(verdict).to_contain_text("the views have collapsed")  # so that no winner is named
    expect(page.locator("#pv-v-grid .pv-v-badge:visible")).to_have_count(0)
    choose_method(page, "vse_infty")
    expect(verdict).to_contain_text("One view")


def test_a_slow_question_replaces_no_later_answer(guests: Guests, many_server: Server) -> None:
    slow = """{
      const send = window.fetch;
      window.fetch = async (address, ...options) => {
        if (String(address).includes("/queue/join") && window.held-- > 0)
          await new Promise((resolve) => setTimeout(resolve, 1500));
        return send(address, ...options);
      };
    }"""
    with guests.visits(many_server) as open_page:
        visitor = open_page()
        page = visitor.page
        page.add_init_script(slow)
        visitor.enter()
        visitor.open_tab("Views")
        choose_method(page, "avse")
        panels = page.locator("#pv-v-panels")
        expect(panels).to_contain_text("Score by Sinkhorn, 20 iterations")
        look_at(page, 0, "a red circle")
        expect(panels).to_contain_text("of 3 values")
        page.evaluate("window.held = 1")
        page.fill("#pv-v-words :is(input, textarea)", "a red circle and a blue square")
        page.click("#pv-v-go")
        page.wait_for_function("window.held < 1")  # the question is on its way
        page.fill("#pv-v-turns input[type=range]", "3")
        expect(page).to_have_url(re.compile("blue"))  # the question is answered
        expect(panels).to_contain_text("of 7 values")
        expect(panels).to_contain_text("Score by Sinkhorn, 3 iterations")


def test_a_picture_of_ones_own_and_mistakes(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.page
    alert = page.locator(f"{LINE} [role=alert]")
    page.fill("#pv-v-number input", "99")
    expect(alert).to_contain_text("There is no picture 99")
    page.locator("#pv-v-own").get_by_text("A picture of yours").click()
    path = hostile.write(tmp_path, "text.jpg")
    page.set_input_files("#pv-v-upload input[type=file]", path)
    expect(alert).to_contain_text("text.jpg is not a picture")
    mine = tmp_path / "mine.png"
    draw(6)[0].resize((300, 100)).save(mine)
    page.set_input_files("#pv-v-upload input[type=file]", mine)
    expect(page.locator(LINE)).to_contain_text("mine.png")
    expect(alert).to_have_count(0)
    size = page.locator(".pv-v-stage").first.bounding_box()
    assert size is not None
    assert size["width"] / size["height"] == pytest.approx(3.0, rel=0.02)
    page.fill("#pv-v-words :is(input, textarea)", "")
    page.click("#pv-v-go")
    expect(page.locator("#pv-v-hits")).to_contain_text("Type a sentence above")
    expect(page.locator(".pv-v-points")).to_have_count(0)
    look_at(page, 0)  # the next test finds a picture of the gallery


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False), (1920, True)])
def test_sixteen_views_fit_and_keys_reach_them(visitor: Visitor, width: int, dark: bool) -> None:
    page = visitor.page
    choose_method(page, "mvam")
    look_at(page, 0)
    visitor.resize(width, dark)
    expect(page.locator(MAPS)).to_have_count(16 + 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate("[...document.querySelectorAll('.pv-v-stage')].map(s => s.offsetWidth)")
    assert min(sizes) >= 80
    before = page.locator("#pv-v-maps").bounding_box()
    page.locator(".pv-v-strip button").nth(4).focus()
    page.keyboard.press("Enter")
    expect(page.locator(LINE)).not_to_contain_text("test-000000")
    after = page.locator("#pv-v-maps").bounding_box()
    assert before is not None
    assert after is not None
    assert before["y"] == pytest.approx(after["y"], abs=1)
    enlarge = page.get_by_label("Enlarge: View 2", exact=True)
    enlarge.focus()
    page.keyboard.press("Space")
    bigger = page.locator(".pv-v-stage").nth(1).bounding_box()
    assert bigger is not None
    assert bigger["width"] > 1.8 * sizes[1]
    page.keyboard.press("Space")
    again = page.locator(".pv-v-stage").nth(1).bounding_box()
    assert again is not None
    assert again["width"] == pytest.approx(sizes[1], abs=1)
