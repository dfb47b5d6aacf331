"""What the Benchmark tab and /benchmark show: the pack's numbers, speed, ablations, the plot."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.blocks.tabs.benchmark import view
from app.blocks.tabs.benchmark.candidates import apart
from app.blocks.tabs.benchmark.plot import Point, place_labels, plot
from app.blocks.tabs.benchmark.svg import NARROW, WIDE, Box, Frame
from app.blocks.tabs.html import text
from app.gallery.collection import from_pack
from app.packs import ablations, candidates, measured, speed
from app.packs.measured import COLUMNS, MEGABYTES, QUERY_MS, Column, Row, Table
from app.search.retriever import Retriever
from app.settings import BUNDLED
from export.pack.reading import load_info
from export.pack.validation import check
from export.runtime import Runtime
from tests.app.conftest import HOSTILE, IMAGES
from tests.app.markup import stays_text
from tests.app.serving import Server

PACK = BUNDLED / "scenes"
ABLATION: dict[str, Any] = {
    "name": "codes",
    "title": "How many codes",
    "paper": "Table 5.",
    "found": "More are better.",
    "here": "Fewer are <better>.",
    "command": "python -m training.ablate codes",
    "hardware": "2 cores",
    "seeds": [0, 1],
    "columns": ["codes", "rsum", "cosine"],
    "rows": [["1", 450.1, None], ["16", 1496.25, 0.4]],
    "note": "",
}


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """The bundled pack, its gallery not filled."""
    return Retriever(Runtime.load(PACK, "cpu"), from_pack(PACK), tmp_path_factory.mktemp("cache"))


@pytest.fixture
def pack(tiny_pack: Path, tmp_path: Path) -> Path:
    """A copy of the tiny pack that may be changed."""
    return shutil.copytree(tiny_pack, tmp_path / "pack")


def cells(html: str) -> dict[str, list[str]]:
    """The table's rows by title: what each cell shows."""
    found = {}
    for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", html):
        title, *rest = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        found[title] = [re.sub(r"<span.*?</span>", "", cell) for cell in rest]
    return found


def test_the_table_holds_what_the_pack_states(bundled: Retriever) -> None:
    stated = json.loads((PACK / "pack.json").read_text())
    table = measured.table(bundled, None)
    shown = cells(view.results(table))
    keys = [column.key for column in table.columns]
    assert len(shown) == len(stated["methods"])
    for name, entry in stated["methods"].items():
        row = dict(zip(keys, shown[bundled.methods[name].title], strict=True))
        for key in ("t2i_r1", "i2t_r10", "rsum", "t2i_rprecision", "t2i_map_at_r", "t2i_medr"):
            assert row[key] == f"{entry['metrics']['values'][key]:.1f}"
        files = [stated["files"][entry[part]]["bytes"] for part in ("head", "text_encoder")]
        assert row[MEGABYTES] == f"{sum(files) / 1e6:.2f}"
    assert QUERY_MS not in keys  # no speed was given


def test_the_command_seed_and_hardware_stand_below(bundled: Retriever) -> None:
    table = measured.table(bundled, None)
    html = view.results(table)
    source = table.rows[0].source
    assert source is not None
    assert source["command"].replace(table.rows[0].name, "METHOD") in html
    assert text(source["hardware"]) in html
    assert f"seed {source['seed']}" in html


@pytest.mark.parametrize(
    ("best", "values", "wanted"),
    [
        ("highest", (64.51, 64.54, 10.0), {"a", "b"}),  # shown as the same number
        ("lowest", (2.0, 1.0, 3.0), {"b"}),
        ("lowest", (1.0, 1.0, 1.0), set()),
        ("", (1.0, 2.0, 3.0), set()),
    ],
)
def test_the_best_of_a_column_is_marked(best: Any, values: tuple[float, ...], wanted: set) -> None:
    column = Column("x", "X", "group", 1, best, "")
    rows = [Row(n, n, "", {"x": v}, "", None) for n, v in zip("abc", values, strict=True)]
    table = Table((column,), (*rows, Row("unmeasured", "unmeasured", "", {}, "", None)))
    assert table.best(column) == wanted
    html = view.results(table)
    assert html.count("pv-best") == html.count(", best</span>") == len(wanted)
    assert 'title="not measured"' in html


def test_titles_from_a_pack_stay_text() -> None:
    source = {"split": HOSTILE, "command": HOSTILE, "hardware": HOSTILE, "seed": 0}
    row = Row("a", HOSTILE, HOSTILE, {c.key: 1.0 for c in COLUMNS}, HOSTILE, source)
    table = Table(COLUMNS, (row,))
    found = speed.Speed({"a": 1.0}, 5, 6, HOSTILE, HOSTILE)
    pieces = [view.results(table), view.accuracy_and_speed(table, found, captions=True)]
    hostile: dict[str, Any] = {
        key: HOSTILE if isinstance(value, str) else value for key, value in ABLATION.items()
    }
    hostile |= {"columns": [HOSTILE] * 2, "rows": [[HOSTILE] * 2], "note": HOSTILE}
    shown = check(ablations.Ablation, hostile, "an ablation")
    pieces.append(view.ablation_tables([shown], [HOSTILE]))
    assert all(map(stays_text, pieces))


def test_speed_is_measured_for_every_method(retriever: Retriever) -> None:
    found = speed.measure(retriever, queries=5)
    assert found.median.keys() == retriever.methods.keys()
    assert all(0 < ms < 60_000 for ms in found.median.values())
    assert (found.queries, found.pictures, found.command) == (5, IMAGES, "")
    assert "CPU cores" in found.hardware
    table = measured.table(retriever, found)
    assert [row.values[QUERY_MS] for row in table.rows] == list(found.median.values())


def test_a_recorded_speed_is_read_and_a_damaged_one_is_not(pack: Path) -> None:
    info = load_info(pack)
    assert speed.recorded(info) is None
    said: dict[str, Any] = {"median": {"vsepp": 1.5, "gone": 9}, "queries": 3, "pictures": 4}
    speed.record(info).write_text(json.dumps({**said, "hardware": "here", "command": "it"}))
    assert speed.recorded(info) == speed.Speed({"vsepp": 1.5}, 3, 4, "here", "it")
    speed.record(info).write_text(json.dumps(said))
    assert speed.recorded(info) is None


def test_the_bundled_packs_speed_is_recorded(bundled: Retriever) -> None:
    found = speed.recorded(bundled.info)
    assert found is not None, "run python -m benchmarks.gallery latency --record"
    assert found.median.keys() == bundled.runtime.methods.keys()
    html = view.accuracy_and_speed(measured.table(bundled, found), found, captions=True)
    assert html.count('class="pv-point"') == 2 * len(found.median)  # drawn wide and narrow
    assert text(found.hardware) in html


GROWTH: dict[str, Any] = {
    "images": [1000, 10_000],
    "median": {"scan": [40.0, 400.0], "vsepp": [0.05, 0.5], "unheard of": [1, 2]},
    "queries": 5,
    "hardware": "2 cores",
    "command": "measure <it>",
}


def test_a_query_s_time_against_candidates_is_drawn(pack: Path) -> None:
    info = load_info(pack)
    assert view.against_candidates(candidates.recorded(info)) == ""
    candidates.record(pack).write_text(json.dumps(GROWTH))
    html = view.against_candidates(candidates.recorded(info))
    assert html.count('class="pv-point"') == 2 * 2  # wide and narrow; what is no method is left out
    assert "SCAN: 40 ms for 1,000, 400 ms for 10,000; VSE++: 0.05 ms" in html
    assert "measure &lt;it&gt;" in html
    drawn = ET.fromstring(re.findall(r"<svg.*?</svg>", html, re.DOTALL)[0])
    lines = [
        [float(n) for n in re.findall(r"-?\d+\.?\d*", path.get("d", ""))]
        for group in drawn.iter(f"{{{SVG}}}g")
        if group.get("class") == "pv-point"
        for path in list(group.iter(f"{{{SVG}}}path"))[:1]
    ]
    (x, slow, end, slow_end), (_, fast, _, fast_end) = lines
    assert x < end
    assert slow - slow_end == pytest.approx(fast - fast_end, abs=0.1)  # ten times each, logarithmic
    assert fast - slow == pytest.approx((slow - slow_end) * np.log10(800), abs=0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"images": [1000]},
        {"images": [10_000, 1000]},
        {"median": {}},
        {"median": {"scan": [1.0]}},
        {"median": {"scan": [1.0, 0.0]}},
        {"hardware": 3},
    ],
)
def test_what_is_no_record_of_candidates_is_not_shown(pack: Path, change: dict[str, Any]) -> None:
    candidates.record(pack).write_text(json.dumps({**GROWTH, **change}))
    assert candidates.recorded(load_info(pack)) is None


def test_the_time_against_candidates_is_recorded_for_every_method(bundled: Retriever) -> None:
    found = candidates.recorded(bundled.info)
    assert found is not None, "run python -m benchmarks.gallery candidates --record"
    assert found.median.keys() >= bundled.runtime.methods.keys() | {"scan"}
    assert text(found.hardware) in view.against_candidates(found)


def test_names_stand_apart_in_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        heights = sorted(random.uniform(0, 300, 9).tolist(), reverse=True)
        placed = apart(heights, 16, 0, 300)
        assert all(a - b >= 16 - 1e-6 for a, b in pairwise(placed))
        assert placed[-1] >= -1e-6
        assert placed[0] <= 300 + 1e-6
    alone = [250.0, 100.0, 20.0]
    assert apart(alone, 16, 0, 300) == alone


def test_without_a_speed_there_is_an_invitation(retriever: Retriever) -> None:
    html = view.accuracy_and_speed(measured.table(retriever, None), None, captions=True)
    assert "Measure it here" in html
    assert "<svg" not in html
    without = view.accuracy_and_speed(measured.table(retriever, None), None, captions=False)
    assert "Measure it here" not in without
    assert "A gallery with captions would show" in without


def test_ablations_are_shown_with_their_command(pack: Path) -> None:
    info = load_info(pack)
    assert ablations.load(info) == ([], [])
    assert view.ablation_tables([], []) == ""
    write_ablation(pack, "codes", {})
    tables, problems = ablations.load(info)
    assert problems == []
    assert tables[0].rows == (("1", 450.1, None), ("16", 1496.25, 0.4))
    html = view.ablation_tables(tables, problems)
    expected = ["450.10", "1,496.25", "<td>–</td>", "Table 5.", "seed 0, 1", "Fewer"]  # noqa: RUF001
    for said in [*expected, ABLATION["command"]]:
        assert said in html


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": [["1", 450.1]]}, "row 1 must hold 3 cells"),
        ({"rows": []}, "rows must have at least 1 item, not []"),
        ({"rows": [["1", [2], 3]]}, "rows[0][1]"),
        ({"columns": ["one"]}, "columns must have at least 2 items, not ['one']"),
        ({"columns": ["one", ""]}, "columns[1] must be a text that is not empty"),
        ({"seeds": [0.5]}, "seeds[0] must be a whole number, not 0.5"),
        ({"title": 5}, "title must be a text"),
        (None, "is not readable JSON"),
    ],
)
def test_a_damaged_ablation_is_left_out(
    pack: Path, change: dict[str, Any] | None, why: str
) -> None:
    write_ablation(pack, "good", {})
    write_ablation(pack, "bad", change)
    tables, problems = ablations.load(load_info(pack))
    assert [table.name for table in tables] == ["codes"]
    assert len(problems) == 1
    assert "bad.json" in problems[0]
    assert why in problems[0]
    assert str(pack.parent) not in problems[0]


def write_ablation(pack: Path, name: str, change: dict[str, Any] | None) -> None:
    """Writes an ablation of a pack, changed, or no JSON at all."""
    folder = ablations.folder_of(load_info(pack))
    folder.mkdir(parents=True, exist_ok=True)
    content = "{" if change is None else json.dumps({**ABLATION, **change})
    (folder / f"{name}.json").write_text(content)


SVG = "http://www.w3.org/2000/svg"
CROWD = [Point(f"Method {i}", 1 + 0.05 * (i % 3), 500 + i, 0.5 + i / 10) for i in range(7)]


@pytest.mark.parametrize("frame", [WIDE, NARROW])
def test_labels_keep_apart_even_in_a_crowd(frame: Frame) -> None:
    places = [(frame.width / 2 + 3 * (i % 3), 150 + 9.0 * i) for i in range(len(CROWD))]
    radii = [frame.largest] * len(CROWD)
    labels = place_labels([point.title for point in CROWD], places, radii, frame)
    for one, two in combinations(labels, 2):
        assert not one.box.meets(two.box)
    for label in labels:
        assert label.box.within(frame.area)
        for x, y in places:
            r = frame.largest
            assert not label.box.meets(Box(x - r, y - r, x + r, y + r))


def test_the_plot_sets_values_to_scale_and_says_them_in_words() -> None:
    points = [Point("slow", 4.0, 500.0, 2.0), Point("fast", 1.0, 400.0, 0.5)]
    svg = plot([*points, replace(points[1], title=HOSTILE, ms=2.0)], "rsum", WIDE, "x")
    drawn = ET.fromstring(svg)
    (slow_x, slow_y, slow_r), (fast_x, fast_y, fast_r), (middle_x, _, _) = circles(drawn)
    assert slow_y < fast_y  # up is better
    assert middle_x - fast_x == pytest.approx(slow_x - middle_x, abs=0.2)  # logarithmic
    assert slow_r**2 / fast_r**2 == pytest.approx(2.0 / 0.5, rel=0.01)  # area
    tips = [title.text for title in drawn.iter(f"{{{SVG}}}title")]
    assert tips[0] == "slow: 4.00 ms, 500.0, 2.00 MB"
    texts = [label.text for label in drawn.iter(f"{{{SVG}}}text")]
    assert {"slow", "fast", HOSTILE, "rsum", "ms per text query, logarithmic"} <= set(texts)
    assert "<img" not in svg


def test_plots_on_one_page_do_not_mix() -> None:
    points = [Point("one", 1.0, 400.0, 0.5), Point("$x_2$", 2.0, 450.0, 0.5)]
    wide, narrow = (plot(points, "rsum", f, c) for f, c in ((WIDE, "a"), (NARROW, "b")))
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (wide, narrow)]
    assert not ids[0] & ids[1]
    for svg, own in zip((wide, narrow), ids, strict=True):
        assert set(re.findall(r"#(\w+)[\")]", svg)) == own  # every reference is to its own
        assert "<style" not in svg  # it would hold for the whole page
        assert "var(--primary-500)" in svg
        assert not re.search(r"#[0-9a-f]{6}\b", svg), "a colour that knows no dark page"


def circles(drawn: ET.Element) -> list[tuple[float, float, float]]:
    """Centre and radius of each point of a plot, in pixels."""
    shapes = {path.get("id"): path.get("d", "") for path in drawn.iter(f"{{{SVG}}}path")}
    found = []
    for group in drawn.iter(f"{{{SVG}}}g"):
        if group.get("class") == "pv-point":
            use = next(group.iter(f"{{{SVG}}}use"))
            shape = shapes[use.get("{http://www.w3.org/1999/xlink}href", "")[1:]]
            radius = max(abs(float(n)) for n in re.findall(r"-?\d+\.?\d*", shape))
            found.append((float(use.get("x", "")), float(use.get("y", "")), radius))
    return found


def test_the_endpoint_says_what_the_table_shows(server: Server, retriever: Retriever) -> None:
    answer = server.ask("benchmark")
    assert answer == json.loads(json.dumps(measured.as_json(retriever)))
    assert answer["methods"]["vsepp"]["measured"] is None
    assert answer["methods"]["vsepp"]["values"]["parameters"] > 0
    assert {column["key"] for column in answer["columns"]} >= {MEGABYTES, "parameters"}
