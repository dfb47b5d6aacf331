"""/explain and /explain_image of a running server: what adds up, images lit by it, nonsense."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.explain.heatmaps import spotlight, where
from app.explain.lighting import SIDE
from app.search.retriever import Retriever
from tests.app.conftest import IMAGES, find
from tests.app.many import ADDED
from tests.app.serving import Serve, Server

IMAGE = 6
TEXT = "a red circle beside a blue bar"


def total(split: dict[str, Any]) -> float:
    return float(split["base"] + np.sum(split["cells"]) + np.sum(split["whole_sentence"]))


@pytest.mark.parametrize("name", ["vsepp", "vse_infty", *ADDED, "pvse+avse"])
@pytest.mark.parametrize("query", [TEXT, "2: red circle - blue bar"])
def test_what_is_answered_adds_up_to_the_score(
    many_server: Server, many_retriever: Retriever, name: str, query: str
) -> None:
    answer = many_server.ask("explain", query, IMAGE, name)
    assert total(answer) == pytest.approx(answer["score"], rel=1e-4, abs=1e-6)
    words = [word for term in answer["terms"] for word in many_retriever.read(term["words"]).words]
    assert answer["words"] == words
    assert sum(term["count"] for term in answer["terms"]) == len(words)
    rows, columns = answer["grid"]
    assert np.shape(answer["cells"]) == (rows * columns, len(words))
    assert np.shape(answer["whole_sentence"]) == (rows * columns,)
    assert any(answer["whole_sentence"]) == ("pvse" in name)
    if query == TEXT:
        (own,) = [h for h in find(many_retriever, TEXT, name, IMAGES) if h.image_id == IMAGE]
        assert answer["score"] == pytest.approx(own.score, abs=2e-3)


def test_cells_are_row_by_row(many_server: Server, many_retriever: Retriever) -> None:
    answer = many_server.ask("explain", TEXT, IMAGE, "vse_infty")
    method = many_retriever.methods["vse_infty"]
    images = many_retriever.parts([IMAGE], "vse_infty")
    expected = method.evidence(images, many_retriever.parts(TEXT, "vse_infty")).cells[0]
    np.testing.assert_allclose(answer["cells"], expected, atol=1e-6)


def test_views_are_split_on_request(many_server: Server) -> None:
    answer = many_server.ask("explain", TEXT, IMAGE, "mv_vse", True)
    looked = many_server.ask("views", IMAGE, "mv_vse", TEXT)
    assert [view["view"] for view in answer["per_view"]] == [0, 1, 2]
    for split, view in zip(answer["per_view"], looked["views"], strict=True):
        assert split["score"] == pytest.approx(view["score"], abs=1e-4)
        assert total(split) == pytest.approx(split["score"], rel=1e-4, abs=1e-6)
    won = answer["per_view"][looked["winner"]]
    for key in ("score", "base", "cells", "whole_sentence"):
        np.testing.assert_allclose(answer[key], won[key], rtol=1e-4, atol=1e-7)
    assert "per_view" not in many_server.ask("explain", TEXT, IMAGE, "mv_vse")


def test_a_picture_can_be_named_by_its_file(many_server: Server, many_retriever: Retriever) -> None:
    file = many_retriever.image(IMAGE).file
    answers = [many_server.ask("explain", TEXT, image, "avse") for image in (IMAGE, file)]
    assert answers[0]["file"] == file
    assert [answer["image_id"] for answer in answers] == [IMAGE, IMAGE]
    assert answers[0]["cells"] == answers[1]["cells"]


def opened(answer: dict[str, Any]) -> np.ndarray:
    """The PNG of an answer, (H, W, 3)."""
    kind, _, data = answer["png"].partition(",")
    assert kind == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.format == "PNG"
    return np.asarray(image, np.float32)


@pytest.mark.parametrize("word", [None, "red", "BLUE"])
def test_a_picture_is_lit_where_its_evidence_is(
    many_server: Server, many_retriever: Retriever, word: str | None
) -> None:
    answer = many_server.ask("explain_image", TEXT, IMAGE, "vse_infty", word)
    split = many_server.ask("explain", TEXT, IMAGE, "vse_infty")
    cells = np.array(split["cells"])
    if word:
        cells = cells[:, [one == word.lower() for one in split["words"]]]
    cells = cells.sum(axis=1).reshape(split["grid"])
    assert answer["score"] == pytest.approx(split["score"])
    assert answer["adds"] == pytest.approx(cells.sum(), abs=1e-6)
    assert answer["top"] == pytest.approx(np.abs(cells).max(), abs=1e-6)
    assert answer["where"] == where(cells)
    image = many_retriever.open(IMAGE)
    box = many_retriever.info.preprocess.visible_box(*image.size)
    expected = spotlight(image, cells, answer["top"], box)
    np.testing.assert_allclose(opened(answer), np.asarray(expected), atol=1)


def test_a_lit_picture_is_bounded(serve: Serve, many_pack: Path, tmp_path: Path) -> None:
    Image.new("RGB", (2000, 900), "green").save(tmp_path / "wide.png")
    server = serve("--pack", many_pack, "--gallery", tmp_path)
    assert opened(server.ask("explain_image", TEXT, 0, "mv_vse")).shape == (288, SIDE, 3)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([TEXT, 0, "mv_vse", "dog"], 'no word "dog" in the query; choose one of a, red'),
        ([TEXT, 0, "mv_vse", 7], "word must be a text or null, not 7"),
        ([TEXT, IMAGES, "mv_vse"], f"there is no picture {IMAGES}"),
        (["", 0, "mv_vse"], "the query is empty"),
    ],
)
def test_nonsense_gets_a_sentence_and_no_picture(
    many_server: Server, values: list[Any], sentence: str
) -> None:
    answer = many_server.ask("explain_image", *values)
    assert answer.keys() == {"error"}
    assert sentence in answer["error"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([TEXT, IMAGES, "mv_vse"], f"there is no picture {IMAGES}"),
        ([TEXT, -1, "mv_vse"], "there is no picture -1"),
        ([TEXT, 1.5, "mv_vse"], "a file or a whole number, not 1.5"),
        ([TEXT, True, "mv_vse"], "a file or a whole number, not True"),
        ([TEXT, None, "mv_vse"], "a file or a whole number, not None"),
        ([TEXT, "../pack.json", "mv_vse"], 'no picture "../pack.json" in the gallery'),
        ([TEXT, 0, "clip"], "choose one of vsepp"),
        ([TEXT, 0, "mv_vse+pvse", True], "look through one at a time"),
        ([TEXT, 0, "mv_vse", "yes"], "per_view must be true or false, not 'yes'"),
        (["", 0, "mv_vse"], "the query is empty"),
        (["x" * 10_001, 0, "mv_vse"], "use at most 10,000"),
        (["dog + ", 0, "mv_vse"], "no words after"),
        ([7, 0, "mv_vse"], "the query must be a text, not int"),
    ],
)
def test_nonsense_gets_a_sentence(many_server: Server, values: list[Any], sentence: str) -> None:
    answer = many_server.ask("explain", *values)
    assert answer.keys() == {"error"}
    assert sentence in answer["error"]
