"""/views and /lens of a running server: the numbers of the methods, sentences for nonsense."""

from typing import Any

import numpy as np
import pytest

from app.explain.lens import rank
from app.explain.look import look, maps_of
from app.search.retriever import Retriever
from tests.app.conftest import IMAGES, find
from tests.app.many import ADDED
from tests.app.serving import Server

IMAGE = 6


def caption(retriever: Retriever) -> str:
    return retriever.image(IMAGE).captions[0]


@pytest.mark.parametrize("name", ["vse_infty", *ADDED])
def test_views_are_the_methods(many_server: Server, many_retriever: Retriever, name: str) -> None:
    text = caption(many_retriever)
    answer = many_server.ask("views", IMAGE, name, text)
    method = many_retriever.methods[name]
    maps = maps_of(many_retriever, IMAGE, name)
    assert answer["grid"] == list(maps.shape[1:])
    assert len(answer["views"]) == len(maps)
    for view, expected in zip(answer["views"], maps, strict=True):
        np.testing.assert_allclose(view["attention"], expected, atol=1e-4)
    scores = [view["score"] for view in answer["views"]]
    assert answer["winner"] == int(np.argmax(scores))
    hits = find(many_retriever, text, name, IMAGES)
    (own,) = [hit for hit in hits if hit.image_id == IMAGE]
    assert answer["score"] == pytest.approx(own.score, abs=2e-3)
    assert own.view == answer["winner"]
    total = sum(scores) if method.views_add_up else max(scores)
    if name != "avse":  # which chooses for each block
        assert answer["score"] == pytest.approx(total, abs=1e-4)
    assert answer["words"] == many_retriever.runtime.tokenize(text).words
    assert len(answer["word_attention"]) == len(answer["text_similarity"])
    assert {len(row) for row in answer["word_attention"]} == {len(answer["words"])}
    assert np.diagonal(answer["similarity"]) == pytest.approx([1.0] * len(maps), abs=1e-4)
    assert answer["mentioned"] == [0, 1]
    assert answer["view_scores_are"] == method.view_scores_are


def test_panels_come_as_named_numbers(many_server: Server, many_retriever: Retriever) -> None:
    text = caption(many_retriever)
    answer = many_server.ask("views", IMAGE, "avse", text)
    panels = {panel["title"]: panel for panel in answer["inside"]}
    plan = panels["Sinkhorn plan"]
    assert plan["rows"][-1] == plan["columns"][-1] == "dustbin"
    total = sum(plan["values"][row][column] for row, column in plan["marks"])
    assert total == pytest.approx(answer["score"], abs=1e-3)
    expected = look(many_retriever, IMAGE, "avse", text)
    assert list(panels) == [panel.title for panel in expected.panels]
    for panel in expected.panels:
        np.testing.assert_allclose(panels[panel.title]["values"], panel.values, atol=1e-4)


def test_without_a_text_there_are_no_scores(many_server: Server) -> None:
    answer = many_server.ask("views", IMAGE, "pvse", "  ")
    assert "winner" not in answer
    assert answer["views"][0].keys() == {"view", "attention"}
    assert answer["inside"] == []


def test_the_lens_ranks_as_the_app_does(many_server: Server, many_retriever: Retriever) -> None:
    text, weights = "a red circle", [0.0, 1.0, 0.25]
    answer = many_server.ask("lens", text, "mv_vse", weights, 4)
    found = rank(many_retriever, text, "mv_vse", weights, 4)
    assert answer["weights"] == weights
    assert (answer["searched"], answer["stayed"]) == (IMAGES, found.stayed)
    for hit, expected in zip(answer["hits"], found.hits, strict=True):
        assert (hit["image_id"], hit["rank"]) == (expected.hit.image_id, expected.hit.rank)
        assert (hit["before"], hit["view"]) == (expected.before, expected.hit.view)
        assert hit["score"] == pytest.approx(expected.hit.score, abs=1e-5)
        assert hit["captions"]


@pytest.mark.parametrize(
    ("endpoint", "values", "sentence"),
    [
        ("views", [IMAGES, "mv_vse", ""], f"there is no picture {IMAGES}"),
        ("views", [1.5, "mv_vse", ""], "image_id must be a whole number, not 1.5"),
        ("views", [0, "clip", ""], "choose one of vsepp"),
        ("views", [0, "mv_vse+pvse", ""], "look through one at a time"),
        ("views", [0, "mv_vse", ["a"]], "the text must be a text, not list"),
        ("views", [0, "mv_vse", "x" * 10_001], "use at most 10,000"),
        ("lens", ["a", "mv_vse", [1, 1], 5], "weights must be 3 numbers from 0 to 1"),
        ("lens", ["a", {}, [1], 5], "choose one of vsepp"),
    ],
)
def test_nonsense(many_server: Server, endpoint: str, values: list[Any], sentence: str) -> None:
    answer = many_server.ask(endpoint, *values)
    assert answer.keys() == {"error"}
    assert sentence in answer["error"]


def test_both_endpoints_are_documented(many_server: Server) -> None:
    named = many_server._client.view_api(return_format="dict")["named_endpoints"]
    for endpoint, parameter in (("/views", "image_id"), ("/lens", "weights")):
        assert named[endpoint]["description"]
        assert parameter in {p["parameter_name"] for p in named[endpoint]["parameters"]}
