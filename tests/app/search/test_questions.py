"""Questions and answers, apart from any page."""

from pathlib import Path

import numpy as np
import pytest

from polyview.app.gallery.scan import from_folder
from polyview.app.search.answers import answer, known_to_satisfy, unknown_words
from polyview.app.search.filters import Filters
from polyview.app.search.query import Term, parse
from polyview.app.search.questions import Question, algebra_example, examples
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, draw, find


def test_words_find_what_the_retriever_finds(retriever: Retriever) -> None:
    found = answer(retriever, Question(" a  red\tbar "), "vsepp", 4).found
    assert found.hits == find(retriever, " a  red\tbar ", "vsepp", 4)
    assert found.captions == []


def test_images_of_the_collection_and_from_elsewhere_find_captions_too(
    retriever: Retriever,
) -> None:
    own = answer(retriever, Question(image_id=6), "vse_infty", 3).found
    sent = answer(retriever, Question(image=draw(6)[0]), "vse_infty", 3).found
    assert sent.hits[0].image_id == 6  # which is no answer to itself
    assert [hit.score for hit in own.hits][:2] == [hit.score for hit in sent.hits][1:]
    assert len(own.captions) >= 3
    assert own.captions == sent.captions


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
    found = answer(retriever, Question("a Crcle beside a\tqwertyuiop"), "vsepp", 3)
    assert [(one.word, one.nearest) for one in found.unknown] == [
        ("Crcle", ["circle"]),
        ("qwertyuiop", []),
    ]
    long = " ".join(["x" * 9000, *(f"word{i}" for i in range(50))])
    named = unknown_words(retriever, long)
    assert len(named) <= 5
    assert max(len(one.word) for one in named) <= 40


def test_a_pack_without_a_calibration_does_not_judge(retriever: Retriever) -> None:
    found = answer(retriever, Question("zxcv"), "vsepp", 3)
    assert found.matches is None
    assert found.probabilities == (None, None, None)


def test_terms_that_cancel_out_leave_the_order_of_the_gallery(views_retriever: Retriever) -> None:
    found = answer(views_retriever, Question("a bar - a bar"), "mv_vse", 3)
    assert found.found.terms == ()
    assert [hit.image_id for hit in found.found.hits] == [0, 1, 2]


def test_a_picture_and_words_are_added(views_retriever: Retriever) -> None:
    question = Question("a bar - a circle", image_id=6, weight=2.5)
    found = answer(views_retriever, question, "mv_vse", IMAGES).found
    terms = [Term(image=views_retriever.open(6), weight=2.5), *parse("a bar - a circle")]
    scores = views_retriever.scores(terms, "mv_vse").values
    np.testing.assert_allclose(
        [hit.score for hit in found.hits], [scores[hit.image_id] for hit in found.hits], atol=1e-6
    )
    others = np.delete(scores, 6)
    assert [hit.score for hit in found.hits] == sorted(others.tolist(), reverse=True)
    assert found.captions == []


def test_filters_narrow_what_is_ranked(views_retriever: Retriever) -> None:
    wanted = Filters.of(views_retriever.collection, {"setting": ["sky"], "time": ["night"]})
    found = answer(views_retriever, Question("a bar"), "mv_vse", 9, wanted).found
    assert found.searched == 2
    assert {hit.image_id for hit in found.hits} == {0, 12}


def test_the_truth_is_known_of_captions(views_retriever: Retriever) -> None:
    caption = views_retriever.collection.images[5].captions[1]
    known = known_to_satisfy(views_retriever.collection, caption)
    assert answer(views_retriever, Question(caption), "mv_vse", 10).satisfying == known
    weighed = answer(views_retriever, Question(f"2: {caption}"), "mv_vse", 10)
    assert weighed.satisfying == set()


def test_an_example_of_several_terms(views_retriever: Retriever) -> None:
    terms = parse(algebra_example(views_retriever))
    objects = {name for image in views_retriever.collection.images for name in image.objects}
    assert [term.weight for term in terms] == [2, 1, -1]
    assert len({term.words for term in terms}) == 3
    assert {term.words for term in terms} <= objects


@pytest.mark.parametrize("spec", ["vse_infty", "mv_vse+vse_infty"])
def test_an_image_that_is_asked_with_is_no_answer(views_retriever: Retriever, spec: str) -> None:
    found = answer(views_retriever, Question(image_id=7), spec, 5).found
    every = views_retriever.search([Term(image=views_retriever.open(7))], spec, 6)
    others = [hit.image_id for hit in every.hits if hit.image_id != 7]
    assert [hit.image_id for hit in found.hits] == others[:5]
    assert [hit.rank for hit in found.hits] == [1, 2, 3, 4, 5]
    assert found.searched == IMAGES - 1


def test_examples_add_up(views_retriever: Retriever) -> None:
    question = Question("a bar", more=(5,), less=(3,))
    assert question.own == {3, 5}
    hits = answer(views_retriever, question, "vse_infty", IMAGES).found.hits
    terms = [
        Term("a bar"), Term(image=views_retriever.open(5)),
        Term(image=views_retriever.open(3), weight=-0.5),
    ]  # fmt: skip
    every = views_retriever.search(terms, "vse_infty", IMAGES).hits
    assert [hit.image_id for hit in hits] == [h.image_id for h in every if h.image_id not in (3, 5)]
    assert [term.weight for term in Question(more=(3,)).terms(views_retriever)] == [1]
