"""The screens Compare and Results in a browser: columns, maps, files, the table, the plot."""

import csv
import io
import re
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.app.page.conftest import DESKTOP, PHONE, NewTab, Tab
from tests.app.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]
USUAL = ["vse_infty", "mv_vse", "avse", "mvam"]
QUERY = "there is a top hat and a mic in the picture"
TILES = ".columns .tile img"


def test_compare_opens_with_four_methods_and_an_example(tab: Tab) -> None:
    tab.open("?screen=compare", TILES)
    page = tab.page
    columns = page.locator(".column")
    methods = columns.evaluate_all("columns => columns.map(column => column.dataset.method)")
    assert methods == USUAL
    best = page.locator(".at.best")
    expect(best).to_contain_text("right at 1")
    assert tab.top(".columns .tile") <= 300
    page.get_by_label("Add a method").select_option("pvse")
    expect(columns).to_have_count(5)
    page.get_by_label("Remove AVSE").click()
    expect(columns).to_have_count(4)
    page.go_back()
    expect(columns).to_have_count(5)
    page.locator("summary", has_text="Examples").click()
    page.locator(".menu.list button", has_text="Only PVSE finds it first").first.click()
    expect(page.locator("[data-method=pvse] .at.best")).to_contain_text("right at 1")


def test_maps_and_saved_files(tab: Tab, bundled: Server) -> None:
    page, requests = tab.page, list[str]()
    page.on("request", lambda request: requests.append(request.url))
    tab.open(f"?screen=compare&q={QUERY}", TILES)
    maps = page.locator(".dock .map")
    expect(maps).to_have_count(4)
    for place in range(4):
        expect(maps.nth(place).locator("small")).to_contain_text("of 0.")
        expect(maps.nth(place).locator("canvas")).to_have_attribute("height", "280")
    assert sum("/explain/hits" in url for url in requests) == 4
    page.get_by_role("button", name="hat", exact=True).click()
    expect(page.locator(".chip[aria-pressed=true]")).to_have_count(2)
    page.locator("[data-method=mvam] .tile").nth(1).click()
    image = page.locator("[data-method=mvam] .tile").nth(1).get_attribute("data-image")
    expect(page).to_have_url(re.compile(f"image={image}(&|$)"))
    expect(maps.nth(3)).to_contain_text("rank 2")
    files = {kind: tab.save(kind) for kind in ("PNG", "CSV", "JSON")}
    for kind, file in files.items():
        name = "polyview-there-is-a-top-hat-and-a-mic-in-the-picture"
        assert file.suggested_filename == f"{name}.{kind.lower()}"
    rows = list(csv.DictReader(io.StringIO(files["CSV"].path().read_text("utf-8"))))
    assert len(rows) == 40
    assert {row["method"] for row in rows} == set(USUAL)
    answer = bundled.get("compare", q=QUERY, methods=",".join(USUAL))
    first = answer["columns"][0]["hits"][0]
    assert int(rows[0]["image_id"]) == first["image_id"]
    assert rows[0]["right"] == "true"
    assert f'"{first["file"]}"' in files["JSON"].path().read_text("utf-8")
    with Image.open(files["PNG"].path()) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 4 * 200
        assert sheet.height > 10 * 180
        assert len(sheet.convert("RGB").crop((24, 118, 224, 298)).getcolors(10**6) or []) > 100
    maps.nth(3).click()
    expect(page).to_have_url(re.compile("method=mvam.*inspect=views"))


def test_compare_on_a_phone(bundled: Server, new_tab: NewTab) -> None:
    tab = new_tab(bundled.url, PHONE, dark=True)
    tab.open(f"?screen=compare&q={QUERY}", TILES)
    page = tab.page
    assert tab.top(".columns .tile") <= 260
    assert tab.fits()
    page.locator(".jump .chip", has_text="MVAM").click()
    expect(page.locator("[data-method=mvam] .tile").first).to_be_in_viewport()
    page.locator("[data-method=mvam] .tile").first.click()
    expect(page.locator(".dock .map small").last).to_contain_text("of 0.")
    assert tab.serious() == []


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_the_table_and_the_plot_of_results(
    bundled: Server, new_tab: NewTab, size: tuple[int, int], dark: bool
) -> None:
    tab = new_tab(bundled.url, size, dark)
    tab.open("?screen=results", ".numbers")
    answer, page = bundled.get("results"), tab.page
    rows = page.locator(".numbers").first.locator("tbody tr")
    by_title = {row["title"]: row["values"] for row in answer["methods"].values()}
    for key, down in (("query_ms", False), ("t2i_r1", True)):
        head = page.locator(f"th[data-key={key}]")
        head.locator("button").click()
        expect(head).to_have_attribute("aria-sort", "descending" if down else "ascending")
        titles = rows.locator("th").all_inner_texts()
        assert titles == sorted(by_title, key=lambda t: by_title[t][key], reverse=down)
        expect(page.locator(".tip")).to_contain_text("image")
    best = max(by_title, key=lambda title: by_title[title]["rsum"])
    column = [each["key"] for each in answer["columns"]].index("rsum")
    starred = rows.filter(has=page.locator(f"th:text-is('{best}')")).locator("td").nth(column)
    expect(starred).to_contain_text("★")
    fold = page.locator(".ablations .fold").first
    fold.locator("summary").click()
    expect(fold).to_contain_text("The paper found")
    expect(fold).to_contain_text("ahead")
    assert tab.serious() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # the labels of the plot do not collide
    boxes: list[dict[str, Any]] = page.locator(".plot svg:visible .name").evaluate_all(
        "names => names.map(name => name.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == len(answer["methods"])
    for i, box in enumerate(boxes):
        for other in boxes[:i]:
            across = min(box["right"], other["right"]) - max(box["left"], other["left"])
            down = min(box["bottom"], other["bottom"]) - max(box["top"], other["top"])
            assert across <= 1 or down <= 2
    expect(page.locator(".plot table tr")).to_have_count(len(boxes) + 1)
