"""Compare and Results in a browser: columns, moves, maps, files; the table, its plot."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.app.page.conftest import DESKTOP, PHONE, NewTab, Tab
from tests.app.serving import Server

pytestmark = pytest.mark.browser
USUAL = ["vse_infty", "mv_vse", "avse", "mvam"]
QUERY = "there is a top hat and a mic in the picture"


@pytest.fixture
def page(new_tab: NewTab, bundled: Server) -> Page:
    """A page that fails its test where a script fails."""
    return new_tab(bundled.url).page


def compare(page: Page, server: Server, extra: str = "") -> None:
    """Opens Compare, and waits for its answer."""
    page.goto(f"{server.url}/?screen=compare{extra}")
    expect(page.locator(".columns .tile img").first).to_be_visible()


def test_columns_and_moves_are_those_of_the_api(bundled: Server, page: Page) -> None:
    methods = ["pvse", "vse_infty", "mvam+avse"]
    compare(page, bundled, f"&q={QUERY}&methods={','.join(methods).replace('+', '%2B')}")
    answer = bundled.get("compare", q=QUERY, methods=",".join(methods))
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


def test_it_opens_with_four_methods_and_a_curated_example(bundled: Server, page: Page) -> None:
    compare(page, bundled)
    columns = page.locator(".column")
    methods = columns.evaluate_all("columns => columns.map(column => column.dataset.method)")
    assert methods == USUAL
    best = page.locator(".at.best")
    expect(best).to_contain_text("right at 1")
    top = page.locator(".columns .tile").first.bounding_box()
    assert top is not None
    assert top["y"] <= 300
    page.get_by_label("Add a method").select_option("pvse")
    expect(columns).to_have_count(5)
    page.get_by_label("Remove AVSE").click()
    expect(columns).to_have_count(4)
    page.go_back()
    expect(columns).to_have_count(5)
    page.locator("summary", has_text="Examples").click()
    page.locator(".menu.list button", has_text="Only PVSE finds it first").first.click()
    expect(page.locator("[data-method=pvse] .at.best")).to_contain_text("right at 1")


@pytest.mark.slow
def test_maps_of_every_method_and_saved_files(bundled: Server, page: Page, tmp_path: Path) -> None:
    query: list[str] = []
    page.on("request", lambda request: query.append(request.url))
    compare(page, bundled, f"&q={QUERY}")
    maps = page.locator(".dock .map")
    expect(maps).to_have_count(4)
    for place in range(4):
        expect(maps.nth(place).locator("small")).to_contain_text("of 0.")
        expect(maps.nth(place).locator("canvas")).to_have_attribute("height", "280")
    assert sum("/explain/hits" in url for url in query) == 4
    page.get_by_role("button", name="hat", exact=True).click()
    expect(page.locator(".chip[aria-pressed=true]")).to_have_count(2)
    page.locator("[data-method=mvam] .tile").nth(1).click()
    image = page.locator("[data-method=mvam] .tile").nth(1).get_attribute("data-image")
    expect(page).to_have_url(re.compile(f"image={image}(&|$)"))
    expect(maps.nth(3)).to_contain_text("rank 2")
    files = {}
    for kind in ("PNG", "CSV", "JSON"):
        page.locator("summary", has_text="Save").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        name = "polyview-there-is-a-top-hat-and-a-mic-in-the-picture"
        assert download.value.suggested_filename == f"{name}.{kind.lower()}"
        files[kind] = tmp_path / kind
        download.value.save_as(files[kind])
    rows = list(csv.DictReader(io.StringIO(files["CSV"].read_text("utf-8"))))
    assert len(rows) == 40
    assert {row["method"] for row in rows} == set(USUAL)
    answer = bundled.get("compare", q=QUERY, methods=",".join(USUAL))
    first = answer["columns"][0]["hits"][0]
    assert int(rows[0]["image_id"]) == first["image_id"]
    assert rows[0]["right"] == "true"
    assert f'"{first["file"]}"' in files["JSON"].read_text("utf-8")
    with Image.open(files["PNG"]) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 4 * 200
        assert sheet.height > 10 * 180
        assert len(sheet.convert("RGB").crop((24, 118, 224, 298)).getcolors(10**6) or []) > 100
    maps.nth(3).click()
    expect(page).to_have_url(re.compile("method=mvam.*inspect=views"))


@pytest.mark.slow
def test_a_phone_swipes_and_axe_is_content(bundled: Server, new_tab: NewTab) -> None:
    tab = new_tab(bundled.url, PHONE, dark=True)
    page = tab.page
    compare(page, bundled, f"&q={QUERY}")
    assert tab.top(".columns .tile") <= 260
    assert tab.fits()
    page.locator(".jump .chip", has_text="MVAM").click()
    expect(page.locator("[data-method=mvam] .tile").first).to_be_in_viewport()
    page.locator("[data-method=mvam] .tile").first.click()
    expect(page.locator(".dock .map small").last).to_contain_text("of 0.")
    assert tab.serious() == []


@pytest.fixture(
    params=[(DESKTOP, False), pytest.param((PHONE, True), marks=pytest.mark.slow)],
    ids=["desktop", "phone"],
)
def results(new_tab: NewTab, bundled: Server, request: pytest.FixtureRequest) -> Tab:
    """The screen of results, wide and light or narrow and dark."""
    tab = new_tab(bundled.url, *request.param)
    tab.open("?screen=results", ".numbers")
    return tab


def test_results_are_sorted_starred_explained_and_drawn(bundled: Server, results: Tab) -> None:
    answer, page = bundled.get("results"), results.page
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
    assert results.serious() == []
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
