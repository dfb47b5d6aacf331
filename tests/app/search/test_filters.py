"""Filters: what is offered, what is left, and that ranking happens within it exactly."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyview.app.gallery.scan import from_folder
from polyview.app.search.filters import Filters, offered
from polyview.app.search.query import Term, parse
from polyview.app.search.retriever import Retriever
from tests.app.conftest import IMAGES, SETTINGS


def test_offers_facts_with_counts(views_retriever: Retriever) -> None:
    assert offered(views_retriever.collection) == {
        "setting": {"dusk": 8, "sand": 8, "sky": 8},
        "time": {"night": 6},
    }


def test_folders_are_facts(tmp_path: Path) -> None:
    for name in ("a.png", "b/c.png", "b/d.png", "b/e/f.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    collection = from_folder(tmp_path)
    assert offered(collection) == {"folder": {"b": 2, "b/e": 1}}
    assert Filters.of(collection, {"folder": ["b"]}).ids == {1, 2}


def test_facts_are_joined_by_and_values_by_or(views_retriever: Retriever) -> None:
    collection = views_retriever.collection
    either = Filters.of(collection, {"setting": ["sky", "dusk"]}).ids
    both = Filters.of(collection, {"setting": ["sky", "dusk"], "time": ["night"]}).ids
    assert either == {i for i in range(IMAGES) if SETTINGS[i % 3] != "sand"}
    assert both == {i for i in range(IMAGES) if SETTINGS[i % 3] != "sand" and i % 4 == 0}
    assert Filters.of(collection, {}).ids is None


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (["sky"], "must be an object"),
        ({"colour": ["red"]}, 'cannot be filtered by "colour"; choose one of setting, time'),
        ({"setting": ["moon"]}, 'no picture has the setting "moon"; choose from dusk, sand, sky'),
        ({"setting": [["sky"]]}, "no picture has the setting"),
        ({"setting": 5}, "must be a list"),
        ({"setting": {"sky": 1}}, "must be a list"),
    ],
)
def test_nonsense_gets_a_sentence(views_retriever: Retriever, wanted: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Filters.of(views_retriever.collection, wanted)


def test_what_wants_nothing_is_no_filter(views_retriever: Retriever) -> None:
    wanted = {"setting": [], "time": "night"}
    assert Filters.of(views_retriever.collection, wanted).wanted == {"time": ["night"]}
    assert Filters.of(views_retriever.collection, None) == Filters()


def test_nothing_known_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(ValueError, match="nothing is known about these pictures"):
        Filters.of(from_folder(tmp_path), {"setting": ["sky"]})


@pytest.mark.parametrize("spec", ["vse_infty", "mv_vse", "vse_infty+mv_vse"])
@pytest.mark.parametrize("text", ["a red circle", "2: a red circle - a bar"])
def test_ranks_within_the_filter_exactly(views_retriever: Retriever, spec: str, text: str) -> None:
    only = Filters.of(views_retriever.collection, {"setting": ["sand"]}).ids
    assert only is not None
    everything = views_retriever.search(parse(text), spec, IMAGES).hits
    within = views_retriever.search(parse(text), spec, 5, only).hits
    expected = [hit for hit in everything if hit.image_id in only][:5]
    assert [hit.image_id for hit in within] == [hit.image_id for hit in expected]
    assert [hit.view for hit in within] == [hit.view for hit in expected]
    assert [hit.rank for hit in within] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(
        [hit.score for hit in within], [hit.score for hit in expected], atol=1e-6
    )


def test_no_picture_left_is_no_hit(views_retriever: Retriever) -> None:
    for text in ("a bar", "a bar + a circle"):
        found = views_retriever.search(parse(text), "mv_vse", 3, frozenset())
        assert found.hits == []
        assert found.searched == 0


def test_a_picture_is_looked_for_within_the_filter(views_retriever: Retriever) -> None:
    terms = [Term(image=views_retriever.open(4))]
    found = views_retriever.search(terms, "mv_vse", 1)
    assert (found.hits[0].image_id, found.searched) == (4, IMAGES)
    within = views_retriever.search(terms, "vse_infty+mv_vse", 1, frozenset({7, 10, 99}))
    assert within.hits[0].image_id in {7, 10}
    assert within.searched == 2
