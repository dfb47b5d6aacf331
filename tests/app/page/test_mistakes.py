"""The screen Mistakes in a browser: methods, ranks, links to Compare and Inspect, files."""

import csv
import io
import json
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.app.page.conftest import DESKTOP, PHONE, NewTab, Tab
from tests.app.serving import Server, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PAIR = "?screen=mistakes&a=pvse&b=vse_infty"


def opened(new_tab: NewTab, bundled: Server, search: str = PAIR, **window: Any) -> Tab:
    """Opens a tab with Mistakes after all captions are ranked."""
    until(lambda: answer(bundled)["state"] == "ready", 200)
    tab = new_tab(bundled.url, **window)
    tab.open(search, ".captions .tile img")
    return tab


def answer(bundled: Server, **values: Any) -> dict[str, Any]:
    return bundled.get("mistakes", **{"a": "pvse", "b": "vse_infty", "count": 5000} | values)


def texts(tab: Tab) -> list[str]:
    return tab.page.locator(".captions .link").all_inner_texts()


def count(cell: Locator) -> int:
    return int(cell.locator("b").inner_text().replace(",", ""))


def test_methods_cells_and_kinds_are_chosen(new_tab: NewTab, bundled: Server) -> None:
    tab = opened(new_tab, bundled, "?screen=mistakes", size=DESKTOP)
    page = tab.page
    expect(page.locator("h2")).to_contain_text("that VSE∞ finds and Late interaction misses")
    page.get_by_label("Method B").select_option("avse")
    expect(page.locator("h2")).to_contain_text("that VSE∞ finds and AVSE misses")
    page.get_by_label("Method A").select_option("pvse")
    page.get_by_label("Method B").select_option("vse_infty")
    expect(page.locator("h2")).to_contain_text("that PVSE finds and VSE∞ misses")
    expected = answer(bundled)
    for cell, number in expected["counts"].items():
        assert count(page.locator(f".cell.{cell}")) == number
    assert count(page.locator(".cell.labels")) == expected["labels"]
    assert texts(tab) == [row["text"] for row in expected["captions"][:24]]
    expect(page.locator(".figures tr th button").first).to_have_text("counting")
    expect(page.locator(".figures .chip").first).to_contain_text("four")
    assert tab.top(".captions .tile") <= 300
    assert tab.fits()
    tab.button("Show more").click()
    expect(page.locator(".captions li")).to_have_count(48)
    page.locator(".cell.b").click()
    expect(page.locator("h2")).to_contain_text("that VSE∞ finds and PVSE misses")
    page.get_by_role("button", name="setting", exact=True).click()
    expect(page.locator(".captions .key").first).to_contain_text("setting")
    part = answer(bundled, cell="b", kind="setting")
    expect(page.locator("h2")).to_contain_text(f"{part['total']} captions")
    assert texts(tab) == [row["text"] for row in part["captions"][:24]]
    page.get_by_label("Found in the").select_option("10")
    expect(page.locator("h2")).not_to_contain_text(f"{part['total']} captions")
    for _ in range(3):
        page.go_back()
    expect(page.locator("h2")).to_contain_text("that PVSE finds and VSE∞ misses")
    tab.button("Swap A and B").click()
    expect(page.get_by_label("Method A")).to_have_value("vse_infty")


def test_ranks_are_brushed_or_typed(new_tab: NewTab, bundled: Server) -> None:
    tab = opened(new_tab, bundled)
    page, canvas = tab.page, tab.page.locator(".figures canvas")
    box = canvas.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 2, steps=3)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"cell=all.*within=\d+,\d+,\d+,\d+"))
    low_a, high_a, low_b, high_b = map(int, re.findall(r"within=([\d,]+)", page.url)[0].split(","))
    expected = answer(bundled, cell="all", within=f"{low_a},{high_a},{low_b},{high_b}")
    expect(page.locator("h2")).to_contain_text(f"{expected['total']} caption")
    assert 0 < expected["total"] < 500
    for line in page.locator(".captions .key").all_inner_texts():
        a, b = map(int, re.findall(r"at (\d+) by", line))
        assert low_a <= a <= high_a
        assert low_b <= b <= high_b
    expect(page.get_by_label("Lowest rank by PVSE")).to_have_value(str(low_a))
    page.reload()
    expect(page.locator("h2")).to_contain_text(f"{expected['total']} caption")
    page.get_by_label("Lowest rank by VSE∞").fill("1")
    page.keyboard.press("Enter")
    wider = answer(bundled, cell="all", within=f"{low_a},{high_a},1,{high_b}")
    expect(page.locator("h2")).to_contain_text(f"{wider['total']} caption")
    tab.button("Clear").click()
    expect(page.locator("h2")).to_contain_text("5,000 captions")
    assert tab.serious() == []


def test_captions_open_in_compare_images_in_inspect(new_tab: NewTab, bundled: Server) -> None:
    tab = opened(new_tab, bundled, f"{PAIR}&kind=counting")
    page, first = tab.page, answer(bundled, kind="counting")["captions"][0]
    page.get_by_role("button", name=first["text"], exact=True).click()
    columns = page.locator(".column")
    expect(columns).to_have_count(2)
    for place, rank in enumerate((first["rank_a"], first["rank_b"])):
        expect(columns.nth(place).locator(".at")).to_contain_text(f"right at {rank}")
    page.go_back()
    expect(page.locator(".captions li").first).to_contain_text(first["text"])
    expect(page.locator("h2")).to_contain_text("that PVSE finds and VSE∞ misses")
    page.locator(".captions li").first.locator(".found").nth(1).click()
    expect(page.locator("#inspect-title")).to_contain_text(first["text"])
    expect(page.locator("#inspect").get_by_label("Method", exact=True)).to_have_value("vse_infty")
    assert f"image={first['first_b']}" in page.url
    expect(page.locator("#inspect .word").first).to_be_visible()
    own = bundled.get("images", start=first["first_b"], count=1)["hits"][0]["captions"]
    expect(page.locator("#inspect .left > .caption")).to_have_text(own[0])
    page.keyboard.press("/")  # does not leave the screen below the dialog
    page.keyboard.press("Escape")
    expect(page.locator("#inspect")).not_to_be_visible()
    expect(page.locator(".captions li").first).to_be_visible()


def test_files_and_queries(new_tab: NewTab, bundled: Server) -> None:
    tab = opened(new_tab, bundled, f"{PAIR}&cell=labels&k=5")
    page, expected = tab.page, answer(bundled, cell="labels", k=5)
    files = [tab.save(kind).path().read_text("utf-8") for kind in ("CSV", "JSON")]
    table = list(csv.DictReader(io.StringIO(files[0])))
    assert [int(row["suspect"]) for row in table] == [r["suspect"] for r in expected["captions"]]
    assert json.loads(files[1])["captions"] == expected["captions"]
    page.locator("summary", has_text="Save").click()
    content = {"name": "queries.csv", "mimeType": "text/csv", "buffer": b"a dog,3\na zebra,5"}
    page.locator("input[type=file][accept*=csv]").set_input_files(content)  # type: ignore[arg-type]
    expect(page.locator(".bar .chip")).to_contain_text("queries from a file")
    expect(page.locator(".cell b").first).to_have_text(re.compile("^[0-2]$"))
    page.go_back()
    expect(page.locator("h2")).to_contain_text(f"{expected['total']} captions")


def test_the_wait_for_ranks_is_explained(tab: Tab) -> None:
    running = {"state": "running", "progress": "ranked 768 of 5,000 captions"}
    tab.page.route("**/api/v1/mistakes?*", lambda route: route.fulfill(json=running))
    tab.open("?screen=mistakes", "progress")
    expect(tab.page.get_by_role("progressbar")).to_have_attribute("value", "768")
    expect(tab.page.get_by_role("heading", name="Comparing the methods")).to_be_visible()
    expect(tab.page.get_by_text("Ranks, words and kinds")).not_to_be_visible()
    assert tab.serious() == []
    tab.page.unroute_all(behavior="wait")
    expect(tab.page.locator(".captions .tile img").first).to_be_visible(timeout=200_000)
    expect(tab.page.locator("progress")).to_have_count(0)
    assert tab.fits()


def test_a_phone(new_tab: NewTab, bundled: Server) -> None:
    tab = opened(new_tab, bundled, size=PHONE, dark=True)
    assert tab.top(".captions .tile") <= 260
    assert tab.fits()
    tab.page.locator(".figures summary").click()
    expect(tab.page.locator(".figures canvas")).to_be_visible()
    tab.page.evaluate("window.shifts = 0")
    assert tab.fits()
    assert tab.serious() == []
