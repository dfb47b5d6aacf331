"""Aspects of a query that no method of a pack handles: named in answers, avoided in examples."""

import json
from pathlib import Path

import pytest

from polyview.app.gallery.scan import from_pack
from polyview.app.search.answers import remark
from polyview.app.search.curated import load
from polyview.app.search.questions import examples, unsupported_aspects
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED
from polyview.export.pack.schema import PackInfo, parse_info
from polyview.export.runtime import Runtime


def info(pack: str, **measured: dict[str, float]) -> PackInfo:
    """The pack.json of a bundled pack, with other values for some of its methods."""
    values = json.loads((BUNDLED / pack / "pack.json").read_text("utf-8"))
    for name, changed in measured.items():
        values["methods"][name]["metrics"]["values"] |= changed
    return parse_info(values, BUNDLED / pack)


@pytest.mark.parametrize(
    ("query", "aspects"),
    [
        ("a cow LEFT of a dog", ["sides"]),
        ("a kite, higher up than a fox", ["sides"]),
        ("a rose without a lizard above a tent", ["sides", "negation"]),
        ("a rose but no lizard", ["negation"]),
        ("not just a rose but also a fox", []),
        ("leftovers and notes on a table", []),
        ("", []),
    ],
)
def test_sides_as_measured_and_negation_always(query: str, aspects: list[str]) -> None:
    assert unsupported_aspects(info("scenes"), query) == aspects
    negation = [name for name in aspects if name == "negation"]
    one_method_tells_sides = info("scenes", pvse={"foil_replaced_relation": 81.0})
    assert unsupported_aspects(one_method_tells_sides, query) == negation
    assert unsupported_aspects(info("photos"), query) == negation  # foils were not measured


def test_an_answer_names_the_aspect_and_no_example_has_one(tmp_path: Path) -> None:
    pack = BUNDLED / "scenes"
    retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), tmp_path)
    assert "do not distinguish left from right" in remark(retriever, "a dog", "a cow above a dog")
    assert "“dog - 0.5: cat”" in remark(retriever, "a dog without a cat")
    assert "These methods" not in remark(retriever, "a dog and a cow")
    chosen = [*filter(None, examples(retriever, 5))]
    assert len(chosen) == 5
    chosen += [example.caption for example in load(retriever.info, retriever.collection)]
    assert not [text for text in chosen if unsupported_aspects(retriever.info, text)]
