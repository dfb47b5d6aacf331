"""The collection menu in a browser: own files, two visitors, what is gone, folders, packs."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.app.api.conftest import encoded
from tests.app.conftest import draw
from tests.app.page.conftest import NewTab
from tests.app.serving import Server

pytestmark = pytest.mark.browser
FILES = 12


def open_menu(page: Page, server: Server, search: str = "") -> None:
    """Opens the first page and its collection menu."""
    page.goto(f"{server.url}/{search}")
    expect(page.locator(".tile img").first).to_be_visible()
    page.locator("#collection").click()
    expect(page.locator("#menu .card").first).to_be_visible()


def send(page: Page, server: Server, name: str, first: int, count: int = FILES) -> None:
    """Uploads drawn images, and waits until they are searched."""
    open_menu(page, server)
    files = [
        {"name": f"{name}-{i}.png", "mimeType": "image/png", "buffer": encoded(first + i)}
        for i in range(count)
    ]
    page.locator("#own-files").set_input_files(files)  # type: ignore[arg-type]
    expect(page).to_have_url(re.compile("c=mine"))
    expect(page.locator("#reading progress")).to_have_count(0)
    page.fill("#query", "a red circle")
    page.press("#query", "Enter")
    expect(page.locator(".tile img").first).to_be_visible()


def labels(page: Page) -> list[str]:
    """What the tiles are called, or why there are none."""
    page.locator(".tile, #notes .problem").first.wait_for()
    read = "all => all.map(each => each.ariaLabel || each.textContent)"
    return page.locator(".tile, #notes .problem").evaluate_all(read)


@pytest.mark.slow
def test_two_visitors_do_not_see_each_others_files(private: Server, new_tab: NewTab) -> None:
    item, other = (new_tab(private.url).page for _ in range(2))
    send(item, private, "mine", 0)
    send(other, private, "yours", 8)
    for page, own, foreign in ((item, "mine-", "yours-"), (other, "yours-", "mine-")):
        results = labels(page)
        assert results
        assert all(own in label and foreign not in label for label in results), results
        assert "upload-" not in page.url
    page = item
    page.reload()
    expect(page.locator(".tile img").first).to_be_visible()
    assert all("mine-" in label for label in labels(page))
    listed = private.get("collections")["collections"]
    assert all(not each["key"].startswith("upload-") for each in listed)
    other.goto(item.url.replace("c=mine", "c=upload-0123456789abcdef0123456789abcdef"))
    expect(other.locator(".gone")).to_contain_text("upload the files again")


def test_a_link_to_uploads_of_another_browser(private: Server, new_tab: NewTab) -> None:
    tab = new_tab(private.url)
    page = tab.page
    page.goto(f"{private.url}/?c=mine&q=a+red+circle")
    gone, menu = page.locator(".gone"), page.locator("#menu")
    expect(gone).to_contain_text("uploaded in another tab")
    expect(page.locator(".tile")).to_have_count(0)
    gone.get_by_role("button", name="Choose images again").click()
    expect(menu.locator(".card", has_text="Scenes in motion")).to_contain_text("300 images")
    expect(menu.locator(".packs")).to_contain_text("97 MB")
    menu.get_by_label("Hub address or folder").fill("nobody/nothing")
    menu.get_by_role("button", name="Look up").click()
    expect(menu.locator(".problem:not([hidden])")).to_be_visible()
    assert tab.serious() == []
    page.keyboard.press("Escape")
    expect(menu).not_to_be_visible()
    gone.get_by_role("button", name="Search the scenes").click()
    expect(page.locator(".tile img").first).to_be_visible()
    expect(gone).to_have_count(0)


@pytest.mark.slow
def test_a_folder_is_stopped_and_resumed(private: Server, new_tab: NewTab, tmp_path: Path) -> None:
    draw(0)[0].convert("RGB").resize((1200, 900)).save(tmp_path / "drawn.jpg")
    content = (tmp_path / "drawn.jpg").read_bytes()
    for i in range(250):  # other bytes behind the image: other files of the same look
        (tmp_path / f"drawn-{i}.jpg").write_bytes(content + bytes([0, i % 256, i // 256]))
    (tmp_path / "notes.png").write_text("no image")
    page = new_tab(private.url).page
    open_menu(page, private)
    expect(page.locator("#menu")).to_contain_text("CPUExecutionProvider")
    for place in (tmp_path / "missing", tmp_path):
        page.fill("#menu input[name=place]", str(place))
        page.press("#menu input[name=place]", "Enter")
        if place != tmp_path:
            expect(page.locator("#menu .problem:not([hidden])")).to_contain_text("missing")
    reading = page.locator("#reading")
    expect(reading).to_contain_text("can be searched")
    reading.get_by_role("button", name="Stop").click()
    resume = reading.get_by_role("button", name="Resume")
    expect(resume).to_be_visible()
    page.fill("#query", "a red circle")
    page.press("#query", "Enter")
    expect(page.locator("#live")).to_contain_text("images for a red circle")
    expect(page.locator(".tile img").first).to_be_visible()
    resume.click()
    expect(reading).to_contain_text("1 file is left out", timeout=120_000)
    expect(reading.get_by_role("progressbar")).to_have_count(0)
    page.get_by_role("button", name="Show the files").click()
    page.locator("#menu .fold summary").click()
    expect(page.locator("#menu .fold")).to_contain_text("notes.png")


def test_the_pack_in_use_is_checked(private: Server, new_tab: NewTab) -> None:
    page = new_tab(private.url).page
    open_menu(page, private, "?pack=clip_tiny")
    page.get_by_role("button", name="Check").click()
    menu = page.locator("#menu")
    expect(menu).to_contain_text("preprocesses images and texts", timeout=200_000)
    expect(menu.locator("li", has_text="normalisation")).to_contain_text("✓")
