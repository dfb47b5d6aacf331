"""The dialog Inspect over the bundled scenes and clips: words, views, lens, inside, maps."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.app.page.conftest import DESKTOP, PHONE, NewTab, Tab, pixels
from tests.app.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]
QUERY = "a kangaroo and a whale can be seen in the image"
KANGAROO = f"?q={QUERY.replace(' ', '+')}&words=1"


def inspect(tab: Tab, search: str) -> None:
    """Opens Explore, then Inspect for the first hit."""
    tab.open(search)
    tab.button("Inspect").click()
    expect(tab.page.locator("#inspect .caption").last).not_to_have_text("Loading…")


def test_view_7_of_mvam_is_two_clicks_away(tab: Tab, new_tab: NewTab) -> None:
    tab.open()
    panel = tab.page.locator(".panel")
    panel.get_by_role("button", name="MVAM").click()
    panel.get_by_role("button", name="View 7", exact=False).first.click()
    expect(tab.page).to_have_url(re.compile("view=6.*by=mvam"))
    drawn = panel.locator("canvas")
    tab.page.wait_for_function("document.querySelector('.panel canvas').width > 300")
    view, original = pixels(drawn)
    assert np.abs(view - original).mean() > 10  # one viridis overlay
    tab.button("Inspect").click()
    expect(tab.page.locator(".thumbs .view")).to_have_count(16)
    expect(tab.page.locator(".thumbs [aria-pressed=true]")).to_contain_text("7")
    tab.page.locator(".thumbs .view").nth(4).click()
    expect(tab.page).to_have_url(re.compile("view=4"))
    other = new_tab(tab.home)  # a link opens the same
    other.page.goto(tab.page.url)
    expect(other.page.locator(".thumbs [aria-pressed=true]")).to_contain_text("5")
    expect(other.page.get_by_role("tab", name="Views")).to_be_focused()


def test_strength_outline_and_colours_of_the_evidence(tab: Tab, bundled: Server) -> None:
    inspect(tab, KANGAROO)
    expect(tab.page.locator("#inspect .word")).to_have_count(11)
    canvas = tab.page.locator("#inspect .stage canvas")
    strength = tab.page.get_by_label("Strength").last

    def change() -> float:
        evidence, original = pixels(canvas)
        return float((np.abs(evidence - original).max(axis=2) > 8).mean())

    whole = change()
    tab.page.get_by_label("Outline only").check()
    outline = change()
    assert 0 < outline < 0.2 < whole
    tab.page.get_by_label("Outline only").uncheck()
    strength.fill("0")
    assert change() == pytest.approx(outline, abs=0.01)
    strength.fill("1")
    words = tab.page.locator("#inspect .word")
    words.filter(has_text="whale").click()
    expect(tab.page.get_by_text(re.compile('"whale" contributes .* of')).last).to_be_visible()
    evidence, _ = pixels(canvas)
    for colour in ((245, 159, 0), (37, 99, 235)):  # amber and blue
        assert (np.abs(evidence - colour).sum(axis=2) < 40).sum() > 50
    hit = bundled.get("search", q=QUERY, method="vse_infty", k=1)["hits"][0]
    seen = bundled.get("explain/hits", q=QUERY, method="vse_infty", images=hit["image_id"])
    cells = np.array(seen["cells"][0])  # (cells, words)
    against = int((cells.min(axis=0) / cells.max(axis=0).clip(min=1e-6)).argmin())
    words.filter(has_text="whale").click()
    words.nth(1).click()  # no word is chosen any more
    words.nth(against).click()
    tab.page.get_by_label("Evidence against").check()
    evidence, _ = pixels(canvas)
    assert (np.abs(evidence - (124, 58, 237)).sum(axis=2) < 30).any()  # violet


def test_the_lens_and_insides_of_two_methods(tab: Tab) -> None:
    inspect(tab, "?q=a+dog&method=avse&by=avse")
    dialog = tab.page.locator("#inspect")
    dialog.get_by_role("tab", name="Inside").click()
    for heading in ("Affinity of blocks", "Cells and words", "Collapse"):
        expect(dialog.get_by_role("heading", name=heading)).to_be_visible()
    expect(dialog.get_by_text("views in use")).to_be_visible()
    expect(dialog).not_to_contain_text(re.compile("picture", re.IGNORECASE))
    plan = dialog.get_by_role("heading", name="Sinkhorn plan")
    match = dialog.get_by_label("Blocks are matched by")
    match.select_option("sinkhorn")
    expect(plan).to_be_visible()
    match.select_option("maxsim")
    expect(plan).to_have_count(0)
    dialog.get_by_role("tab", name="Lens").click()
    dialog.get_by_role("button", name="Only view").click()
    expect(dialog.locator(".lens .view")).to_have_count(12)
    expect(dialog.locator(".lens h3")).to_contain_text("of the first 12 stay")
    dialog.get_by_label("Method", exact=True).select_option("mv_vse")
    dialog.get_by_role("tab", name="Inside").click()
    expect(dialog.locator("svg[aria-label*='lines of']").first).to_be_visible()
    dialog.get_by_role("tab", name="Views").click()
    tab.button("What it matched").click()
    expect(tab.button("What it matched")).to_have_attribute("aria-pressed", "true")
    expect(dialog.locator(".thumbs .view")).to_have_count(3)
    dialog.get_by_label("Method", exact=True).select_option("late")
    expect(dialog.locator(".thumbs .view").first).to_contain_text("★")
    expect(dialog.locator(".thumbs .view").nth(2)).to_have_count(0)  # "a dog" has two words
    dialog.get_by_role("tab", name="Lens").click()
    expect(dialog.locator(".sliders input").first).to_be_visible()
    expect(dialog.locator(".sliders input").nth(2)).to_have_count(0)
    tab.page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(tab.page).not_to_have_url(re.compile("inspect"))
    tab.button("Similar").click()  # without words, no cell matches
    tab.button("Inspect").click()
    dialog.get_by_role("tab", name="Views").click()
    expect(dialog).to_contain_text("Each cell of the image is a view")
    expect(dialog.locator(".thumbs .view")).to_have_count(0)


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, True), (PHONE, False)])
def test_every_tab(bundled: Server, new_tab: NewTab, size: tuple[int, int], dark: bool) -> None:
    tab = new_tab(bundled.url, size, dark)
    tab.open("?q=a+dog&by=mvam")
    if size == PHONE:
        tab.tiles.first.click()
    tab.button("Inspect").click()
    for name in ("Words", "Lens", "Inside", "Views"):
        tab.page.get_by_role("tab", name=name).click()
        expect(tab.page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        assert tab.serious() == [], name
    expect(tab.page.locator(".thumbs .view")).to_have_count(16)
    if size != PHONE:  # side by side
        image, chooser = tab.page.locator("#inspect .stage, #inspect .side").evaluate_all(
            "parts => parts.map(part => part.getBoundingClientRect().toJSON())"
        )
        assert image["right"] <= chooser["left"]
        assert abs(image["top"] - chooser["top"]) < 60
    assert tab.fits()


def test_a_clip_has_a_moment_a_player_and_a_timeline(tab: Tab) -> None:
    tab.open("?pack=scenes_moving")
    expect(tab.tiles.first).to_have_attribute("data-right", "")
    expect(tab.tiles.first.locator(".badge")).to_contain_text(":0")
    tab.button("▶ Play").click()
    player = tab.page.locator(".panel .stage img")
    expect(player).to_have_attribute("src", re.compile("/clip/"))
    tab.button("Inspect").click()
    expect(tab.page.locator(".strip figure")).to_have_count(16)
    expect(tab.page.get_by_role("heading", name="Over time")).to_be_visible()
    # a strip over each tile
    tab.open("?pack=scenes_moving&screen=compare", ".columns .tile canvas")
    expect(tab.page.locator(".columns .badge").first).to_contain_text(":0")
    expect(tab.page.locator(".dock .map canvas").first).to_be_visible()
