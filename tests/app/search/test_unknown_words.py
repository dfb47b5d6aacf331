"""Words that the bundled packs lack: read as known ones, or named; refused where all are."""

import json

import numpy as np
import pytest

from polyview.app.api.library import Library
from polyview.app.api.shell import main as shell
from polyview.app.explain.evidence import explain
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.search.answers import Answer, answer
from polyview.app.search.query import parse
from polyview.app.search.questions import Question
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED
from polyview.export.runtime import Runtime
from tests.app.conftest import draw
from tests.app.serving import Server

LACKING, KNOWN = "two Labradors on a hill", "two dogs on a mountain"
READINGS = {"Labradors": "dogs", "hill": "mountain"}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """The bundled scenes, ready to be searched."""
    pack = BUNDLED / "scenes"
    cache = tmp_path_factory.mktemp("cache")
    retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), cache)
    retriever.index.start()
    assert retriever.index.wait(120)
    return retriever


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """The bundled pack for photographs over one image, nothing of it encoded."""
    folder = tmp_path_factory.mktemp("mine")
    draw(1)[0].save(folder / "a.png")
    return Retriever(Runtime.load(BUNDLED / "photos", "cpu"), from_folder(folder), folder / "cache")


def ask(retriever: Retriever, words: str, method: str = "mv_vse") -> Answer:
    return answer(retriever, Question(words), method, 5)


def test_a_word_is_read_as_one_that_means_the_same(scenes: Retriever) -> None:
    for method in scenes.runtime.methods:
        lacking, known = ask(scenes, LACKING, method), ask(scenes, KNOWN, method)
        assert lacking.found.hits == known.found.hits
        assert lacking.matches == known.matches
        assert lacking.probabilities == known.probabilities
    assert {word.word: word.read_as for word in lacking.unknown} == READINGS
    assert not any(word.nearest for word in lacking.unknown)
    for typed, known_word in READINGS.items():
        assert f"“{typed}” is read as “{known_word}”." in lacking.remark
    assert not known.remark


def test_every_term_of_a_query_is_read_so(scenes: Retriever) -> None:
    found = ask(scenes, "2: labradors + a hill - a photo")
    known = ask(scenes, "2: dogs + a mountain - a picture")
    assert found.found.hits == known.found.hits
    assert [word.read_as for word in found.unknown] == ["dogs", "mountain", "picture"]


def test_evidence_speaks_of_the_words_that_were_read(scenes: Retriever) -> None:
    lacking, known = (explain(scenes, parse(one), "mv_vse", [3]) for one in (LACKING, KNOWN))
    assert lacking.terms[0].words == known.terms[0].words == tuple(KNOWN.split())
    np.testing.assert_array_equal(lacking.terms[0].cells, known.terms[0].cells)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("two kittens", "two kitten"),
        ("lakes, and an automobile", "lake, and an car"),
        ("she SLEPT!", "she sleeps!"),
        ("dogs and puppies run", "dogs and puppies run"),
        ("a zebra", "a zebra"),
    ],
)
def test_a_known_word_stays(photos: Retriever, words: str, read: str) -> None:
    assert photos.reworded(words).text == read


def test_captions_are_measured_word_for_word(scenes: Retriever) -> None:
    assert list(scenes.runtime.tokenize(LACKING).unknown.values()) == list(READINGS)


@pytest.mark.parametrize("words", ["a cute dog", "the whale is adorable", "some fluffy cats"])
def test_a_word_that_only_describes_refuses_nothing(scenes: Retriever, words: str) -> None:
    assert ask(scenes, words, scenes.methods.best).matches
    for method in scenes.runtime.methods:  # each reads the unknown word, and may be unsure of it
        found = ask(scenes, words, method)
        [unknown] = found.unknown
        assert unknown.read_as is None
        assert f"Unknown to this pack: “{unknown.word}”." in found.remark


@pytest.mark.parametrize("words", ["cute", "adorable fluffy", "a truck and a telescope"])
def test_unknown_things_are_refused(scenes: Retriever, words: str) -> None:
    assert ask(scenes, words).matches is False


def test_the_library_and_the_shell_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Library("scenes", device="cpu") as library:
        found = library.search(LACKING, 3)
        assert list(found) == list(library.search(KNOWN, 3))
        why = library.explain(LACKING, found[0])
    assert {word.word: word.read_as for word in found.unknown} == READINGS
    assert why.light("labradors").tobytes() == why.light("dogs").tobytes()
    given = ["--pack", "scenes", "--device", "cpu", "--json", "-k", "1"]
    assert shell(["fluffy Labradors", *given]) == 0
    printed = capsys.readouterr()
    told = {word["word"]: word["read_as"] for word in json.loads(printed.out)["unknown"]}
    assert told == {"fluffy": None, "Labradors": "dogs"}
    assert "“Labradors” is read as “dogs”" in printed.err
    assert "“fluffy” is unknown to this pack" in printed.err


def test_programs_are_told(bundled: Server) -> None:
    answer = bundled.get("search", q=LACKING, method="mv_vse", k=3)
    assert {word["word"]: word["read_as"] for word in answer["unknown"]} == READINGS
    lit, known = (
        bundled.http.get("explain.png", params={"q": q, "image": 3, "method": "mv_vse", "word": w})
        for q, w in ((LACKING, "Labradors"), (KNOWN, "dogs"))
    )
    assert lit.content == known.content
    why = bundled.get("explain", q=LACKING, image=3, method="mv_vse")
    assert why["words"] == KNOWN.split()
