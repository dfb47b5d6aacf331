"""/compare of a running server: the numbers the tab shows, and sentences for nonsense."""

from typing import Any

import pytest

from tests.app.conftest import IMAGES, draw
from tests.app.serving import Server

BOTH = ["vsepp", "vse_infty"]


def caption(index: int) -> str:
    first, second = draw(index)[1]
    return f"a {first} beside a {second}"


def test_columns_are_what_a_search_finds(server: Server) -> None:
    query = caption(7)
    answer = server.ask("compare", query, [*BOTH, "vsepp+vse_infty"], IMAGES)
    assert answer.keys() == {
        "query",
        "k",
        "pictures",
        "truth",
        "columns",
        "overlap",
        "tau",
        "only_found",
        "remark",
    }
    assert (answer["query"], answer["k"], answer["pictures"]) == (query, IMAGES, IMAGES)
    assert 7 in answer["truth"]["image_ids"]
    for name, column in zip(BOTH, answer["columns"], strict=False):
        found = server.ask("search_text", query, name, IMAGES)["hits"]
        assert column["method"] == name
        assert [h["image_id"] for h in column["hits"]] == [h["image_id"] for h in found]
        assert column["hits"][0]["score"] == pytest.approx(found[0]["score"], abs=1e-6)
        assert column["hits"][0]["captions"] == found[0]["captions"]
        right = [h["rank"] for h in found if h["image_id"] in answer["truth"]["image_ids"]]
        assert column["true_ranks"] == right
        assert column["best_true_rank"] == right[0]
    left, right_list = ([h["image_id"] for h in c["hits"]] for c in answer["columns"][:2])
    assert answer["columns"][1]["hits"][0]["left_rank"] == left.index(right_list[0]) + 1
    assert answer["overlap"] == [[1.0] * 3] * 3  # everything is listed
    assert answer["columns"][2]["title"] == "VSE++ + VSE∞"


def test_a_short_list_overlaps_as_its_pictures_do(server: Server) -> None:
    answer = server.ask("compare", "2: a red circle - a bar", BOTH, 4)
    lists = [{hit["image_id"] for hit in column["hits"]} for column in answer["columns"]]
    assert answer["truth"] is None
    assert answer["overlap"][0][1] == len(lists[0] & lists[1]) / 4
    assert -1 <= answer["tau"][0][1] <= 1
    alone = {name: {p["image_id"] for p in found} for name, found in answer["only_found"].items()}
    assert alone == {"vsepp": lists[0] - lists[1], "vse_infty": lists[1] - lists[0]}
    assert len(server.ask("compare", "a bar", BOTH)["columns"][0]["hits"]) == 10


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["", BOTH, 5], "the query is empty"),
        ([5, BOTH, 5], "must be a text, not int"),
        (["a", ["vsepp", "clip"], 5], "choose one of vsepp, vse_infty"),
        (["a", ["vsepp", {"x": 1}], 5], "there is no method"),
        (["a", "vsepp", 5], "must be a list of names"),
        (["a", BOTH, 101], "not 101"),
    ],
)
def test_nonsense_gets_a_sentence(server: Server, values: list[Any], sentence: str) -> None:
    answer = server.ask("compare", *values)
    assert answer.keys() == {"error"}
    assert sentence in answer["error"]
