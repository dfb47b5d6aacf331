"""The grid over a folder of images of all proportions and kinds, in a real browser."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, ViewportSize, expect

from tests.app.conftest import draw
from tests.app.serving import Serve, Server
from tests.app.visitor import HEIGHT, WIDTH, Guests, Visitor

pytestmark = pytest.mark.browser

PLAIN = 90
ITEMS = "#pv-grid .pv-item"
SHOWN = f"{ITEMS}:not([hidden]) .pv-tile"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety different images; a portrait, a panorama, a GIF, a HEIC, two copies, a broken file."""
    folder = tmp_path_factory.mktemp("mine")
    for i in range(PLAIN):
        image = draw(i)[0].resize((192, 144))
        ImageDraw.Draw(image).rectangle((2 * i, 100, 2 * i + 20, 143), fill=(i, 255 - i, 90))
        image.save(folder / f"plain{i:02}.png")
    wide = draw(5)[0].resize((1600, 200))
    wide.save(folder / "panorama.jpg")
    draw(6)[0].resize((150, 900)).save(folder / "portrait.png")
    draw(7)[0].save(folder / "moving.gif")
    pillow_heif.from_pillow(draw(8)[0].resize((256, 192))).save(folder / "phone.heic")
    wide.save(folder / "panorama-again.png")
    wide.resize((800, 100)).save(folder / "panorama-small.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


@pytest.fixture(scope="module")
def mine(serve: Serve, tiny_pack: Path, folder: Path) -> Server:
    """The app over that folder."""
    return serve("--pack", tiny_pack, "--gallery", folder)


@pytest.fixture
def visitor(guests: Guests, mine: Server) -> Iterator[Visitor]:
    """The visitor who stays on that page, with no image open."""
    with guests.at(mine) as guest:
        guest.settle()
        yield guest


def scroll_to_the_end(visitor: Visitor) -> None:
    """Scrolls until no more images come."""
    further = visitor.page.locator(".pv-further")
    for _ in range(20):
        if not further.count():
            return
        visitor.page.evaluate("document.querySelector('.pv-further')?.scrollIntoView()")
        visitor.page.wait_for_timeout(200)
    pytest.fail("more pictures were expected")


def places(visitor: Visitor, what: str) -> list[dict[str, Any]]:
    """Where elements lie, as the browser has them."""
    found: list[dict[str, Any]] = visitor.page.evaluate(
        "(what) => [...document.querySelectorAll(what)].map((one) => one.getBoundingClientRect())",
        what,
    )
    return found


@pytest.mark.parametrize(
    ("width", "dark", "words"), [(WIDTH, False, "a red square"), (390, True, "a red bar")]
)
def test_rows_are_even_and_every_image_is_whole(
    visitor: Visitor, width: int, dark: bool, words: str
) -> None:
    visitor.resize(width, dark)
    visitor.search(words)
    scroll_to_the_end(visitor)
    page = visitor.page
    assert page.locator(ITEMS).count() == PLAIN + 6  # the broken file is none
    shots = places(visitor, f"{SHOWN} .pv-shot")
    rows: dict[int, list[dict[str, Any]]] = {}
    for shot in shots:
        rows.setdefault(round(shot["top"]), []).append(shot)
    for row in rows.values():
        heights = [shot["height"] for shot in row]
        assert max(heights) - min(heights) < 1.5
        assert max(heights) < 420
    for name in ("panorama", "portrait"):
        image = page.locator(f'{SHOWN} img[alt*="{name}"]').first
        image.scroll_into_view_if_needed()
        assert image.evaluate("(i) => getComputedStyle(i).objectFit") == "contain"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.get_by_role("alert")).to_have_count(0)


def test_ranks_are_those_of_the_api(visitor: Visitor, mine: Server) -> None:
    visitor.search("a blue bar")
    scroll_to_the_end(visitor)
    method = visitor.asked()["method"][0]
    hits = mine.ask("search_text", "a blue bar", method, 1000)["hits"]
    wanted = [f"{hit['rank']} · {hit['score']:.3f} · {Path(hit['file']).name}" for hit in hits]
    assert visitor.hits() == wanted
    visitor.page.locator(".pv-ev-word").first.click()
    expect(visitor.page.locator(f"{SHOWN} .pv-ev-map").nth(60)).to_be_attached()


def test_near_duplicates_are_one_tile_that_opens(visitor: Visitor) -> None:
    visitor.search("a pink bar")
    scroll_to_the_end(visitor)
    page = visitor.page
    wide = page.locator(f'{SHOWN} img[alt*="panorama"]')
    expect(wide).to_have_count(1)
    fold = page.get_by_role("button", name="2 more that look nearly the same")
    fold.click()
    expect(wide).to_have_count(3)
    fold.click()
    expect(wide).to_have_count(1)


def test_few_keys_lead_to_the_first_hit_and_through_the_open_image(visitor: Visitor) -> None:
    page = visitor.page
    visitor.search("a green square")
    first = page.locator(SHOWN).first
    presses = 0
    while "pv-skip" not in str(page.evaluate("document.activeElement.className")):
        page.keyboard.press("Tab")
        presses += 1
        assert presses < 6
    page.keyboard.press("Enter")
    expect(first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#pv-head")).to_contain_text("rank 1")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#pv-head")).to_contain_text("rank 2")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#pv-head")).to_contain_text("rank 1")
    page.keyboard.press("Escape")
    expect(page.locator("#pv-head")).to_contain_text("Choose a picture")
    expect(first).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#pv-words :is(textarea, input)")).to_be_focused()
    assert page.input_value("#pv-words :is(textarea, input)") == "a green square"


def test_a_phone_shows_hits_at_once_and_opens_them_in_a_sheet(
    browser: Browser, mine: Server
) -> None:
    size = ViewportSize(width=390, height=860)
    context = browser.new_context(viewport=size, has_touch=True, is_mobile=True)
    visitor = Visitor(context.new_page(), mine.url)
    page = visitor.page
    visitor.enter("q=a+red+circle", dark=True)
    expect(page.locator("#pv-answer")).to_contain_text("a red circle")
    # once the page has come to rest
    top = "shown => document.querySelector(shown).getBoundingClientRect().top"
    page.wait_for_function(f"{top} < 600", arg=SHOWN)
    expect(page.locator("#pv-method")).to_be_hidden()
    page.get_by_role("button", name="Options").tap()
    expect(page.locator("#pv-method")).to_be_visible()
    page.get_by_role("button", name="Options").tap()
    expect(page.locator("#pv-method")).to_be_hidden()
    page.locator(SHOWN).nth(4).scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    page.locator(SHOWN).nth(4).tap()
    head = page.locator("#pv-head")
    expect(head).to_contain_text("rank 5")
    assert abs(page.evaluate("scrollY") - before) <= 2
    sheet = places(visitor, "#pv-inspector")[0]
    assert (sheet["left"], sheet["right"], sheet["bottom"]) == (0, 390, 860)
    assert sheet["top"] > 200
    for by, rank in ((-140, 6), (140, 5)):
        swipe(visitor, by, 10)
        expect(head).to_contain_text(f"rank {rank}")
    swipe(visitor, 5, 120)
    expect(page.locator("#pv-inspector")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not visitor.complaints
    context.close()


def swipe(visitor: Visitor, across: int, down: int) -> None:
    """Moves a finger over the sheet."""
    visitor.page.evaluate(
        """([x, y]) => {
            const target = document.querySelector(".pv-subject h2");
            const at = (x, y) => [new Touch({ identifier: 1, target, clientX: x, clientY: y })];
            const send = (name, touches) =>
                target.dispatchEvent(new TouchEvent(name, { ...touches, bubbles: true }));
            send("touchstart", { touches: at(200, 400) });
            send("touchend", { changedTouches: at(200 + x, 400 + y) });
        }""",
        [across, down],
    )


def test_the_open_image_can_be_found_and_asked_with(visitor: Visitor, folder: Path) -> None:
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.search("a pink circle")
    visitor.look(0)
    assert places(visitor, "#pv-inspector")[0]["height"] < HEIGHT  # all of it can be reached
    file = page.locator(".pv-subject h2").inner_text()
    page.get_by_role("button", name="Copy path").click()
    expect(page.get_by_role("button", name="Path copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == str(folder / file)
    page.get_by_role("button", name="Show original").click()
    original = page.locator("dialog img")
    expect(original).to_be_visible()
    with Image.open(folder / file) as image:
        assert original.evaluate("(i) => i.decode().then(() => i.naturalWidth)") == image.width
    page.keyboard.press("Escape")
    expect(original).to_have_count(0)
    expect(page.locator(".pv-subject h2")).to_have_text(file)
    answer = page.locator("#pv-answer")
    for name, sign in (("More like this", "+"), ("Less like this", "\N{MINUS SIGN}")):
        page.get_by_role("button", name=name).click()
        expect(answer.locator(".pv-term").last).to_contain_text(f"{sign}")
        assert page.locator(SHOWN).count() > 30
        visitor.look(0)
    page.go_back()  # no image open
    page.go_back()
    expect(answer.locator(".pv-term")).to_have_count(2)


def test_several_images_are_picked_and_saved(
    visitor: Visitor, folder: Path, tmp_path: Path
) -> None:
    page = visitor.page
    visitor.search("a red circle")
    page.get_by_role("button", name="Select", exact=True).click()
    for place in (0, 2):
        page.locator(SHOWN).nth(place).click()
    page.locator(SHOWN).nth(4).click(modifiers=["Control"])
    page.locator(SHOWN).nth(4).click()
    expect(page.get_by_role("button", name="Clear (2)")).to_be_visible()
    expect(page.locator("#pv-head")).to_contain_text("Choose a picture")
    for kind in ("ZIP", "CSV"):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save {kind}").click()
        saved.value.save_as(tmp_path / kind)
    names = [name.split(" · ")[2] for name in visitor.hits()]
    with zipfile.ZipFile(tmp_path / "ZIP") as archive:
        assert archive.namelist() == [names[0], names[2]]
        assert archive.read(names[0]) == (folder / names[0]).read_bytes()
    assert (tmp_path / "CSV").read_text().count(",a red circle") == 2
    page.get_by_role("button", name="More like these").click()
    expect(page.locator("#pv-answer .pv-term")).to_have_count(3)
    select = page.get_by_role("button", name="Select", exact=True)
    expect(select).to_be_visible()
