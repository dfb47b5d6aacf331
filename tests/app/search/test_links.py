"""Links: what is written can be read, and nothing that is written by others can do harm."""

from urllib.parse import parse_qsl

import pytest

from app.search.filters import Filters
from app.search.links import MAX_LINK, LookLink, read, read_look, write, write_look
from app.search.questions import Question
from app.search.retriever import Retriever


@pytest.mark.parametrize(
    ("question", "method", "count", "wanted"),
    [
        (Question("words", words="2: a dog & <b> + ünïcode ?#% - people"), "mv_vse", 12, {}),
        (
            Question("words", words="a bar"),
            "vse_infty+mv_vse",
            60,
            {"setting": ["sky", "dusk"], "time": ["night"]},
        ),
        (Question("image", image_id=7), "vse_infty", 1, {}),
        (Question("image", words="a bar", image_id=7), "vse_infty", 1, {}),
    ],
)
def test_reads_what_it_wrote(
    views_retriever: Retriever, question: Question, method: str, count: int, wanted: dict
) -> None:
    filters = Filters.of(views_retriever.collection, wanted)
    link = read(parse_qsl(write(question, method, count, filters)), views_retriever, 60)
    assert (link.question, link.method, link.count, link.filters) == (
        question, method, count, filters,
    )  # fmt: skip
    assert link.problems == ()


def test_what_no_link_can_hold_is_none() -> None:
    assert write(Question(), "vsepp", 3, Filters()) == ""
    assert write(Question("upload", path="/x/mine.png", words="a dog"), "vsepp", 3, Filters()) == ""
    assert write(Question("words", words="ü" * (MAX_LINK // 6 + 1)), "vsepp", 3, Filters()) == ""
    assert write(Question("words", words="u" * (MAX_LINK // 2)), "vsepp", 3, Filters()) != ""


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
def test_nonsense_is_told_of(views_retriever: Retriever, address: str, sentence: str) -> None:
    link = read(parse_qsl(address), views_retriever, 60)
    [problem] = link.problems
    assert problem.startswith("a part of the link was left out: ")
    assert sentence in problem
    assert (link.question, link.method, link.count, link.filters) == (Question(), "", 0, Filters())


def test_what_makes_sense_survives_what_does_not(views_retriever: Retriever) -> None:
    address = (
        "q=a+bar&k=x&method=mv_vse&only=setting:sky&only=setting:x&only=time:night&view=api&q="
    )
    link = read(parse_qsl(address), views_retriever, 60)
    assert link.question == Question("words", words="a bar")
    assert link.method == "mv_vse"
    assert link.filters.wanted == {"setting": ["sky"], "time": ["night"]}
    assert len(link.problems) == 2


def test_many_values_are_cut(views_retriever: Retriever) -> None:
    link = read([("only", "setting:sky")] * 500, views_retriever, 60)
    assert link.filters.wanted == {"setting": ["sky"]}
    assert "500 values" in link.problems[0]


def test_a_look_is_read_as_it_was_written(views_retriever: Retriever) -> None:
    address = write_look(7, "vse_infty", "a bar & <b>")
    assert read_look(parse_qsl(address), views_retriever) == LookLink(7, "vse_infty", "a bar & <b>")
    assert write_look(None, "vse_infty", "a bar") == ""
    assert read_look([("q", "a bar")], views_retriever) == LookLink()
    empty = read_look([("image", "3"), ("q", ""), ("method", "mv_vse+vse_infty")], views_retriever)
    assert empty == LookLink(3, "mv_vse", "")
    wrong = read_look([("image", "99"), ("q", "a"), ("method", "x")], views_retriever)
    assert (wrong.image_id, wrong.method, wrong.words) == (None, "", None)
    assert '"99" is no picture' in wrong.problems[0]
    assert 'there is no method "x"' in wrong.problems[1]
