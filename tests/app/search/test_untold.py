"""What no method of a pack tells, by its own measurements: said of an answer, and no example."""

import json
from pathlib import Path

import pytest

from app.gallery.collection import from_pack
from app.search.answers import remark
from app.search.curated import load
from app.search.questions import examples
from app.search.retriever import Retriever
from app.settings import BUNDLED
from export.pack.schema import PackInfo, parse_info
from export.pack.untold import untold
from export.runtime import Runtime

SAID = "no method of this pack tells"


def info(pack: str, **measured: dict[str, float]) -> PackInfo:
    """What the pack.json of a bundled pack says, with other values for some of its methods."""
    values = json.loads((BUNDLED / pack / "pack.json").read_text("utf-8"))
    for name, changed in measured.items():
        values["methods"][name]["metrics"]["values"] |= changed
    return parse_info(values, BUNDLED / pack)


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ("a cow LEFT of a dog", ["sides"]),
        ("a kite, higher up than a fox", ["sides"]),
        ("leftovers on a table", []),
        ("two dogs under a clear sky", []),
        ("", []),
    ],
)
def test_sides_that_no_method_tells_are_beyond_a_pack(text: str, beyond: list[str]) -> None:
    assert untold(info("scenes"), text) == beyond
    assert not untold(info("scenes", pvse={"foil_replaced_relation": 81.0}), text)  # one tells them


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ("a cow to the right of a dog", ["sides"]),
        ("a rose but no lizard", ["absence"]),
        ("a rose without a lizard above a tent", ["sides", "absence"]),
        ("nothing but notes", []),
    ],
)
def test_so_it_is_with_twins_and_with_what_is_not_there(text: str, beyond: list[str]) -> None:
    assert untold(info("scenes_twins"), text) == beyond
    reads = info("scenes_twins", mvam={"absence_above_alike": 71.0})
    assert untold(reads, text) == [regard for regard in beyond if regard != "absence"]
    tells = info("scenes_twins", mvam={"height_above_alike": 71.0})
    assert untold(tells, text) == [regard for regard in beyond if regard != "sides"]


def test_nothing_is_said_where_nobody_measured() -> None:
    assert not untold(info("photos"), "a cow left of a dog")
    assert not untold(info("scenes"), "a cow without a dog")


def test_an_answer_says_so_and_no_example_asks_for_it(tmp_path: Path) -> None:
    pack = BUNDLED / "scenes"
    retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), tmp_path)
    assert SAID in remark(retriever, "a dog", "a cow above a dog")
    assert SAID not in remark(retriever, "a dog and a cow")
    chosen = [*filter(None, examples(retriever, 5))]
    assert len(chosen) == 5
    chosen += [example.caption for example in load(retriever.info, retriever.collection)]
    assert not [text for text in chosen if untold(retriever.info, text)]


def test_of_what_is_not_there_an_answer_says_how_to_ask_for_it(tmp_path: Path) -> None:
    pack = BUNDLED / "scenes_twins"
    retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), tmp_path)
    assert "take it away: “dog - 0.5: cat”" in remark(retriever, "a dog without a cat")
    assert "take it away" not in remark(retriever, "a dog", "a cat")
