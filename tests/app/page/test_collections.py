"""The collection menu, and the columns of Compare, in a browser over the pack of six methods."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.app.api.conftest import encoded
from tests.app.conftest import draw
from tests.app.page.conftest import PHONE, NewTab
from tests.app.serving import Server

pytestmark = pytest.mark.browser


def open_menu(page: Page, server: Server, search: str = "") -> None:
    """Opens the page and its collection menu."""
    page.goto(f"{server.url}/{search}")
    expect(page.locator(".tile img").first).to_be_visible()
    page.locator("#collection").click()
    expect(page.locator("#menu .card").first).to_be_visible()


@pytest.mark.slow
def test_uploads_are_searched_in_one_browser_only(private: Server, new_tab: NewTab) -> None:
    page, other = (new_tab(private.url).page for _ in range(2))
    open_menu(page, private)
    files = [
        {"name": f"mine-{i}.png", "mimeType": "image/png", "buffer": encoded(i)} for i in range(12)
    ]
    page.locator("#own-files").set_input_files(files)  # type: ignore[arg-type]
    expect(page).to_have_url(re.compile("c=mine"))
    expect(page.locator("#reading progress")).to_have_count(0)
    page.fill("#query", "a red circle")
    page.press("#query", "Enter")
    for _ in range(2):
        expect(page.locator(".tile[aria-label*='mine-']").first).to_be_visible()
        expect(page.locator(".tile:not([aria-label*='mine-'])")).to_have_count(0)
        page.reload()
    assert "upload-" not in page.url
    other.goto(page.url.replace("c=mine", "c=upload-0123456789abcdef0123456789abcdef"))
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
    for i in range(400):  # bytes after the image give each file its own content
        (tmp_path / f"drawn-{i}.jpg").write_bytes(content + bytes([0, i % 256, i // 256]))
    (tmp_path / "notes.png").write_text("no image")
    tab = new_tab(private.url, PHONE)
    page = tab.page
    open_menu(page, private)
    page.evaluate("window.shifts = 0")
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
    assert tab.fits()
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


def test_columns_of_compare(private: Server, new_tab: NewTab) -> None:
    first, second = draw(5)[1]
    query, tab = f"a {first} beside a {second}", new_tab(private.url)  # a caption
    tab.open(f"?screen=compare&q={query}&methods=pvse,vse_infty,mvam%2Bavse", ".columns .tile img")
    page, answer = tab.page, private.get("compare", q=query, methods="pvse,vse_infty,mvam+avse")
    columns = page.locator(".column")
    expect(columns).to_have_count(3)
    for place, column in enumerate(answer["columns"]):
        right = f"right at {column['best_true_rank']}"
        expect(columns.nth(place).locator(".at")).to_contain_text(right)
        tiles = columns.nth(place).locator(".tile")
        ids = tiles.evaluate_all("tiles => tiles.map(tile => Number(tile.dataset.image))")
        assert ids == [hit["image_id"] for hit in column["hits"]]
        signs = tiles.evaluate_all(
            "tiles => tiles.map(tile => tile.querySelector('.move')?.textContent.trim() ?? '')"
        )
        arrows = [
            "new" if hit["new"] else f"{'▲' if hit['move'] > 0 else '▼'}{abs(hit['move'])}"
            if hit["move"] else ""
            for hit in column["hits"]
        ]  # fmt: skip
        assert signs == arrows
        alone = {outcome["image_id"] for outcome in answer["only_found"][column["method"]]}
        marked = tiles.evaluate_all(
            "tiles => tiles.filter(tile => tile.querySelector('.badge'))"
            ".map(tile => Number(tile.dataset.image))"
        )
        assert set(marked) == alone
    page.get_by_label("Agreement of the methods").click()
    cells = page.locator(".agreement table").first.locator("td")
    expect(cells.nth(2)).to_have_text(f"{answer['overlap'][0][1]:.0%}".replace("%", " %"))
