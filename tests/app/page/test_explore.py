"""Explore and Inspect over the bundled scenes, as visitors use them."""

import csv
import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, expect

from tests.app.api.conftest import ROOT, Run, Running
from tests.app.page.conftest import DESKTOP, PHONE, NewTab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
GALLERY = ROOT / "app/bundled/scenes/gallery"
KANGAROO = "?q=a+kangaroo+and+a+whale+can+be+seen+in+the+image&words=1"
NOTHING = re.compile("nothing here", re.IGNORECASE)
PIXELS = """(canvas) => {
  const { width, height } = canvas;
  const pixels = (source) => {
    const copy = Object.assign(document.createElement("canvas"), { width, height });
    copy.getContext("2d").drawImage(source, 0, 0, width, height);
    return [...copy.getContext("2d").getImageData(0, 0, width, height).data];
  };
  const image = canvas.parentElement.querySelector("img");
  return { width, height, evidence: pixels(canvas), original: pixels(image) };
}"""


@pytest.fixture(scope="module")
def server(run: Run) -> Running:
    """The app over its scenes."""
    return run()


def pixels(page: Page, place: int) -> tuple[np.ndarray, np.ndarray]:
    """A tile with evidence, and its image without: (height, width, 3) each."""
    canvas = page.locator(".tile canvas").nth(place)
    seen = canvas.evaluate(PIXELS)
    shape = seen["height"], seen["width"], 4
    evidence, original = (np.reshape(seen[name], shape) for name in ("evidence", "original"))
    return evidence[..., :3].astype(float), original[..., :3].astype(float)


@pytest.mark.parametrize(("size", "top"), [(DESKTOP, 300), (PHONE, 260)])
def test_the_first_screen_is_a_right_example_with_evidence(
    server: Running, new_tab: NewTab, size: tuple[int, int], top: int
) -> None:
    tab = new_tab(server.url, size)
    tab.open()
    expect(tab.tiles.first).to_have_attribute("data-right", "")
    expect(tab.page.get_by_text(NOTHING)).to_have_count(0)
    box = tab.tiles.first.bounding_box()
    assert box is not None
    assert box["y"] <= top
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert tab.page.evaluate("window.shifts") <= 0.05


def test_back_forward_reload_and_a_copied_link_restore_everything(
    server: Running, new_tab: NewTab
) -> None:
    tab = new_tab(server.url)
    tab.open("?q=a+dog&method=mvam")
    tab.ask("a red car")
    tab.tiles.nth(2).click()
    expect(tab.tiles.nth(2)).to_have_attribute("data-selected", "")
    tab.page.get_by_role("button", name="Copy link").click()
    copied = tab.page.evaluate("navigator.clipboard.readText()")
    assert copied == tab.page.url
    tab.page.go_back()
    tab.page.go_back()
    expect(tab.page.locator("#query")).to_have_value("a dog")
    expect(tab.page.locator("#method")).to_have_value("mvam")
    tab.page.go_forward()
    tab.page.go_forward()
    expect(tab.page).to_have_url(copied)
    tab.page.reload()
    other = new_tab(server.url)
    other.page.goto(copied)
    for each in (tab, other):
        expect(each.page.locator("#query")).to_have_value("a red car")
        expect(each.tiles.nth(2)).to_have_attribute("data-selected", "")


def test_evidence_lies_on_the_object_and_images_stay_bright(
    server: Running, new_tab: NewTab
) -> None:
    tab = new_tab(server.url)
    tab.open(KANGAROO)
    scenes = json.loads((GALLERY / "gallery.json").read_text())["images"]
    on_object = 0
    for place in range(4):
        evidence, original = pixels(tab.page, place)
        assert evidence.mean() >= 0.85 * original.mean()
        tile = tab.page.locator(".tile:has(canvas)").nth(place)
        scene = scenes[int(tile.get_attribute("data-id") or -1)]
        names = [each["name"] for each in scene["objects"]]
        contour = np.abs(evidence - (245, 159, 0)).sum(axis=2) < 60
        if "kangaroo" not in names or not contour.any():
            continue
        mask = np.asarray(Image.open(GALLERY / scene["mask"]).resize(contour.shape[::-1], 0))
        on_mask = np.isin(mask, [i + 1 for i, name in enumerate(names) if name == "kangaroo"])
        ys, xs = np.nonzero(contour)
        centre = on_mask[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
        on_object += bool(centre.mean() > 2 * on_mask.mean())
    assert on_object >= 3


def test_words_light_every_tile_and_evidence_can_be_switched_off(
    server: Running, new_tab: NewTab
) -> None:
    tab = new_tab(server.url)
    tab.open(KANGAROO)
    notes = tab.page.locator("#notes")
    notes.get_by_role("button", name="whale").click()
    expect(notes.locator("[aria-pressed=true]")).to_have_count(2)
    expect(tab.page).to_have_url(re.compile("words=1,4"))
    expect(tab.page.get_by_text('"whale" contributes 0.2')).to_be_visible()
    tab.page.get_by_label("Evidence", exact=True).uncheck()
    expect(tab.page.locator(".tile canvas")).to_have_count(0)


def test_negation_and_unknown_words_lead_on(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open("?q=two+dogs+and+no+cat")
    tab.page.locator("#notes button.chip", has_text=re.compile("cat$")).last.click()
    expect(tab.page.locator("#query")).to_have_value("two dogs - 0.5: cat")
    tab.ask("a guitr")
    tab.page.locator("#notes").get_by_role("link", name="guitar", exact=True).click()
    expect(tab.page.locator("#query")).to_have_value("a guitar")
    tab.ask("rtjkwerq")
    expect(tab.page.get_by_text('"rtjkwerq" is unknown.')).to_be_visible()
    expect(tab.page.get_by_text("Did you mean")).to_have_count(0)


def test_similar_images_and_an_image_file(server: Running, new_tab: NewTab, tmp_path: Path) -> None:
    tab = new_tab(server.url)
    tab.open("?q=a+dog")
    tab.page.get_by_role("button", name="Similar", exact=True).click()
    expect(tab.page.locator("#example img")).to_be_visible()
    expect(tab.page.locator(".panel .stage img")).to_be_visible()
    tab.page.get_by_role("button", name="More like this").click()
    expect(tab.page.locator("#notes .example")).to_have_count(1)
    file = tmp_path / "mine.png"
    Image.open(GALLERY / "images/test-000005.webp").convert("RGB").save(file)
    tab.page.set_input_files("#image-file", file)
    expect(tab.tiles.first).to_have_attribute("data-id", "5")
    expect(tab.page.locator(".tile canvas").first).to_be_visible()
    tab.page.reload()
    expect(tab.tiles.first).to_have_attribute("data-id", "5")
    other = new_tab(server.url)
    other.page.goto(tab.page.url)
    expect(other.page.locator("#notes").get_by_text("stayed in the tab")).to_be_visible()
    tab.page.get_by_role("button", name="Remove the image").click()
    expect(tab.page.locator("#example img")).to_have_count(0)
    expect(tab.page.locator("#query")).not_to_have_value("")


def test_filters_and_the_export_of_selected_images(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open("?q=a+dog")
    tab.page.get_by_text("Filter", exact=True).click()
    tab.page.get_by_label("setting").select_option("setting:beach")
    expect(tab.page.get_by_text("Filter (1)")).to_be_visible()
    expect(tab.page).to_have_url(re.compile("only=setting:beach"))
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Select", exact=True).click()
    for place in (0, 1):
        tab.tiles.nth(place).click()
    expect(tab.page.get_by_text("2 selected", exact=True).first).to_be_visible()
    files = [int(tab.tiles.nth(place).get_attribute("data-id") or -1) for place in (0, 1)]
    with tab.page.expect_download() as table:
        tab.page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(table.value.path().read_text())))
    assert [int(row["image"]) for row in rows] == files
    with tab.page.expect_download() as archive:
        tab.page.get_by_role("button", name="ZIP").click()
    with zipfile.ZipFile(archive.value.path()) as content:
        assert content.testzip() is None
        assert len(content.namelist()) == 2
        assert Image.open(content.open(content.namelist()[0])).size == (224, 224)


def test_two_clicks_lead_from_a_hit_to_view_7_of_mvam(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open()
    panel = tab.page.locator(".panel")
    panel.get_by_role("button", name="MVAM").click()
    panel.get_by_role("button", name="View 7", exact=False).first.click()
    expect(tab.page).to_have_url(re.compile("view=6.*by=mvam"))
    tab.page.get_by_role("button", name="Inspect").click()
    expect(tab.page.locator(".thumbs .view")).to_have_count(16)
    expect(tab.page.locator(".thumbs [aria-pressed=true]")).to_contain_text("7")


def test_inspect_shows_words_lens_and_the_inside_of_avse(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open("?q=a+dog&method=avse&by=avse")
    tab.page.get_by_role("button", name="Inspect").click()
    dialog = tab.page.locator("#inspect")
    expect(dialog.locator(".word")).to_have_count(2)
    dialog.get_by_role("tab", name="Inside").click()
    expect(dialog.get_by_role("heading", name="Sinkhorn plan")).to_be_visible()
    expect(dialog.get_by_text("views in use")).to_be_visible()
    dialog.get_by_label("Blocks are matched by").select_option("maxsim")
    expect(dialog.get_by_role("heading", name="Sinkhorn plan")).to_have_count(0)
    dialog.get_by_role("tab", name="Lens").click()
    dialog.get_by_role("button", name="Only view").click()
    expect(dialog.locator(".lens .view")).to_have_count(12)
    tab.page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(tab.page).not_to_have_url(re.compile("inspect"))


def test_the_keyboard_alone_is_enough(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open()
    keyboard = tab.page.keyboard
    keyboard.press("/")
    keyboard.type("a red car")
    keyboard.press("Enter")
    expect(tab.page).to_have_url(re.compile("q=a\\+red\\+car&image="))
    expect(tab.tiles.first).to_have_attribute("data-selected", "")
    keyboard.press("ArrowRight")
    expect(tab.tiles.nth(1)).to_have_attribute("data-selected", "")
    keyboard.press("Enter")
    expect(tab.page.locator("#inspect")).to_be_visible()
    keyboard.press("Escape")
    expect(tab.page.locator("#inspect")).not_to_be_visible()
    keyboard.press("Escape")
    expect(tab.page.locator(".panel")).not_to_be_visible()
    expect(tab.page.locator("#live")).to_contain_text("60 images for a red car")


def test_an_upload_that_is_gone_says_so(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.page.goto(f"{server.url}/?q=a+dog&c=mine")
    expect(tab.page.locator("#screen").get_by_text("never shared")).to_be_visible()
    tab.page.evaluate("sessionStorage.setItem('polyview.collection', 'upload-0123')")
    tab.page.reload()
    expect(tab.page.locator("#screen").get_by_text("not kept any more")).to_be_visible()


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_axe_finds_nothing_serious(
    server: Running, new_tab: NewTab, size: tuple[int, int], dark: bool
) -> None:
    tab = new_tab(server.url, size, dark)
    tab.open()
    wrong = [_serious(tab.page)]
    tab.tiles.nth(1).click()
    expect(tab.page.locator(".panel .chips.views .chip").first).to_be_visible()
    wrong.append(_serious(tab.page))
    tab.page.get_by_role("button", name="Inspect").click()
    for name in ("Words", "Views", "Lens", "Inside"):
        tab.page.get_by_role("tab", name=name).click()
        expect(tab.page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        wrong.append(_serious(tab.page))
    assert not any(wrong), wrong


def test_the_first_page_is_small(server: Running, new_tab: NewTab) -> None:
    tab = new_tab(server.url)
    tab.open()
    sizes: dict[str, int] = tab.page.evaluate("""() => Object.fromEntries(performance
        .getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
        .filter((entry) => !entry.name.includes("/image/"))
        .map((entry) => [entry.name, entry.transferSize]))""")
    assert sum(sizes.values()) <= 120_000, sizes


def _serious(page: Page) -> list[tuple[str, str]]:
    """Rules of axe-core that are broken, and where."""
    return [
        (rule["id"], node["html"][:200])
        for rule in Axe().run(page).response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
