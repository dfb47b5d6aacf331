"""Comparisons in numbers: ranks, moves, agreement, what one alone found, and who may take part."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import curated
from app.collection import from_folder
from app.comparison import (
    Comparison,
    Run,
    Truth,
    as_json,
    checked_k,
    compare,
    kendall_tau,
    overlap,
    rank,
)
from app.curated import Example
from app.hits import Scores
from app.lineup import Lineup
from app.query import Term, parse
from app.retriever import Retriever
from app.settings import Settings
from app.shelf import Shelf
from app.tabs.compare import files, panel, sheet
from app.tabs.compare.shown import Sheet, Shown
from tests.app.conftest import HOSTILE, PICTURES, draw
from tests.app.test_shelf import variant


def run(key: str, values: dict[int, float]) -> Run:
    ids = np.array(list(values), np.int64)
    scores = Scores(ids, np.array(list(values.values()), np.float32))
    return Run(key, key.upper(), f"{key} et al.", scores, 1.5, 3)


# Best first: A 1 2 3 4 5 6; B 2 1 4 3 6 5; C 6 5 4 3 2 1.
A = run("a", {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.6, 5: 0.5, 6: 0.4})
B = run("b", {1: 0.8, 2: 0.9, 3: 0.6, 4: 0.7, 5: 0.4, 6: 0.5})
C = run("c", {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5, 6: 0.6})
JUDGED = Truth(frozenset({2, 6}), complete=True)


@pytest.fixture
def judged() -> Comparison:
    return compare("a query", [A, B, C], 3, JUDGED)


def slow_tau(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's definition, pair by pair."""
    agree = differ = untied_x = untied_y = 0
    for i, j in itertools.combinations(range(len(x)), 2):
        product = (x[i] - x[j]) * (y[i] - y[j])
        agree += product > 0
        differ += product < 0
        untied_x += x[i] != x[j]
        untied_y += y[i] != y[j]
    return float((agree - differ) / np.sqrt(untied_x * untied_y))


def test_tau_is_kendalls() -> None:
    random = np.random.default_rng(0)
    for size in (2, 7, 20):
        x, y = random.integers(0, size, (2, size)).astype(float)  # ties on both sides
        x[:2], y[:2] = (0, 1), (1, 0)
        assert kendall_tau(x, y) == pytest.approx(slow_tau(x, y), abs=1e-12)
    # The example of scipy.stats.kendalltau.
    x, y = np.array([12, 2, 1, 12, 2]), np.array([1, 4, 7, 1, 0])
    assert kendall_tau(x, y) == pytest.approx(-0.47140452079103173, abs=1e-12)


def test_tau_of_the_same_the_opposite_and_no_order() -> None:
    x = np.array([3.0, 1.0, 2.0])
    assert kendall_tau(x, 2 * x + 1) == pytest.approx(1)
    assert kendall_tau(x, -x) == pytest.approx(-1)
    assert kendall_tau(x, np.ones(3)) is None
    assert kendall_tau(x[:1], x[:1]) is None


def test_ranks_break_ties_in_order() -> None:
    assert rank(np.array([0.5, 0.9, 0.5, 0.9])).tolist() == [3, 1, 4, 2]


def test_lists_stand_side_by_side(judged: Comparison) -> None:
    lists = [[place.image_id for place in column.places] for column in judged.columns]
    assert lists == [[1, 2, 3], [2, 1, 4], [6, 5, 4]]
    assert [place.rank for place in judged.columns[1].places] == [1, 2, 3]
    assert judged.columns[1].places[0].score == pytest.approx(0.9)
    assert judged.pictures == 6
    assert judged.ranks[4] == (4, 3, 3)
    assert set(judged.ranks) == {1, 2, 3, 4, 5, 6}


def test_moves_are_against_the_column_to_the_left(judged: Comparison) -> None:
    first, second, third = (column.places for column in judged.columns)
    assert [(p.left_rank, p.new, p.move) for p in first] == [(None, False, None)] * 3
    assert [(p.left_rank, p.new, p.move) for p in second] == [
        (2, False, 1),
        (1, False, -1),
        (4, True, None),  # at rank 4 on the left, which lists 3
    ]
    assert [(p.left_rank, p.new, p.move) for p in third] == [
        (5, True, None),
        (6, True, None),
        (3, False, 0),
    ]


def test_truth_is_framed_and_counted(judged: Comparison) -> None:
    first, second, third = judged.columns
    assert [[place.right for place in column.places] for column in (first, second, third)] == [
        [False, True, False],
        [True, False, False],
        [True, False, False],
    ]
    assert [column.true_ranks for column in judged.columns] == [(2, 6), (1, 5), (1, 5)]
    assert [column.best_true_rank for column in judged.columns] == [2, 1, 1]
    assert [column.r_precision for column in judged.columns] == [0.5, 0.5, 0.5]
    assert second.right_in_list == 1


def test_of_an_own_picture_alone_nothing_is_called_wrong() -> None:
    known = compare("a query", [A, B], 3, Truth(frozenset({2}), complete=False))
    assert [place.right for place in known.columns[0].places] == [None, True, None]
    assert known.columns[0].r_precision is None
    assert known.columns[0].best_true_rank == 2


@pytest.mark.parametrize("truth", [None, Truth(frozenset({77}), complete=True)])
def test_without_truth_nothing_is_judged(truth: Truth | None) -> None:
    unknown = compare("a query", [A, B], 3, truth)
    assert unknown.truth is None
    assert [place.right for place in unknown.columns[1].places] == [None, None, None]
    assert unknown.columns[0].best_true_rank is None


def test_overlap_and_tau_between_columns(judged: Comparison) -> None:
    assert judged.overlap[0] == pytest.approx((1, 2 / 3, 0))
    assert judged.overlap[1] == pytest.approx((2 / 3, 1, 1 / 3))
    assert overlap([1, 2], [3, 1]) == 0.5
    # A and B list 1 2 3 4: A orders them 1234, B 2143, so 4 of 6 pairs agree.
    assert judged.tau[0][1] == pytest.approx((4 - 2) / 6)
    # A and C list all six, in opposite order.
    assert judged.tau[0][2] == pytest.approx(-1)
    for i, j in itertools.product(range(3), repeat=2):
        assert judged.tau[i][j] == pytest.approx(judged.tau[j][i])
    assert [judged.tau[i][i] for i in range(3)] == [pytest.approx(1)] * 3


def test_tau_of_what_ties_is_not_defined() -> None:
    tied = run("t", dict.fromkeys(range(1, 7), 0.5))
    comparison = compare("a query", [A, tied], 3)
    assert comparison.tau[0][1] is None
    assert json.dumps(as_json(comparison, {}))


def test_only_found_counts_right_pictures_where_known(judged: Comparison) -> None:
    found = [[place.image_id for place in places] for places in judged.only_found]
    assert found == [[], [], [6]]  # 2 is found by A and by B
    unknown = compare("a query", [A, B, C], 3)
    found = [[place.image_id for place in places] for places in unknown.only_found]
    assert found == [[3], [], [6, 5]]  # 4 is found by B and by C
    assert unknown.only_found[0][0].rank == 3


def test_only_pictures_that_all_ranked_count() -> None:
    fewer = run("d", {6: 0.1, 2: 0.9, 3: 0.5, 9: 1.0})  # in another order, with one of its own
    comparison = compare("a query", [A, fewer], 10)
    assert comparison.pictures == 3
    lists = [[place.image_id for place in column.places] for column in comparison.columns]
    assert lists == [[2, 3, 6], [2, 3, 6]]
    with pytest.raises(ValueError, match="no picture is left"):
        compare("a query", [A, run("e", {9: 1.0})], 3)


def test_the_picture_asked_with_is_left_out() -> None:
    comparison = compare("a query", [A, B], 3, leave_out=2)
    assert [place.image_id for place in comparison.columns[1].places] == [1, 4, 3]
    assert comparison.pictures == 5


def test_json_tells_everything(judged: Comparison) -> None:
    told = json.loads(json.dumps(as_json(judged, {2: {"file": "two.png"}})))
    assert told["truth"] == {"image_ids": [2, 6], "complete": True}
    column = told["columns"][1]
    assert (column["method"], column["ms"], column["runs"]) == ("b", 1.5, 3)
    assert column["hits"][0] == {
        "rank": 1,
        "image_id": 2,
        "score": pytest.approx(0.9),
        "right": True,
        "left_rank": 2,
        "move": 1,
        "new": False,
        "file": "two.png",
    }
    assert told["only_found"] == {"a": [], "b": [], "c": [{"image_id": 6, "rank": 1}]}
    assert told["tau"][0][2] == pytest.approx(-1)


@pytest.mark.parametrize("k", [0, 101, 2.5, True, None, "3"])
def test_k_is_1_to_100(k: object) -> None:
    assert checked_k(3.0) == 3
    with pytest.raises(ValueError, match="from 1 to 100"):
        checked_k(k)


@pytest.fixture
def sheet_of(tmp_path: Path, judged: Comparison) -> Sheet:
    pictures = {}
    for image_id in judged.ranks:
        path = tmp_path / f"{image_id}.png"
        Image.new("RGB", (60, 60), (250, 10 * image_id, 0)).save(path)
        pictures[image_id] = Shown(f"{image_id}.png", (f"number {image_id}",), path)
    return Sheet(judged, pictures, "numbers, test split")


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
    gone = {i: Shown(HOSTILE, (), None) for i in sheet_of.pictures}
    strange = replace(A, title="日本 VSE∞ " * 9, paper="")
    sizes = []
    for count in (2, 8):
        runs = [replace(strange, key=str(i)) for i in range(count)]
        many = replace(sheet_of, comparison=compare("Ж" * 300, runs, 6), pictures=gone)
        sizes.append(Image.open(io.BytesIO(sheet.draw(many))).size)
    assert sizes[0][0] < sizes[1][0]
    assert sheet.spelled("VSE∞ é ✓") == "VSE-infinity e ?"


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
    pictures = dict.fromkeys(sheet_of.pictures, Shown(HOSTILE, (HOSTILE,), None))
    html = panel.columns(sheet_of.comparison, pictures)
    assert html.count("✓ right</span>") == 3
    assert html.count("wrong</span>") == 6
    assert "1 place higher than in A" in html
    assert "rank 4 in A" in html
    assert "<img src=x" not in html
    assert "{{" not in html


@pytest.fixture(scope="module")
def shelf(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """The tiny pack, a variant of it over the same pictures, and one over others."""
    tmp_path = tmp_path_factory.mktemp("shelf")
    shelf = Shelf(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    shelf.first.index.start()
    key = shelf.load(str(variant(tiny_pack, tmp_path / "other", 9, title="Variant")))
    photos = tmp_path / "photos"
    photos.mkdir()
    draw(3)[0].save(photos / "mine.png")
    elsewhere = Retriever(shelf.first.runtime, from_folder(photos), tmp_path / "cache")
    shelf._guests["elsewhere"] = elsewhere
    assert shelf.first.index.wait(60)
    assert shelf.get(key).index.wait(60)
    return shelf


def test_methods_averages_and_other_packs_take_part(shelf: Shelf) -> None:
    lineup = Lineup(shelf, "")
    assert lineup.default() == ["vsepp", "vse_infty"]
    assert list(lineup.others) == ["shapes"]
    assert lineup.elsewhere == ["Shapes <b>"]
    keys = [key for _, key in lineup.choices()]
    assert keys == ["vsepp", "vse_infty", "shapes/vsepp", "shapes/vse_infty", "vsepp+vse_infty"]
    found = lineup.ask(parse("a red circle"), ["vsepp", "vse_infty+vsepp", "shapes/vsepp"], 5)
    assert [column.key for column in found.columns] == ["vsepp", "vsepp+vse_infty", "shapes/vsepp"]
    assert [column.title for column in found.columns][2] == "VSE++ of Variant"
    assert found.pictures == PICTURES
    assert found.overlap[0][2] == 1  # the same weights in both packs
    assert found.tau[0][2] == pytest.approx(1)
    mean = shelf.first.scores(parse("a red circle"), "vsepp+vse_infty").values
    assert found.columns[1].places[0].score == pytest.approx(mean.max(), abs=1e-6)
    assert all(1 <= column.runs <= 3 and column.ms > 0 for column in found.columns)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["vsepp"], "choose 2 to 8 methods to compare, not 1"),
        (["vsepp"] * 9, "not 9"),
        (["vsepp", "vsepp"], '"vsepp" is there twice'),
        (["vsepp+vse_infty", "vse_infty+vsepp"], '"vsepp.vse_infty" is there twice'),
        (["vsepp", "clip"], "choose one of vsepp, vse_infty"),
        (["vsepp", "nowhere/vsepp"], 'no open pack "nowhere".* those that do: shapes'),
        ("vsepp", "must be a list of names, not str"),
        (None, "must be a list of names, not NoneType"),
    ],
)
def test_columns_that_make_no_sense_get_a_sentence(
    shelf: Shelf, keys: object, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Lineup(shelf, "").entrants(keys)


def test_truth_is_known_for_captions_word_for_word(shelf: Shelf) -> None:
    lineup = Lineup(shelf, "")
    caption = lineup.home.collection.pictures[5].captions[0]
    truth = lineup.truth(parse(caption))
    assert truth is not None
    assert 5 in truth.ids
    assert not truth.complete  # nobody judged the other pictures
    assert lineup.truth(parse(f"2: {caption}")) is None
    assert lineup.truth([Term(image=lineup.home.open(5))]) is None
    own = lineup.ask([Term(image=lineup.home.open(5))], lineup.default(), 5, picture=5)
    assert own.pictures == PICTURES - 1
    assert 5 not in own.ranks


def test_first_right_ranks_count_what_is_better() -> None:
    random = np.random.default_rng(1)
    scores = random.integers(0, 9, (12, 6)).astype(np.float32)  # with ties
    relevant = [sorted(random.choice(12, 3, replace=False).tolist()) for _ in range(6)]
    found = curated.first_right_ranks(scores, relevant)
    for q in range(6):
        order = np.argsort(-scores[:, q], kind="stable").tolist()
        assert found[q] == 1 + min(order.index(row) for row in relevant[q])


def test_every_method_gets_its_example_and_every_view_its_share() -> None:
    ranks = {
        "a": np.array([1, 1, 1, 9, 9, 1, 1]),
        "b": np.array([30, 20, 2, 1, 9, 1, 9]),
        "c": np.array([40, 90, 9, 9, 1, 1, 8]),
    }
    views = ["x", "x", "x", "x", "y", "y", "y"]
    relevant: list[list[int]] = [[0], [1], [2], [3], [4], [5], [0]]
    captions = [f"caption {q}" for q in range(7)]
    chosen = curated.choose(captions, views, ranks, relevant, 4)
    # The nearest other decides, so a takes 0 before 1; nobody takes 5, where all are right.
    # In the second round a would take 1, but view x has had its share, and 6 shows picture 0 again.
    assert chosen == [0, 3, 4, 1]
    assert curated.choose(captions, views, ranks, relevant, 2) == [0, 3]


def test_the_examples_of_a_pack_say_what_is_so(tiny_pack: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(tiny_pack, pack)
    assert curated.main(["--pack", str(pack), "--count", "6"]) == 0
    first = (tmp_path / "pack.examples.json").read_bytes()
    assert curated.main(["--pack", str(pack), "--count", "6"]) == 0
    assert (tmp_path / "pack.examples.json").read_bytes() == first
    shelf = Shelf(Settings(str(pack), device="cpu"), tmp_path / "cache")
    shelf.first.index.start()
    assert shelf.first.index.wait(60)
    lineup = Lineup(shelf, "")
    examples = curated.load(shelf.first.runtime.info, shelf.first.collection)
    assert examples
    for example in examples:
        found = lineup.ask(parse(example.caption), lineup.default(), 3)
        reached = {column.key: column.best_true_rank for column in found.columns}
        assert reached == example.ranks
        assert [key for key, best in reached.items() if best == 1] == [example.winner]


def test_examples_that_no_longer_hold_are_left_out(
    retriever: Retriever, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = replace(retriever.runtime.info, folder=tmp_path / "pack")
    caption = retriever.collection.captions[0][0]
    known = Example(caption, None, "vsepp", {"vsepp": 1, "vse_infty": 4}, "Only VSE++ ...")
    path = curated.write(info, [known, replace(known, caption="not in the gallery")])
    assert curated.load(info, retriever.collection) == [known]
    path.write_text(path.read_text().replace(info.checksum, "0" * 64))
    assert curated.load(info, retriever.collection) == [replace(known, why="")]
    path.write_text("{")
    assert curated.load(info, retriever.collection) == []
    path.unlink()
    assert curated.load(info, retriever.collection) == []
    assert curated.main(["--pack", str(tmp_path / "nothing")]) == 1
    assert "there is no pack folder" in capsys.readouterr().err
