"""Questions and answers, apart from any page."""

from pathlib import Path

import numpy as np
import pytest

from app.gallery.collection import from_folder
from app.search.answers import NOTHING_ASKED, answer, known_to_satisfy, unknown_words
from app.search.filters import Filters
from app.search.query import Term, parse
from app.search.questions import (
    REMEMBERED,
    Question,
    algebra_example,
    examples,
    instead,
    recall,
    remember,
)
from app.search.retriever import Retriever
from app.settings import BUNDLED
from export.runtime import Runtime
from tests.app.conftest import IMAGES, draw, find


def test_a_sample_comes_from_all_over_the_collection(retriever: Retriever) -> None:
    found = answer(retriever, Question(), "", 3)
    assert found.summary == f"{IMAGES} pictures to search"
    ids = [hit.image_id for hit in found.hits]
    assert ids == list(range(0, IMAGES, 2))
    assert {hit.rank for hit in found.hits} == {0}


def test_words_find_what_the_retriever_finds(retriever: Retriever) -> None:
    found = answer(retriever, Question("words", words=" a  red\tbar "), "vsepp", 4)
    assert found.hits == find(retriever, " a  red\tbar ", "vsepp", 4)
    assert found.summary == f"4 of {IMAGES} pictures for “a red bar”"
    assert found.details[0] == "VSE++"
    assert found.captions == []


def test_long_words_are_shortened_only_in_the_summary(retriever: Retriever) -> None:
    found = answer(retriever, Question("words", words="red " * 200), "vsepp", 1)
    assert found.summary.endswith("…”")
    assert len(found.summary) < 120


def test_both_kinds_of_pictures_find_captions_too(retriever: Retriever, tmp_path: Path) -> None:
    known = answer(retriever, Question("image", image_id=6), "vse_infty", 3)
    path = tmp_path / "mine.png"
    draw(6)[0].save(path)
    uploaded = answer(retriever, Question("upload", path=str(path)), "vse_infty", 3)
    assert uploaded.hits[0].image_id == 6  # which is no answer to itself
    assert [hit.score for hit in known.hits][:2] == [hit.score for hit in uploaded.hits][1:]
    assert len({caption.text for caption in known.captions}) == len(known.captions) == 3
    assert known.captions == uploaded.captions
    assert known.summary.endswith("like images/test-000006.webp")
    assert uploaded.summary.endswith("like mine.png")


def test_no_upload_is_a_sentence(retriever: Retriever) -> None:
    with pytest.raises(ValueError, match="there is no picture; upload one first"):
        answer(retriever, Question("upload"), "vsepp", 3)


def test_examples_are_short_captions_of_the_collection(retriever: Retriever) -> None:
    chosen = examples(retriever, 5)
    captions = {text for text, _ in retriever.collection.captions}
    assert len(set(chosen)) == 5
    assert set(chosen) <= captions
    assert max(map(len, chosen)) <= 40


def test_a_folder_without_captions_gets_examples_of_words_that_the_pack_knows(
    tmp_path: Path, tiny_pack: Path
) -> None:
    draw(1)[0].save(tmp_path / "a.png")
    folder = from_folder(tmp_path)
    for pack, fewest in ((BUNDLED / "photos", 5), (BUNDLED / "scenes", 1), (tiny_pack, 0)):
        asked = Retriever(Runtime.load(pack, "cpu"), folder, tmp_path / "cache")
        chosen = examples(asked, 5)
        assert len(chosen) == 5
        assert sum(map(bool, chosen)) >= fewest
        assert not unknown_words(asked, *filter(None, chosen))
        assert (algebra_example(asked) != "") == (fewest == 5)


def test_an_unknown_word_is_named_with_known_ones_to_ask_instead(retriever: Retriever) -> None:
    asked = Question("words", words="a Crcle beside a\tqwertyuiop")
    found = answer(retriever, asked, "vsepp", 3)
    assert [(one.word, one.nearest) for one in found.unknown] == [
        ("Crcle", ("circle",)),
        ("qwertyuiop", ()),
    ]
    assert instead(asked, "Crcle", "circle").words == "a circle beside a\tqwertyuiop"
    assert instead(Question("words", words="a+b ab"), "a", "1").words == "1+b ab"
    assert instead(Question("words", words="a b"), "b", r"\1\g<x>").words == r"a \1\g<x>"
    long = " ".join(["x" * 9000, *(f"word{i}" for i in range(50))])
    named = unknown_words(retriever, long)
    assert len(named) <= 5
    assert max(len(one.word) for one in named) <= 40


def test_a_pack_without_a_calibration_does_not_judge(retriever: Retriever) -> None:
    found = answer(retriever, Question("words", words="zxcv"), "vsepp", 3)
    assert found.matches is None
    assert found.probabilities == (None, None, None)


def test_several_terms_are_said_as_they_were_read(views_retriever: Retriever) -> None:
    found = answer(views_retriever, Question("words", words="2: a bar + a circle"), "mv_vse", 3)
    assert found.summary == f"3 of {IMAGES} pictures for"
    assert found.reading == ("2 \N{MULTIPLICATION SIGN} a bar", "+ a circle")
    assert found.terms == ("a bar", "a circle")
    assert found.winners["mv_vse"].shape == (2, 3)


def test_nothing_asked_is_said(views_retriever: Retriever) -> None:
    found = answer(views_retriever, Question("words", words="a bar - a bar"), "mv_vse", 3)
    assert NOTHING_ASKED in found.details
    assert [hit.image_id for hit in found.hits] == [0, 1, 2]


def test_a_picture_and_words_are_added(views_retriever: Retriever) -> None:
    ask = Question("image", words="a bar - a circle", image_id=6, weight=2.5)
    found = answer(views_retriever, ask, "mv_vse", IMAGES)
    terms = [Term(image=views_retriever.open(6), weight=2.5), *parse("a bar - a circle")]
    scores = views_retriever.scores(terms, "mv_vse").values
    np.testing.assert_allclose(
        [hit.score for hit in found.hits], [scores[hit.image_id] for hit in found.hits], atol=1e-6
    )
    others = np.delete(scores, 6)
    assert [hit.score for hit in found.hits] == sorted(others.tolist(), reverse=True)
    assert found.reading[0] == "2.5 \N{MULTIPLICATION SIGN} images/test-000006.webp"
    assert found.captions == []


def test_filters_are_said_and_narrow_a_sample_too(views_retriever: Retriever) -> None:
    wanted = Filters.of(views_retriever.collection, {"setting": ["sky"], "time": ["night"]})
    found = answer(views_retriever, Question("words", words="a bar"), "mv_vse", 9, wanted)
    assert found.summary == "2 of 2 pictures for “a bar”"
    assert "setting: sky; time: night" in found.details
    assert {hit.image_id for hit in found.hits} == {0, 12}
    sample = answer(views_retriever, Question(), "", 9, wanted)
    assert sample.summary == "2 pictures to search"
    assert [hit.image_id for hit in sample.hits] == [0, 12]


def test_the_truth_is_counted(views_retriever: Retriever) -> None:
    caption = views_retriever.collection.images[5].captions[1]
    known = known_to_satisfy(views_retriever.collection, caption)
    found = answer(views_retriever, Question("words", words=caption), "mv_vse", 10)
    shown = sum(hit.image_id in known for hit in found.hits)
    assert found.satisfying == known
    assert f"Ticked: {shown} of the {len(known)} pictures known to satisfy it." in found.details
    unknown = answer(views_retriever, Question("words", words=f"2: {caption}"), "mv_vse", 10)
    assert unknown.satisfying == set()


def test_an_example_of_several_terms(views_retriever: Retriever) -> None:
    terms = parse(algebra_example(views_retriever))
    objects = {name for image in views_retriever.collection.images for name in image.objects}
    assert [term.weight for term in terms] == [2, 1, -1]
    assert len({term.words for term in terms}) == 3
    assert {term.words for term in terms} <= objects


def test_the_history_is_newest_first_and_each_once() -> None:
    asked: tuple[Question, ...] = ()
    for question in (
        Question("words", words="a dog"),
        Question("words", words="a cat"),
        Question("words", words="a  dog "),
        Question("upload", words="a dog", path="/x/mine.png"),
        Question("image", image_id=4),
        Question("image", image_id=5),
        Question("upload", words="a dog", path="/x/mine.png", weight=2.0),
    ):
        asked = remember(asked, question)
    assert [question.title for question in asked] == [
        "mine.png with “a dog”", "like picture 5", "like picture 4", "a dog", "a cat",
    ]  # fmt: skip
    assert asked[0].weight == 2.0
    assert len({question.key for question in asked}) == 5


def test_a_sample_is_no_question_and_old_ones_go() -> None:
    asked = remember((), Question())
    assert asked == ()
    for i in range(REMEMBERED + 5):
        asked = remember(asked, Question("words", words=str(i)))
    assert len(asked) == REMEMBERED
    assert asked[0].words == str(REMEMBERED + 4)


def test_a_browser_brings_back_earlier_questions_and_nothing_else() -> None:
    asked = (Question("image", image_id=4), Question("words", "a dog"))
    hostile = ["a cat", " ", 7, None, ["a"], "x" * 10_001, "a  dog"]
    assert [one.title for one in recall(asked, hostile)] == ["like picture 4", "a dog", "a cat"]
    assert len(recall(asked, [str(i) for i in range(1000)])) == REMEMBERED
    assert recall(asked, {"words": "a cat"}) == asked


@pytest.mark.parametrize("spec", ["vse_infty", "mv_vse+vse_infty"])
def test_an_image_that_is_asked_with_is_no_answer(views_retriever: Retriever, spec: str) -> None:
    found = answer(views_retriever, Question("image", image_id=7), spec, 5)
    every = views_retriever.search([Term(image=views_retriever.open(7))], spec, 6)
    others = [hit.image_id for hit in every.hits if hit.image_id != 7]
    assert [hit.image_id for hit in found.hits] == others[:5]
    assert [hit.rank for hit in found.hits] == [1, 2, 3, 4, 5]
    assert all(won.shape[1] == 5 for won in found.winners.values())
    assert found.found.searched == IMAGES - 1


def test_examples_add_up_and_move_from_side_to_side(views_retriever: Retriever) -> None:
    question = Question("words", "a bar").with_examples(True, 3).with_examples(True, 5)
    assert question.own == {3, 5}
    moved = question.with_examples(False, 3)
    assert (moved.more, moved.less) == ((5,), (3,))
    hits = answer(views_retriever, moved, "vse_infty", IMAGES).hits
    terms = [
        Term("a bar"), Term(image=views_retriever.open(5)),
        Term(image=views_retriever.open(3), weight=-0.5),
    ]  # fmt: skip
    every = views_retriever.search(terms, "vse_infty", IMAGES).hits
    assert [hit.image_id for hit in hits] == [h.image_id for h in every if h.image_id not in (3, 5)]
    alone = Question().with_examples(True, 3)
    assert [term.weight for term in alone.terms(views_retriever)] == [1]
    with pytest.raises(ValueError, match="at most 10"):
        Question().with_examples(True, *range(11))
