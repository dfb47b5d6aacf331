"""Questions and answers: what is asked with, filters, unknown words, what is known beside."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from polyview.app.api.library import Library
from polyview.app.api.shell import main as shell
from polyview.app.explain.evidence import explain
from polyview.app.gallery.scan import from_folder
from polyview.app.search.answers import (
    MAX_TERMS,
    Question,
    answer,
    describe,
    known_to_satisfy,
    parse,
    remark,
    satisfying,
    unsupported_aspects,
)
from polyview.app.search.hits import Answer
from polyview.app.search.ranking import Term
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED
from polyview.export.pack.schema import PackInfo, parse_info
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, SETTINGS, draw
from tests.app.serving import Server

LACKING, KNOWN = "two Labradors on a hill", "two dogs on a mountain"
READINGS = {"Labradors": "dogs", "hill": "mountain"}


def ask(retriever: Retriever, words: str, method: str = "mv_vse") -> Answer:
    return answer(retriever, Question(words), method, 5)


@pytest.mark.parametrize(
    ("text", "expected", "read"),
    [
        ("a t-shirt, 3:15 pm", [(1, "a t-shirt, 3:15 pm")], "a t-shirt, 3:15 pm"),
        (
            "2: dog + beach - people",
            [(2, "dog"), (1, "beach"), (-1, "people")],
            "2 x dog, + beach, - people",
        ),
        ("- people", [(-1, "people")], "- people"),
        (" +  dog - .5: cat", [(1, "dog"), (-0.5, "cat")], "dog, - 0.5 x cat"),
        ("dog+beach", [(1, "dog+beach")], "dog+beach"),
    ],
)
def test_terms_are_read_and_described(
    text: str, expected: list[tuple[float, str]], read: str
) -> None:
    def terms(text: str) -> list[tuple[float, str]]:
        return [(term.weight, term.words) for term in parse(text)]

    assert terms(text) == expected
    assert terms(" ".join(describe(parse(text), typed=True))) == expected
    described = ", ".join(describe(parse(text))).replace("\N{MULTIPLICATION SIGN}", "x")
    assert described.replace("\N{MINUS SIGN}", "-") == read


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dog +", 'no words after "+"'),
        ("dog - + cat", 'no words after "-"'),
        ("2: + cat", 'no words after "2:"'),
        ("1000: dog", "a weight must be a number of at most 100, not 1000"),
        (" \n ", "the query is empty"),
        ("a" * 10_001, "has 10,001 characters; use at most 10,000"),
        (" + ".join(["dog"] * (MAX_TERMS + 1)), f"{MAX_TERMS + 1} terms"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse(text)


def test_images_of_the_collection_and_from_elsewhere_find_captions_too(
    retriever: Retriever,
) -> None:
    own = answer(retriever, Question(image_id=6), "vse_infty", 3)
    sent = answer(retriever, Question(image=draw(6)[0]), "vse_infty", 3)
    assert sent.hits[0].image_id == 6  # which is no answer to itself
    assert [hit.score for hit in own.hits][:2] == [hit.score for hit in sent.hits][1:]
    assert len(own.captions) == 3
    assert own.captions == sent.captions
    for question in (Question(more=(6,)), Question("a bar"), Question("a bar", image_id=6)):
        assert answer(retriever, question, "vse_infty", 3).captions == []


@pytest.mark.parametrize("spec", ["vse_infty", "mv_vse+vse_infty"])
def test_an_image_that_is_asked_with_is_no_answer(views_retriever: Retriever, spec: str) -> None:
    results = answer(views_retriever, Question(image_id=7), spec, 5)
    every = views_retriever.search([Term(image=views_retriever.open(7))], spec, 6)
    others = [hit.image_id for hit in every.hits if hit.image_id != 7]
    assert [hit.image_id for hit in results.hits] == others[:5]
    assert [hit.rank for hit in results.hits] == [1, 2, 3, 4, 5]
    assert results.searched == IMAGES - 1


def test_terms_are_added_image_first_examples_last(views_retriever: Retriever) -> None:
    def image(image_id: int, weight: float) -> Term:
        return Term(image=views_retriever.open(image_id), weight=weight)

    for question, terms in (
        (
            Question("a bar - a circle", image_id=6, weight=2.5),
            [image(6, 2.5), *parse("a bar - a circle")],
        ),
        (Question("a bar", more=(5,), less=(3,)), [Term("a bar"), image(5, 1), image(3, -0.5)]),
    ):
        read = question.terms(views_retriever)
        assert [(t.words, t.weight) for t in read] == [(t.words, t.weight) for t in terms]
        scores = views_retriever.scores(terms, "mv_vse").values
        hits = answer(views_retriever, question, "mv_vse", IMAGES).hits
        own = {question.image_id, *question.more, *question.less}
        others = [i for i in np.argsort(-scores, kind="stable") if i not in own]
        assert [hit.image_id for hit in hits] == others
        np.testing.assert_allclose([hit.score for hit in hits], scores[others], atol=1e-6)
    assert [t.weight for t in Question(more=(3, 4), weight=9).terms(views_retriever)] == [0.5] * 2


def test_terms_that_cancel_out_leave_the_order_of_the_gallery(views_retriever: Retriever) -> None:
    results = answer(views_retriever, Question("a bar - a bar"), "mv_vse", 3)
    assert [hit.image_id for hit in results.hits] == [0, 1, 2]
    assert "cancel out" in results.remark
    assert results.exact


def test_the_truth_is_known_of_captions(views_retriever: Retriever) -> None:
    images = views_retriever.collection.images
    caption = images[5].captions[1]
    expected = {image.image_id for image in images if caption in image.captions}
    assert 5 in expected
    assert len(expected) > 1
    spaced = [Term(f" {caption.replace(' ', '  ')}")]
    assert known_to_satisfy(views_retriever.collection, spaced) == expected
    assert known_to_satisfy(views_retriever.collection, parse("no caption at all")) == set()
    hits = answer(views_retriever, Question(caption), "mv_vse", IMAGES).hits
    assert {hit.image_id for hit in hits if hit.satisfies} == expected
    hits = answer(views_retriever, Question(f"2: {caption}"), "mv_vse", IMAGES).hits
    assert {hit.satisfies for hit in hits} == {None}


def test_filters_join_facts_by_and_values_by_or(views_retriever: Retriever, tmp_path: Path) -> None:
    collection = views_retriever.collection
    light = {i for i in range(IMAGES) if SETTINGS[i % 3] != "sand"}
    assert satisfying(collection, {"setting": ["sky", "dusk"]}) == light
    both = {"setting": ["sky", "dusk"], "time": ["night"]}
    assert satisfying(collection, both) == {i for i in light if i % 4 == 0}
    assert satisfying(collection, {}) is None
    expected = {"setting": ["sky"], "time": ["night"]}
    results = answer(views_retriever, Question("a bar"), "mv_vse", 9, expected)
    assert (results.searched, results.filters) == (2, expected)
    assert {hit.image_id for hit in results.hits} == {0, 12}
    for name in ("a.png", "b/c.png", "b/d.png", "b/e/f.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert satisfying(from_folder(tmp_path), {"folder": ["b"]}) == {1, 2}
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "a.png").write_bytes(b"x")
    for images, fact, value, sentence in (
        (from_folder(tmp_path / "bare"), "setting", "sky", '"setting"; they have no metadata'),
        (collection, "colour", "red", '"colour"; choose one of setting, time'),
        (collection, "setting", "moon", '"moon"; choose from dusk, sand, sky'),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            satisfying(images, {fact: [value]})


def test_remarks_say_how_a_sentence_was_read(retriever: Retriever) -> None:
    assert remark(retriever, "a red circle") == ""
    longest = retriever.info.tokenizer.max_length
    assert remark(retriever, "a " * 5000) == f"Only the first {longest} words were read."


def test_an_unknown_word_is_named_with_known_ones_to_ask_instead(retriever: Retriever) -> None:
    results = ask(retriever, "a Crcle beside a\tqwertyuiop", "vsepp")
    assert [(item.word, item.nearest) for item in results.unknown] == [
        ("Crcle", ["circle"]),
        ("qwertyuiop", []),
    ]
    assert "“qwertyuiop”" in results.remark
    words = " ".join(["x" * 9000, *(f"word{i}" for i in range(50))])
    named = ask(retriever, words, "vsepp").unknown
    assert len(named) <= 5
    assert max(len(item.word) for item in named) <= 40


def test_a_word_is_read_as_one_that_means_the_same(scenes: Retriever) -> None:
    for method in scenes.runtime.methods:
        lacking, known = ask(scenes, LACKING, method), ask(scenes, KNOWN, method)
        assert lacking.hits == known.hits
        assert lacking.matches == known.matches
    assert {word.word: word.read_as for word in lacking.unknown} == READINGS
    assert not any(word.nearest for word in lacking.unknown)
    for typed, known_word in READINGS.items():
        assert f"“{typed}” is read as “{known_word}”." in lacking.remark
    assert not known.remark
    assert list(scenes.runtime.tokenize(LACKING).unknown.values()) == list(READINGS)  # as measured
    results = ask(scenes, "2: labradors + a hill - a photo")
    assert results.hits == ask(scenes, "2: dogs + a mountain - a picture").hits
    assert [word.read_as for word in results.unknown] == ["dogs", "mountain", "picture"]


def test_evidence_speaks_of_the_words_that_were_read(scenes: Retriever) -> None:
    lacking, known = (explain(scenes, parse(item), "mv_vse", [3]) for item in (LACKING, KNOWN))
    assert lacking.terms[0].words == known.terms[0].words == tuple(KNOWN.split())
    np.testing.assert_array_equal(lacking.terms[0].cells, known.terms[0].cells)


def test_a_known_word_stays(tmp_path: Path) -> None:
    draw(1)[0].save(tmp_path / "a.png")
    runtime = Runtime.load(BUNDLED / "photos", "cpu")
    retriever = Retriever(runtime, from_folder(tmp_path), tmp_path)
    for words, read in (
        ("two kittens", "two kitten"),
        ("lakes, and an automobile", "lake, and an car"),
        ("she SLEPT!", "she sleeps!"),
        ("dogs and puppies run", "dogs and puppies run"),
        ("a zebra", "a zebra"),
    ):
        assert retriever.reworded(words) == read


@pytest.mark.parametrize(
    ("words", "matches"),
    [
        ("a cute dog", True),  # a word that only describes refuses nothing
        ("the whale is adorable", True),
        ("some fluffy cats", True),
        ("cute", False),
        ("adorable fluffy", False),
        ("a truck and a telescope", False),  # an unknown thing
    ],
)
def test_only_unknown_things_are_refused(scenes: Retriever, words: str, matches: bool) -> None:
    results = ask(scenes, words, scenes.methods.best)
    assert results.matches is matches
    assert {word.read_as for word in results.unknown} == {None}
    assert all(0 < (hit.probability or 0) < 1 for hit in results.hits)


def test_sums_and_ensembles_are_not_judged(scenes: Retriever) -> None:
    for results in (ask(scenes, "2: dog + beach"), ask(scenes, "a dog", "mv_vse+avse")):
        assert (results.matches, {hit.probability for hit in results.hits}) == (None, {None})


def test_the_library_the_shell_and_the_server_say_it(
    bundled: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with Library("scenes", device="cpu") as library:
        results = library.search(LACKING, 3)
        assert list(results) == list(library.search(KNOWN, 3))
        why = library.explain(LACKING, results[0])
    assert {word.word: word.read_as for word in results.unknown} == READINGS
    assert why.light("labradors").tobytes() == why.light("dogs").tobytes()
    values = ["--pack", "scenes", "--device", "cpu", "--json", "-k", "1"]
    assert shell(["fluffy Labradors", *values]) == 0
    printed = capsys.readouterr()
    read = {word["word"]: word["read_as"] for word in json.loads(printed.out)["unknown"]}
    assert read == {"fluffy": None, "Labradors": "dogs"}
    assert "“Labradors” is read as “dogs”" in printed.err
    assert "“fluffy” is unknown to this pack" in printed.err
    reply = bundled.get("search", q=LACKING, method="mv_vse", k=3)
    assert {word["word"]: word["read_as"] for word in reply["unknown"]} == READINGS
    lit, known = (
        bundled.http.get("explain.png", params={"q": q, "image": 3, "method": "mv_vse", "word": w})
        for q, w in ((LACKING, "Labradors"), (KNOWN, "dogs"))
    )
    assert lit.content == known.content


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
        ("a rose without a lizard above a tent", ["negation", "sides"]),
        ("a rose but no lizard", ["negation"]),
        ("not just a rose but also a fox", []),
        ("leftovers and notes on a table", []),
        ("", []),
    ],
)
def test_sides_are_unsupported_as_measured_and_negation_always(
    query: str, aspects: list[str]
) -> None:
    assert unsupported_aspects(info("scenes"), query) == aspects
    negation = [name for name in aspects if name == "negation"]
    one_method_tells_sides = info("scenes", pvse={"foil_replaced_relation": 81.0})
    assert unsupported_aspects(one_method_tells_sides, query) == negation
    assert unsupported_aspects(info("photos"), query) == negation  # foils were not measured


def test_an_answer_names_the_unsupported_aspect(scenes: Retriever) -> None:
    assert "do not distinguish left from right" in remark(scenes, "a dog", "a cow above a dog")
    results = ask(scenes, "a dog without a cat")
    assert ("“dog - 0.5: cat”" in results.remark, results.unsupported) == (True, ["negation"])
    assert "These methods" not in remark(scenes, "a dog and a cow")
