"""The screen Explore over the bundled scenes."""

import csv
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.app.api.conftest import ROOT
from tests.app.page.conftest import DESKTOP, PHONE, TABLET, NewTab, Tab, pixels
from tests.app.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]
GALLERY = ROOT / "app/bundled/scenes/gallery"
KANGAROO = "?q=a+kangaroo+and+a+whale+can+be+seen+in+the+image&words=1"
# transferred bytes by URL, without images
TRANSFERRED = """() => Object.fromEntries(performance
    .getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
    .filter((entry) => !entry.name.includes("/image/"))
    .map((entry) => [entry.name, entry.transferSize]))"""
NOTHING = re.compile("nothing (here|seems)", re.IGNORECASE)


@pytest.mark.parametrize(("size", "dark", "top"), [(DESKTOP, False, 300), (PHONE, True, 260)])
def test_the_first_screen_is_a_right_example_with_evidence(
    bundled: Server, new_tab: NewTab, size: tuple[int, int], dark: bool, top: int
) -> None:
    tab = new_tab(bundled.url, size, dark)
    tab.open()
    expect(tab.tiles.first).to_have_attribute("data-right", "")
    expect(tab.page.get_by_text(NOTHING)).to_have_count(0)
    example = tab.page.locator("#query").input_value()
    objects = bundled.get("search", q=example, k=1)["hits"][0]["objects"]
    word = tab.page.locator("#notes .chip[aria-pressed=true]").inner_text()
    assert word.removesuffix("s") in objects  # the evidence is that of a whole name
    assert tab.top(".tile") <= top
    assert tab.fits()
    evidence, original = pixels(tab.page.locator(".tile canvas").first)
    assert np.abs(evidence - original).mean() > 1
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ("255" in background) is not dark
    text = tab.page.evaluate("document.body.innerText.toLowerCase()")
    assert "picture" not in re.sub("captions?: .*", "", text)  # captions are the collection's
    sizes = tab.page.evaluate(TRANSFERRED)
    assert sum(sizes.values()) <= 120_000, sizes
    tab.tiles.nth(1).click()
    expect(tab.page.locator(".panel .chips.views .chip").first).to_be_visible()
    assert tab.serious() == []
    tab.page.keyboard.press("Escape")
    tab.page.locator("#help").click()
    expect(tab.page.locator("#about")).to_contain_text("Apache-2.0")
    assert tab.serious() == []
    for each in (size, TABLET):
        tab.page.set_viewport_size({"width": each[0], "height": each[1]})
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_links_history_and_screens_keep_the_state(tab: Tab, new_tab: NewTab) -> None:
    tab.open("?q=a+dog&method=mvam")
    tab.ask("a red car")
    tab.tiles.nth(2).click()
    expect(tab.tiles.nth(2)).to_have_attribute("data-selected", "")
    copied, image = tab.page.url, tab.tiles.nth(2).get_attribute("data-id")
    tab.page.go_back()
    tab.page.go_back()
    expect(tab.page.locator("#query")).to_have_value("a dog")
    expect(tab.page.locator("#method")).to_have_value("mvam")
    tab.page.go_forward()
    tab.page.go_forward()
    expect(tab.page).to_have_url(copied)
    tab.page.reload()
    other = new_tab(tab.home)
    other.page.goto(copied)
    for each in (tab, other):
        expect(each.page.locator("#query")).to_have_value("a red car")
        expect(each.tiles.nth(2)).to_have_attribute("data-selected", "")
    navigation = tab.page.locator("#screens")
    navigation.get_by_role("link", name="Compare").click()
    expect(tab.page.locator(f".columns .tile[data-image='{image}']").first).to_be_visible()
    expect(tab.page.locator("#query")).to_have_value("a red car")
    navigation.get_by_role("link", name="Results").click()
    expect(tab.page.locator(".numbers").first).to_be_visible()
    navigation.get_by_role("link", name="Explore").click()
    expect(tab.tiles.nth(2)).to_have_attribute("data-selected", "")
    assert tab.page.url == copied


def test_another_collection_keeps_the_query_but_not_the_example(tab: Tab) -> None:
    tab.open("?a=pvse&b=mvam&kind=counting&queries=0&k=5")  # of Mistakes
    query, menu = tab.page.locator("#query"), tab.page.locator("#menu")
    example = query.input_value()
    tab.page.locator("#collection").click()
    menu.locator(".card", has_text="Scenes in motion").click()
    expect(query).not_to_have_value(example)
    expect(tab.page).not_to_have_url(re.compile("[?&](a|b|kind|queries)="))
    expect(tab.page).to_have_url(re.compile("[?&]k=5"))
    expect(tab.tiles.first).to_have_attribute("data-right", "")
    tab.ask("a panda")
    tab.page.locator("#collection").click()
    menu.locator(".card", has_text="1,000 images").click()
    expect(tab.page.locator("#collection")).to_contain_text("Scenes · 1,000")
    expect(tab.page).to_have_url(re.compile("q=a\\+panda"))
    expect(query).to_have_value("a panda")


def test_evidence_has_outlines_and_words_can_be_chosen(tab: Tab) -> None:
    tab.open(KANGAROO)
    contours = []
    for place in range(4):
        canvas = tab.page.locator(".tile canvas").nth(place)
        evidence, original = pixels(canvas)
        assert evidence.mean() >= 0.85 * original.mean()  # images stay bright
        contours.append((np.abs(evidence - (245, 159, 0)).sum(axis=2) < 60).any())
    assert sum(contours) >= 3
    notes = tab.page.locator("#notes")
    tints = notes.locator(".chip").evaluate_all(
        "chips => Object.fromEntries(chips.map(c => [c.textContent, parseFloat("
        "c.style.getPropertyValue('--tint'))]))"
    )
    assert tints["kangaroo"] > 20 > tints["be"]
    notes.get_by_role("button", name="whale").click()
    expect(notes.locator("[aria-pressed=true]")).to_have_count(2)
    expect(notes.get_by_role("button", name="whale")).to_be_focused()
    expect(tab.page).to_have_url(re.compile("words=1,4"))
    expect(tab.page.get_by_text('"whale" contributes 0.2')).to_be_visible()
    visible = tab.page.locator(".tile:has(img[src])")
    expect(visible.locator("canvas[data-words='1,4']")).to_have_count(visible.count())
    tab.page.get_by_label("Evidence", exact=True).uncheck()
    expect(tab.page.locator(".tile canvas")).to_have_count(0)


def test_terms_negation_and_unknown_words(tab: Tab, bundled: Server) -> None:
    tab.open("?q=2:+dog+%2B+beach+-+people")
    chips = tab.page.locator("#notes .chip")
    expect(chips).to_have_text(["dog", "beach", "\N{MINUS SIGN} people"])
    answer = bundled.get("search", q="2: dog + beach - people", method="vse_infty", k=1)
    expect(tab.tiles.first).to_have_attribute("data-id", str(answer["hits"][0]["image_id"]))
    tab.ask("two dogs and no cat")
    tab.page.locator("#notes button.chip", has_text=re.compile("cat$")).last.click()
    expect(tab.page.locator("#query")).to_have_value("two dogs - 0.5: cat")
    tab.ask("a guitr")
    tab.page.locator("#notes").get_by_role("link", name="guitar", exact=True).click()
    expect(tab.page.locator("#query")).to_have_value("a guitar")
    tab.open("?q=rtjkwerq&words=0", ".tile img")
    expect(tab.page.get_by_text('"rtjkwerq" is unknown.')).to_be_visible()
    expect(tab.page.get_by_text("Did you mean")).to_have_count(0)
    expect(tab.page.locator("#notes")).to_contain_text("No word of the query is known")
    expect(tab.page.locator(".tile canvas")).to_have_count(0)


def test_confidence_is_hidden_for_known_answers(tab: Tab, bundled: Server) -> None:
    tab.open("?q=a+dog")
    hits = bundled.get("search", q="a dog", method="vse_infty", k=60)["hits"]
    assert "satisfies" not in hits[0]
    for place, least, word in ((0, 0.8, "sure"), (-1, 0.4, "likely")):
        sure = [hit for hit in hits if hit["probability"] >= least][place]
        tab.page.locator(f".tile[data-id='{sure['image_id']}']").click()
        expect(tab.page.locator(".panel .sure")).to_have_text(word)
    unlikely = next(hit for hit in hits if hit["probability"] < 0.4)
    tab.page.locator(f".tile[data-id='{unlikely['image_id']}']").click()
    expect(tab.page.locator(".panel header")).to_contain_text(f"#{unlikely['rank']}")
    expect(tab.page.locator(".panel .sure")).to_have_count(0)
    tab.open()  # a caption whose right images are known
    expect(tab.page.locator(".panel header")).to_contain_text("known answer")
    expect(tab.page.locator(".panel .sure")).to_have_count(0)
    expect(tab.page.locator(".rank", has_text=re.compile("sure|likely"))).to_have_count(0)


def test_similar_images_and_an_image_file(tab: Tab, new_tab: NewTab, tmp_path: Path) -> None:
    tab.open("?q=a+dog")
    tab.button("Similar").click()
    expect(tab.page.locator("#example img")).to_be_visible()
    expect(tab.page.locator(".panel .stage img")).to_be_visible()
    expect(tab.page.locator(".panel .chip").first).to_have_text("the image")
    assert all(tab.page.locator(".panel .chip").all_inner_texts())
    tab.button("More like this").click()
    expect(tab.page.locator("#notes .example")).to_have_count(1)
    file = tmp_path / "mine.png"
    Image.open(GALLERY / "images/test-000005.webp").convert("RGB").save(file)
    tab.page.set_input_files("#image-file", file)
    expect(tab.tiles.first).to_have_attribute("data-id", "5")
    expect(tab.page.locator(".tile canvas").first).to_be_visible()
    tab.page.reload()
    expect(tab.tiles.first).to_have_attribute("data-id", "5")
    other = new_tab(tab.home)
    other.page.goto(tab.page.url)
    expect(other.page.locator("#notes").get_by_text("stored only in the tab")).to_be_visible()
    tab.button("Remove the image").click()
    expect(tab.page.locator("#example img")).to_have_count(0)
    expect(tab.page.locator("#query")).not_to_have_value("")


def test_filters_and_the_export_of_selected_images(tab: Tab) -> None:
    tab.open("?q=a+dog")
    tab.page.locator("summary", has_text="Filter").click()
    tab.page.get_by_label("setting").select_option("setting:beach")
    expect(tab.page.get_by_text("Filter (1)")).to_be_visible()
    expect(tab.page).to_have_url(re.compile("only=setting:beach"))
    tab.page.keyboard.press("Escape")
    tab.button("Select").click()
    for place in (0, 1):
        tab.tiles.nth(place).click()
    expect(tab.page.get_by_text("2 selected", exact=True).first).to_be_visible()
    files = [int(tab.tiles.nth(place).get_attribute("data-id") or -1) for place in (0, 1)]
    with tab.page.expect_download() as table:
        tab.button("CSV").click()
    rows = list(csv.DictReader(io.StringIO(table.value.path().read_text())))
    assert [int(row["image"]) for row in rows] == files
    with tab.page.expect_download() as archive:
        tab.button("ZIP of images").click()
    with zipfile.ZipFile(archive.value.path()) as content:
        assert content.testzip() is None
        assert len(content.namelist()) == 2
        assert Image.open(content.open(content.namelist()[0])).size == (224, 224)


def test_the_keyboard_operates_explore(tab: Tab) -> None:
    tab.open()
    keyboard, live = tab.page.keyboard, tab.page.locator("#live")
    keyboard.press("Tab")
    expect(tab.page.locator(".skip")).to_be_focused()
    tab.page.mouse.move(300, 500)
    tab.page.mouse.wheel(0, 30_000)
    expect(tab.tiles).to_have_count(120)  # further results came
    assert tab.page.evaluate("scrollY") > 500
    keyboard.press("/")
    keyboard.type("a red car")
    keyboard.press("Enter")
    expect(tab.page).to_have_url(re.compile("q=a\\+red\\+car&image="))
    expect(live).to_have_text("60 images for a red car")
    tab.page.wait_for_function("scrollY === 0")  # a new answer begins at the top
    expect(tab.tiles.first).to_have_attribute("data-selected", "")
    keyboard.press("ArrowRight")
    expect(tab.tiles.nth(1)).to_have_attribute("data-selected", "")
    keyboard.press("x")
    expect(live).to_have_text("1 selected")
    keyboard.press("Enter")
    expect(tab.page.locator("#inspect")).to_be_visible()
    keyboard.press("ArrowRight")
    expect(tab.page.get_by_role("tab", name="Views")).to_have_attribute("aria-selected", "true")
    keyboard.press("Escape")
    expect(tab.page.locator("#inspect")).not_to_be_visible()
    tab.tiles.nth(1).focus()
    keyboard.press("ArrowDown")
    expect(tab.tiles.nth(5)).to_have_attribute("data-selected", "")
    expect(tab.tiles.nth(5)).to_be_focused()
    keyboard.press("Escape")
    expect(tab.page.locator(".panel")).not_to_be_visible()
    tab.page.locator("#screens").get_by_role("link", name="Results").click()
    expect(tab.page.locator(".numbers").first).to_be_visible()
    keyboard.press("/")  # Results has no query box
    expect(tab.page.locator("#query")).to_be_focused()
    expect(tab.tiles.first).to_be_visible()
