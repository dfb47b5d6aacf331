"""Clips in a browser: the moment on the tile, the player, and the timeline under it."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from PIL import Image
from playwright.sync_api import Page, Position, expect

from app.settings import BUNDLED
from tests.app.blocks.tabs.test_accessible import found
from tests.app.clip_files import write_animation, write_video
from tests.app.search.test_clip_search import SCENES, largest_dog
from tests.app.serving import Serve, Server
from tests.app.visitor import Guests, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RATE, SHOWN = 5, 2  # frames a second, and seconds that a scene is shown
DOG = 2  # the scene in which a dog is seen, of four


@pytest.fixture(scope="module")
def clips(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The app over a video, an animation, a video of a codec that browsers lack, and a still."""
    folder = tmp_path_factory.mktemp("clips")
    known = json.loads((SCENES / "gallery.json").read_text("utf-8"))["images"]
    dogs = sorted(known, key=largest_dog, reverse=True)
    without = [one for one in known if not largest_dog(one)]

    def scenes(first: int) -> list[Image.Image]:
        chosen = without[first : first + 4]
        chosen[DOG] = dogs[first // 4]
        return [Image.open(SCENES / one["file"]).convert("RGB") for one in chosen]

    def shown(first: int) -> list[Image.Image]:
        return [scene for scene in scenes(first) for _ in range(RATE * SHOWN)]

    write_video(folder / "dog.mp4", shown(0), rate=RATE)
    write_animation(folder / "hop.gif", scenes(4), 1000 * SHOWN)
    write_video(folder / "old.mov", shown(8), rate=RATE)
    scenes(12)[0].save(folder / "still.png")
    return serve("--pack", BUNDLED / "scenes", "--gallery", folder)


@pytest.fixture
def visitor(guests: Guests, clips: Server) -> Iterator[Visitor]:
    with guests.at(clips) as guest:
        guest.settle()
        guest.search("a dog")
        yield guest


def look(page: Page, file: str) -> None:
    """Opens a clip, and waits for its evidence."""
    page.locator(f'#pv-grid button:has(img[alt*="{file}"])').click()
    expect(page.locator("#pv-head h2")).to_have_text(file)
    expect(page.locator(".pv-time-said")).to_contain_text("the best")


def second(page: Page) -> float:
    """Where the player is."""
    return float(page.evaluate("document.querySelector('#pv-clip video').currentTime"))


def changed(page: Page, act: Callable[[], object]) -> None:
    """Does something upon which another frame is drawn with its evidence."""
    image = page.locator("#pv-map img")
    before = str(image.get_attribute("src"))
    act()
    expect(image).not_to_have_attribute("src", before)


def at(page: Page, seconds: float) -> Position:
    """Where on the timeline some seconds lie."""
    line = page.locator(".pv-time")
    box = line.bounding_box()
    assert box is not None
    end = float(line.get_attribute("data-end") or 0)
    return {"x": box["width"] * seconds / end, "y": box["height"] / 2}


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.slow)])
def test_a_video_plays_from_its_moment_and_from_any(visitor: Visitor, width: int) -> None:
    visitor.resize(width)
    page = visitor.page
    tile = page.locator('#pv-grid .pv-item:has(img[alt*="dog.mp4"])')
    assert re.search(
        r"clip, best at [45]\.\d seconds", str(tile.locator("img").get_attribute("alt"))
    )
    expect(tile.locator(".pv-when")).to_have_text(re.compile("▶ 0:0[45]"))
    expect(page.locator('#pv-grid .pv-item:has(img[alt*="still"]) .pv-when')).to_have_count(0)
    look(page, "dog.mp4")
    page.wait_for_function("document.querySelector('#pv-clip video').currentTime > 0")
    assert DOG * SHOWN <= second(page) < (DOG + 1) * SHOWN
    assert page.evaluate("document.querySelector('#pv-clip video').paused")

    line = page.locator(".pv-time")
    changed(page, lambda: line.click(position=at(page, 0.5)))
    expect(page.locator(".pv-time-of")).to_contain_text("Below: the frame, at 0.")
    page.wait_for_function("!document.querySelector('#pv-clip video').paused")
    assert second(page) < DOG * SHOWN
    page.evaluate("document.querySelector('#pv-clip video').pause()")

    line.press("End")
    expect(line).to_have_attribute("aria-valuetext", re.compile(r"^7\.\d seconds, score -?0\.\d+$"))
    changed(page, lambda: line.press("Enter"))
    assert second(page) >= 3 * SHOWN
    expect(page.locator("#pv-head h2")).to_have_text("dog.mp4")  # arrow keys turned no page
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width


@pytest.mark.slow
def test_an_animation_shows_its_frames_as_stills(visitor: Visitor) -> None:
    visitor.resize(390, dark=True)
    page = visitor.page
    look(page, "hop.gif")
    expect(page.locator("#pv-clip video")).to_have_count(0)
    image = page.locator("#pv-clip img")
    expect(image).to_have_attribute("src", re.compile("^thumbnails/"))
    assert not found(page)
    page.get_by_role("button", name="▶ Play").click()
    expect(image).to_have_attribute("src", re.compile(r"^api/v1/clip/\d+"))
    page.wait_for_function("document.querySelector('#pv-clip img').naturalWidth > 0")
    page.get_by_role("button", name="■ Stop").click()
    changed(page, lambda: page.locator(".pv-time").click(position=at(page, 0)))
    expect(page.locator(".pv-time-of")).to_have_text("Below: the frame, at 0.0 s.")


@pytest.mark.slow
def test_what_the_browser_cannot_play_stays_a_still(visitor: Visitor) -> None:
    page = visitor.page
    look(page, "old.mov")
    expect(page.locator(".pv-clip-off")).to_contain_text("This browser cannot play this clip")
    expect(page.locator("#pv-clip img")).to_be_visible()
    page.locator(".pv-time").press("Home")
    changed(page, lambda: page.locator(".pv-time").press("Enter"))


@pytest.mark.slow
def test_an_open_clip_is_in_the_link(visitor: Visitor) -> None:
    page = visitor.page
    look(page, "dog.mp4")
    assert not found(page)
    visitor.choose_method("VSE++")  # for which another frame may be the best
    expect(page.locator("#pv-head h2")).to_have_text("dog.mp4")
    visitor.reload()
    expect(page.locator("#pv-head h2")).to_have_text("dog.mp4")
    expect(page.locator(".pv-time-said")).to_contain_text("the best")


@pytest.mark.slow
def test_each_method_shows_its_own_moment(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open_tab("Compare")
    page.fill("#pv-cmp-words textarea, #pv-cmp-words input", "a dog")
    page.keyboard.press("Enter")
    tiles = page.locator('.pv-cmp-tile:has(img[alt^="dog.mp4, clip, at "])')
    expect(tiles.first).to_be_visible()
    columns = page.locator(".pv-cmp-head").count()
    expect(tiles).to_have_count(columns)
    assert all(
        re.fullmatch(r"▶ 0:0\d", t) for t in tiles.locator(".pv-cmp-when").all_text_contents()
    )
    expect(page.locator('.pv-cmp-tile:has(img[alt^="still"]) .pv-cmp-when')).to_have_count(0)
    tiles.first.hover()
    expect(page.locator(".pv-cmp-grid .pv-cmp-same")).to_have_count(columns)
    tiles.first.click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text(re.compile(r"The frame at \d\.\d seconds"))
    expect(dialog).to_contain_text(re.compile(r"rank \d, 0:0\d"))
    assert not found(page)
    page.keyboard.press("Escape")


@pytest.mark.slow
def test_views_names_the_frame(visitor: Visitor) -> None:
    page = visitor.page
    look(page, "dog.mp4")
    changed(page, lambda: page.locator(".pv-time").click(position=at(page, 0.5)))
    page.get_by_role("button", name="Look inside").click()
    expect(page.locator("#pv-v-answer")).to_contain_text(re.compile(r"dog\.mp4, at 0\.\d seconds"))
