"""Links: what is written can be read, and nothing that is written by others can do harm."""

from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from app.search.filters import Filters
from app.search.links import (
    MAX_LINK,
    CompareLink,
    LookLink,
    read,
    read_compare,
    read_look,
    write,
    write_compare,
    write_look,
)
from app.search.questions import Question
from app.search.retriever import Retriever


@pytest.mark.parametrize(
    ("question", "method", "wanted"),
    [
        (Question("words", words="2: a dog & <b> + ünïcode ?#% - people"), "mv_vse", {}),
        (
            Question("words", words="a bar"),
            "vse_infty+mv_vse",
            {"setting": ["sky", "dusk"], "time": ["night"]},
        ),
        (Question("image", image_id=7), "vse_infty", {}),
        (Question("words", "a bar", more=(3, 9), less=(4,)), "vse_infty", {}),
        (Question("image", words="a bar", image_id=7), "vse_infty", {}),
    ],
)
def test_reads_what_it_wrote(
    views_retriever: Retriever, question: Question, method: str, wanted: dict
) -> None:
    filters = Filters.of(views_retriever.collection, wanted)
    link = read(parse_qsl(write(question, method, filters, 5)), views_retriever)
    found = (link.question, link.method, link.filters, link.image_id)
    assert found == (question, method, filters, 5)
    assert link.problems == ()


def test_what_no_link_can_hold_is_none() -> None:
    assert write(Question(), "vsepp", Filters()) == ""
    assert write(Question("upload", path="/x/mine.png", words="a dog"), "vsepp", Filters()) == ""
    assert write(Question("words", words="ü" * (MAX_LINK // 6 + 1)), "vsepp", Filters()) == ""
    assert write(Question("words", words="u" * (MAX_LINK // 2)), "vsepp", Filters()) != ""


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("method=nope", 'there is no method "nope" in this pack'),
        ("method=mv_vse%2Bmv_vse", "names a method twice"),
        ("method=" + "x" * 5000, "there is no method"),
        ("like=24", '"24" is no picture; ids go from 0 to 23'),
        ("like=-1", '"-1" is no picture'),
        ("image=24", '"24" is no picture'),
        ("less=24", '"24" is no picture'),
        ("like=..%2F..%2Fetc", "is no picture"),
        ("only=setting:moon", 'no picture has the setting "moon"'),
        ("only=setting", 'no picture has the setting ""'),
        ("only=<script>:1", 'cannot be filtered by "<script>"'),
        ("q=" + "a" * 10_001, "use at most 10,000"),
    ],
)
def test_nonsense_is_told_of(views_retriever: Retriever, address: str, sentence: str) -> None:
    link = read(parse_qsl(address), views_retriever)
    [problem] = link.problems
    assert problem.startswith("a part of the link was left out: ")
    assert sentence in problem
    assert (link.question, link.method, link.filters) == (Question(), "", Filters())


def test_what_makes_sense_survives_what_does_not(views_retriever: Retriever) -> None:
    address = (
        "q=a+bar&like=x&method=mv_vse&only=setting:sky&only=setting:x&only=time:night&view=api&q="
    )
    link = read(parse_qsl(address), views_retriever)
    assert link.question == Question("words", words="a bar")
    assert link.method == "mv_vse"
    assert link.filters.wanted == {"setting": ["sky"], "time": ["night"]}
    assert len(link.problems) == 2


def test_many_values_are_cut(views_retriever: Retriever) -> None:
    link = read([("only", "setting:sky")] * 500, views_retriever)
    assert link.filters.wanted == {"setting": ["sky"]}
    assert "500 values" in link.problems[0]


def test_a_clip_s_moment_opens_the_clip_until_its_frames_are_known(
    views_retriever: Retriever, tmp_path: Path
) -> None:
    unread = Retriever(views_retriever.runtime, views_retriever.collection, tmp_path)
    link = read([("image", str(5 + 3 * 24))], unread)
    assert (link.image_id, link.problems) == (5, ())


def test_a_look_is_read_as_it_was_written(views_retriever: Retriever) -> None:
    address = write_look(7, "vse_infty", "a bar & <b>")
    assert read_look(parse_qsl(address), views_retriever) == LookLink(7, "vse_infty", "a bar & <b>")
    assert write_look(None, "vse_infty", "a bar") == ""
    words_alone = read_look([("q", "a bar"), ("method", "mv_vse")], views_retriever)
    assert words_alone == LookLink(None, "mv_vse", "a bar")
    empty = read_look([("image", "3"), ("q", ""), ("method", "mv_vse+vse_infty")], views_retriever)
    assert empty == LookLink(3, "mv_vse", "")
    wrong = read_look([("image", "99"), ("q", "a"), ("method", "x")], views_retriever)
    assert (wrong.image_id, wrong.method, wrong.words) == (None, "", None)
    assert '"99" is no picture' in wrong.problems[0]
    assert 'there is no method "x"' in wrong.problems[1]


def test_a_comparison_is_read_as_it_was_written(views_retriever: Retriever) -> None:
    columns = ["mv_vse", "mv_vse+vse_infty", "other/mv_vse"]
    for question in (Question("words", "a bar & <b>"), Question("image", image_id=7)):
        address = write_compare(question, columns, 50)
        link = read_compare(parse_qsl(address), views_retriever, 50)
        assert link == CompareLink(question, tuple(columns), 50)
    assert write_compare(Question("upload", path="/x/mine.png"), columns, 50) == ""
    hostile = [("columns", "x" * 5000)] * 500 + [("ranks", "51"), ("like", "99")]
    link = read_compare(hostile, views_retriever, 50)
    assert sum(map(len, link.columns)) < 30_000
    assert (link.question, link.ranks, len(link.problems)) == (Question(), 0, 2)


def test_too_many_examples_are_told_of(views_retriever: Retriever) -> None:
    link = read([("more", str(one)) for one in range(20)], views_retriever)
    assert link.question == Question()
    assert "at most 10" in link.problems[0]
