"""Questions and answers: terms, filters, unknown words, remarks."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from polyview.app.api.search import (
    MAX_TERMS,
    Question,
    answer,
    describe,
    filter_ids,
    parse,
    remark,
    unsupported_aspects,
)
from polyview.app.explain.evidence import draw as draw_evidence
from polyview.app.explain.evidence import explain
from polyview.app.gallery.scan import from_folder
from polyview.app.search.hits import Answer
from polyview.app.search.retriever import Retriever, Term
from polyview.app.settings import BUNDLED
from polyview.export.pack.reading import read_info
from polyview.export.pack.schema import parse_info
from tests.app.conftest import IMAGES, SETTINGS, draw

LACKING, KNOWN = "two Labradors on a hill", "two dogs on a mountain"
READINGS = {"Labradors": "dogs", "hill": "mountain"}


def ask(retriever: Retriever, words: str, method: str = "mv_vse") -> Answer:
    return answer(retriever, Question(words), method, 5)


def test_queries_are_parsed_and_described() -> None:
    for text, expected in {
        "a t-shirt, 3:15 pm": [(1, "a t-shirt, 3:15 pm")],
        "2: dog + beach - people": [(2, "dog"), (1, "beach"), (-1, "people")],
        "- people": [(-1, "people")],
        " +  dog - .5: cat": [(1, "dog"), (-0.5, "cat")],
        "dog+beach": [(1, "dog+beach")],
    }.items():
        assert [(term.weight, term.words) for term in parse(text)] == expected
        assert parse(" ".join(describe(parse(text), typed=True))) == parse(text)


def test_queries_that_cannot_be_parsed() -> None:
    for text, sentence in {
        "dog +": 'no words after "+"',
        "dog - + cat": 'no words after "-"',
        "2: + cat": 'no words after "2:"',
        "1000: dog": "a weight must be at most 100, not 1000",
        " \n ": "the query is empty",
        "a" * 10_001: "has 10,001 characters; use at most 10,000",
        " + ".join(["dog"] * (MAX_TERMS + 1)): f"{MAX_TERMS + 1} terms",
    }.items():
        with pytest.raises(ValueError, match=re.escape(sentence)):
            parse(text)


def test_images_of_the_collection_and_others_find_captions(retriever: Retriever) -> None:
    own = answer(retriever, Question(image_id=6), "vse_infty", 3)
    sent = answer(retriever, Question(image=draw(6)[0]), "vse_infty", 3)
    assert sent.hits[0].image_id == 6  # `own` leaves image 6 out
    assert [hit.score for hit in own.hits][:2] == [hit.score for hit in sent.hits][1:]
    assert len(own.captions) == 3
    assert own.captions == sent.captions
    for question in (Question(more=(6,)), Question("a bar"), Question("a bar", image_id=6)):
        assert answer(retriever, question, "vse_infty", 3).captions == []


def test_terms_are_added_image_first_examples_last(many_retriever: Retriever) -> None:
    """Query images and examples are left out of the answer."""

    def image(image_id: int, weight: float) -> Term:
        return Term(image=many_retriever.image(image_id).decode(), weight=weight)

    words, examples = "a bar - a circle", [Term("a bar"), image(5, 1), image(3, -0.5)]
    for question, spec, terms in (
        (Question(image_id=7), "mv_vse+vse_infty", [image(7, 1)]),
        (Question(words, image_id=6, weight=2.5), "mv_vse", [image(6, 2.5), *parse(words)]),
        (Question("a bar", more=(5,), less=(3,)), "mv_vse", examples),
        (Question("a bar - a bar"), "mv_vse", parse("a bar - a bar")),
    ):
        read = question.terms(many_retriever)
        assert [(t.words, t.weight) for t in read] == [(t.words, t.weight) for t in terms]
        scores = many_retriever.scores(terms, spec).values
        own = {question.image_id, *question.more, *question.less}
        others = [i for i in np.argsort(-scores, kind="stable") if i not in own]
        for k in (5, IMAGES):
            result = answer(many_retriever, question, spec, k)
            ids = [hit.image_id for hit in result.hits]
            assert ids == others[:k]
            assert [hit.rank for hit in result.hits] == list(range(1, len(ids) + 1))
            np.testing.assert_allclose([hit.score for hit in result.hits], scores[ids], atol=1e-6)
        assert result.searched == len(others)
    assert "cancel out" in result.remark
    assert [t.weight for t in Question(more=(3, 4), weight=9).terms(many_retriever)] == [0.5] * 2


def test_right_images_of_captions_are_marked(many_retriever: Retriever) -> None:
    images = many_retriever.collection.images
    caption = f"a picture of a {draw(5)[1][1]}"
    expected = {image.image_id for image in images if image.captions[1] == caption}
    assert len(expected) > 1
    for words, satisfied in (
        (f" {caption.replace(' ', '  ')}", expected),
        (f"2: {caption}", set()),
        ("no caption at all", set()),
    ):
        hits = answer(many_retriever, Question(words), "mv_vse", IMAGES).hits
        assert {hit.image_id for hit in hits if hit.satisfies} == satisfied
        assert {hit.satisfies for hit in hits} == ({True, False} if satisfied else {None})


def test_facts_are_joined_by_and_values_by_or(many_retriever: Retriever, tmp_path: Path) -> None:
    collection = many_retriever.collection
    light = {i for i in range(IMAGES) if SETTINGS[i % 3] != "sand"}
    assert filter_ids(collection, {"setting": ["sky", "dusk"]}) == light
    both = {"setting": ["sky", "dusk"], "time": ["night"]}
    assert filter_ids(collection, both) == {i for i in light if i % 4 == 0}
    assert filter_ids(collection, {}) is None
    filters = ["setting:sky", "time:night", "setting:sky"]
    results = answer(many_retriever, Question("a bar"), "mv_vse", 9, filters)
    assert (results.searched, results.filters) == (2, {"setting": ["sky"], "time": ["night"]})
    assert {hit.image_id for hit in results.hits} == {0, 12}
    draw(1)[0].save(tmp_path / "a.png")
    for images, fact, value, sentence in (
        (from_folder(tmp_path), "setting", "sky", '"setting"; they have no metadata'),
        (collection, "colour", "red", '"colour"; choose one of setting, time'),
        (collection, "setting", "moon", '"moon"; choose one of dusk, sand, sky'),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            filter_ids(images, {fact: [value]})


def test_unknown_words_and_cut_texts_are_reported(retriever: Retriever) -> None:
    assert remark(retriever, "a red circle") == ""
    limit = retriever.info.tokenizer.max_length
    truncated = f"The query is longer than {limit} tokens; the rest is ignored."
    assert remark(retriever, "a " * 5000) == truncated
    results = ask(retriever, "a Crcle beside a\tqwertyuiop", "vsepp")
    nearest = {item.word: item.nearest for item in results.unknown}
    assert nearest == {"Crcle": ["circle"], "qwertyuiop": []}
    assert "“qwertyuiop”" in results.remark
    words = " ".join(["x" * 9000, *(f"word{i}" for i in range(50))])
    named = ask(retriever, words, "vsepp").unknown
    assert len(named) <= 5
    assert max(len(item.word) for item in named) <= 40


def test_synonyms_replace_unknown_words(scenes: Retriever) -> None:
    for method in scenes.runtime.methods:
        lacking, known = ask(scenes, LACKING, method), ask(scenes, KNOWN, method)
        assert (lacking.hits, lacking.matches) == (known.hits, known.matches)
    assert {word.word: word.read_as for word in lacking.unknown} == READINGS
    assert not any(word.nearest for word in lacking.unknown)
    for typed, known_word in READINGS.items():
        assert f"“{typed}” is read as “{known_word}”." in lacking.remark
    assert not known.remark
    assert scenes.reword(" Two LABRADORS, on a hill! ") == "Two dogs, on a mountain!"
    unknown = scenes.runtime.reader.read(LACKING).unknown
    assert list(unknown.values()) == list(READINGS)  # the words that were typed
    results = ask(scenes, "2: labradors + a hill - a photo")
    assert results.hits == ask(scenes, "2: dogs + a mountain - a picture").hits
    assert [word.read_as for word in results.unknown] == ["dogs", "mountain", "picture"]
    first, second = (explain(scenes, parse(item), "mv_vse", [3]) for item in (LACKING, KNOWN))
    assert first.words == second.words == tuple(KNOWN.split())
    np.testing.assert_array_equal(first.cells, second.cells)
    lit = [draw_evidence(scenes, first, 3, word).tobytes() for word in ("Labradors", "dogs")]
    assert lit[0] == lit[1]


def test_only_unknown_nouns_refuse_an_answer(scenes: Retriever) -> None:
    for words, matches in {
        "a cute dog": True,  # an unknown adjective
        "some fluffy cats": True,
        "adorable fluffy": False,
        "a truck and a telescope": False,  # an unknown noun
    }.items():
        results = ask(scenes, words, scenes.methods.best)
        assert results.matches is matches
        assert {word.read_as for word in results.unknown} == {None}
        assert all(0 < (hit.probability or 0) < 1 for hit in results.hits)
        for results in (ask(scenes, f"2: {words} + beach"), ask(scenes, words, "mv_vse+avse")):
            assert (results.matches, {hit.probability for hit in results.hits}) == (None, {None})


def test_unsupported_aspects(scenes: Retriever) -> None:
    values = json.loads((BUNDLED / "scenes/pack.json").read_text("utf-8"))
    values["methods"]["pvse"]["metrics"]["values"]["foil_replaced_relation"] = 81.0
    better = parse_info(values, scenes.info.folder)
    photos = read_info(BUNDLED / "photos")  # without metrics of foils
    for query, aspects in {
        "a cow LEFT of a dog": ["sides"],
        "a kite, higher up than a fox": ["sides"],
        "a rose without a lizard above a tent": ["negation", "sides"],
        "a rose but no lizard": ["negation"],
        "not just a rose but also a fox": [],
        "leftovers and notes on a table": [],
    }.items():
        results, negation = ask(scenes, query), [each for each in aspects if each != "sides"]
        assert results.unsupported == aspects
        assert ("do not distinguish left from right" in results.remark) == ("sides" in aspects)
        assert ("“dog - 0.5: cat”" in results.remark) == ("negation" in aspects)
        assert unsupported_aspects(better, query) == unsupported_aspects(photos, query) == negation
