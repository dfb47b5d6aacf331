"""A comparison as a page shows it and as files keep it: frames, rows, words, names."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from app.blocks.tabs.compare import files, sheet, view
from app.blocks.tabs.compare.view import Sheet
from app.blocks.tabs.images import Listed
from app.search.comparison import compare
from tests.app.conftest import HOSTILE
from tests.app.markup import stays_text
from tests.app.search.test_comparison import JUDGED, A, B, C


@pytest.fixture
def sheet_of(tmp_path: Path) -> Sheet:
    judged = compare("a query", [A, B, C], 3, JUDGED)
    images = {}
    for image_id in judged.ranks:
        path = tmp_path / f"{image_id}.png"
        Image.new("RGB", (60, 60), (250, 10 * image_id, 0)).save(path)
        images[image_id] = Listed(f"{image_id}.png", (f"number {image_id}",), path)
    return Sheet(judged, images, "numbers, test split")


def test_the_png_frames_what_is_right(sheet_of: Sheet) -> None:
    drawn = Image.open(io.BytesIO(sheet.draw(sheet_of))).convert("RGB")
    green = tuple(int(sheet.RIGHT[i : i + 2], 16) for i in (1, 3, 5))
    for c, column in enumerate(sheet_of.comparison.columns):
        for place in column.places:
            left, top, right, bottom = sheet.tile_box(c, place.rank)
            middle = drawn.getpixel(((left + right) // 2, (top + bottom) // 2))
            assert middle == (250, 10 * place.image_id, 0)
            frame = drawn.getpixel((left - sheet.FRAME // 2, (top + bottom) // 2))
            assert (frame == green) is place.right


def test_the_png_is_drawn_for_2_to_8_columns_whatever_they_say(sheet_of: Sheet) -> None:
    gone = {i: Listed(HOSTILE, (), None) for i in sheet_of.images}
    strange = replace(A, title="日本 VSE∞ " * 9, paper="")
    sizes = []
    for count in (2, 8):
        runs = [replace(strange, key=str(i)) for i in range(count)]
        many = replace(sheet_of, comparison=compare("Ж" * 300, runs, 6), images=gone)
        sizes.append(Image.open(io.BytesIO(sheet.draw(many))).size)
    assert sizes[0][0] < sizes[1][0]


@pytest.mark.parametrize(
    "words",
    ["Собака на пляже", "σκύλος στην παραλία", "כלב בחוף", "VSE∞ – it’s"],  # noqa: RUF001
)
def test_every_letter_has_a_shape_of_its_own(words: str) -> None:
    missing, *shapes = (drawn(letter) for letter in ("\uffff", *set(words)))
    assert missing not in shapes
    assert len(set(shapes)) == len(shapes)


def test_a_letter_that_the_font_lacks_is_a_box() -> None:
    assert drawn("犬") == drawn("\uffff") != drawn(" ")


@pytest.mark.parametrize("words", ["a dog on a beach", "Собака на пляже"])
def test_what_does_not_fit_is_cut(words: str) -> None:
    assert sheet.cut(f" {words}\n", 24, 2000) == words
    shown = sheet.cut(words, 24, 100)
    assert shown.endswith("...")
    assert sheet.font(24).getlength(shown) <= 100
    assert shown[:3] == words[:3]


def drawn(words: str) -> bytes:
    """The words as the sheet shows them."""
    image = Image.new("L", (400, 40))
    ImageDraw.Draw(image).text((2, 2), words, 255, sheet.font(24))
    return image.tobytes()


def test_csv_has_a_row_for_each_place(sheet_of: Sheet) -> None:
    rows = list(csv.DictReader(io.StringIO(files.table(sheet_of).decode())))
    assert len(rows) == 9
    assert rows[3] == {
        "query": "a query",
        "column": "2",
        "method": "b",
        "title": "B",
        "ms": "1.5",
        "rank": "1",
        "image_id": "2",
        "file": "2.png",
        "seconds": "",
        "score": rows[3]["score"],
        "right": "true",
        "left_rank": "2",
    }
    assert float(rows[3]["score"]) == pytest.approx(0.9)
    assert rows[0]["left_rank"] == ""


def test_files_are_named_after_the_query(sheet_of: Sheet, tmp_path: Path) -> None:
    path = files.write(sheet_of, "json", tmp_path / "out")
    assert path.name == "polyview-a-query.json"
    assert json.loads(path.read_text())["columns"][0]["hits"][1]["captions"] == ["number 2"]
    assert files.write(sheet_of, "json", tmp_path / "out") == path
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_page_says_right_and_wrong_in_words_and_shows_text_as_text(sheet_of: Sheet) -> None:
    images = dict.fromkeys(sheet_of.images, Listed(HOSTILE, (HOSTILE,), Path("a.webp")))
    html = view.columns(sheet_of.comparison, images)
    assert html.count("✓ right</span>") == 3
    assert html.count("wrong</span>") == 6
    assert "1 place higher than in A" in html
    assert "rank 4 in A" in html
    assert stays_text(html)
