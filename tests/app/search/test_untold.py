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
from export.pack.untold import asks_untold
from export.runtime import Runtime

SAID = "no method of this pack tells"


def scenes(**measured: float) -> PackInfo:
    """What the bundled scenes' pack.json says, with other values for its foils."""
    values = json.loads((BUNDLED / "scenes" / "pack.json").read_text("utf-8"))
    for name, value in measured.items():
        values["methods"][name]["metrics"]["values"]["foil_replaced_relation"] = value
    return parse_info(values, BUNDLED / "scenes")


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ("a cow LEFT of a dog", True),
        ("a kite, higher up than a fox", True),
        ("leftovers on a table", False),
        ("two dogs under a clear sky", False),
        ("", False),
    ],
)
def test_sides_that_no_method_tells_are_beyond_a_pack(text: str, beyond: bool) -> None:
    assert asks_untold(scenes(), text) == beyond
    assert not asks_untold(scenes(pvse=81.0), text)  # one method tells them


def test_nothing_is_said_where_nobody_measured() -> None:
    info = Runtime.load(BUNDLED / "photos", "cpu").info
    assert not asks_untold(info, "a cow left of a dog")


def test_an_answer_says_so_and_no_example_asks_for_it(tmp_path: Path) -> None:
    pack = BUNDLED / "scenes"
    retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), tmp_path)
    assert SAID in remark(retriever, "a dog", "a cow above a dog")
    assert SAID not in remark(retriever, "a dog and a cow")
    chosen = [*filter(None, examples(retriever, 5))]
    assert len(chosen) == 5
    chosen += [example.caption for example in load(retriever.info, retriever.collection)]
    assert not [text for text in chosen if asks_untold(retriever.info, text)]
