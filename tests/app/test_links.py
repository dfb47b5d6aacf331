"""Links: what is written can be read, and nothing that is written by others can do harm."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from app.asking import Ask
from app.filters import Wanted
from app.links import MAX_LINK, read, write
from app.retriever import Retriever


@pytest.mark.parametrize(
    ("ask", "method", "count", "wanted"),
    [
        (Ask("words", words="2: a dog & <b> + ünïcode ?#% - people"), "mv_vse", 12, {}),
        (
            Ask("words", words="a bar"),
            "vse_infty+mv_vse",
            60,
            {"setting": ["sky", "dusk"], "time": ["night"]},
        ),
        (Ask("picture", image_id=7), "vse_infty", 1, {}),
        (Ask("picture", words="a bar", image_id=7), "vse_infty", 1, {}),
    ],
)
def test_reads_what_it_wrote(
    views_retriever: Retriever, ask: Ask, method: str, count: int, wanted: Wanted
) -> None:
    address = write(ask, method, count, wanted)
    link = read(parse_qsl(address), views_retriever, 60)
    assert (link.ask, link.method, link.count, link.wanted) == (ask, method, count, wanted)
    assert link.problems == ()


def test_what_no_link_can_hold_is_none() -> None:
    assert write(Ask(), "vsepp", 3, {}) == ""
    assert write(Ask("upload", path="/x/mine.png", words="a dog"), "vsepp", 3, {}) == ""
    assert write(Ask("words", words="ü" * (MAX_LINK // 6 + 1)), "vsepp", 3, {}) == ""
    assert write(Ask("words", words="u" * (MAX_LINK // 2)), "vsepp", 3, {}) != ""


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("k=abc", 'k is "abc", but must be a whole number from 1 to 60'),
        ("k=0", 'k is "0"'),
        ("k=61", 'k is "61"'),
        ("k=-3", 'k is "-3"'),
        ("k=99999999999999999999", "whole number from 1 to 60"),
        ("k=%D9%A3", "whole number from 1 to 60"),
        ("method=nope", 'there is no method "nope" in this pack'),
        ("method=mv_vse%2Bmv_vse", "names a method twice"),
        ("method=" + "x" * 5000, "there is no method"),
        ("like=24", '"24" is no picture; ids go from 0 to 23'),
        ("like=-1", '"-1" is no picture'),
        ("like=..%2F..%2Fetc", "is no picture"),
        ("only=setting:moon", 'no picture has the setting "moon"'),
        ("only=setting", 'no picture has the setting ""'),
        ("only=<script>:1", 'cannot be filtered by "<script>"'),
        ("q=" + "a" * 10_001, "use at most 10,000"),
    ],
)
def test_nonsense_is_left_out_with_a_sentence(
    views_retriever: Retriever, address: str, sentence: str
) -> None:
    link = read(parse_qsl(address), views_retriever, 60)
    [problem] = link.problems
    assert problem.startswith("a part of the link was left out: ")
    assert sentence in problem
    assert (link.ask, link.method, link.count, link.wanted) == (Ask(), "", 0, {})


def test_what_makes_sense_survives_what_does_not(views_retriever: Retriever) -> None:
    address = (
        "q=a+bar&k=x&method=mv_vse&only=setting:sky&only=setting:x&only=time:night&view=api&q="
    )
    link = read(parse_qsl(address), views_retriever, 60)
    assert link.ask == Ask("words", words="a bar")
    assert link.method == "mv_vse"
    assert link.wanted == {"setting": ["sky"], "time": ["night"]}
    assert len(link.problems) == 2


def test_many_values_are_cut(views_retriever: Retriever) -> None:
    link = read([("only", "setting:sky")] * 500, views_retriever, 60)
    assert link.wanted == {"setting": ["sky"]}
    assert "500 values" in link.problems[0]
