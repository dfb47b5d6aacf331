"""Questions and answers, apart from any page."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.asking import Ask, answer, examples
from app.collection import from_folder
from app.retriever import Retriever
from export.runtime import Runtime
from tests.app.conftest import PICTURES, draw


def test_a_sample_comes_from_all_over_the_collection(retriever: Retriever) -> None:
    found = answer(retriever, Ask(), "", 3)
    assert found.summary == f"{PICTURES} pictures to search"
    ids = [hit.image_id for hit in found.hits]
    assert ids == list(range(0, PICTURES, 2))
    assert {hit.rank for hit in found.hits} == {0}


def test_words_find_what_the_retriever_finds(retriever: Retriever) -> None:
    found = answer(retriever, Ask("words", words=" a  red\tbar "), "vsepp", 4)
    assert found.hits == retriever.search_text(" a  red\tbar ", "vsepp", 4)
    assert found.summary == f"4 of {PICTURES} pictures for “a red bar”"
    assert found.details[0] == "VSE++"
    assert found.captions == []


def test_long_words_are_shortened_only_in_the_summary(retriever: Retriever) -> None:
    found = answer(retriever, Ask("words", words="red " * 200), "vsepp", 1)
    assert found.summary.endswith("…”")
    assert len(found.summary) < 120


def test_both_kinds_of_pictures_find_captions_too(retriever: Retriever, tmp_path: Path) -> None:
    known = answer(retriever, Ask("picture", image_id=6), "vse_infty", 3)
    path = tmp_path / "mine.png"
    draw(6)[0].save(path)
    uploaded = answer(retriever, Ask("upload", path=str(path)), "vse_infty", 3)
    assert known.hits == uploaded.hits
    assert len({caption.text for caption in known.captions}) == len(known.captions) == 3
    assert known.captions == uploaded.captions
    assert known.summary.endswith("like images/test-000006.webp")
    assert uploaded.summary.endswith("like mine.png")


def test_no_upload_is_a_sentence(retriever: Retriever) -> None:
    with pytest.raises(ValueError, match="there is no picture; upload one first"):
        answer(retriever, Ask("upload"), "vsepp", 3)


def test_examples_are_short_captions_of_the_collection(retriever: Retriever) -> None:
    chosen = examples(retriever, 5)
    captions = {text for text, _ in retriever.collection.captions}
    assert len(set(chosen)) == 5
    assert set(chosen) <= captions
    assert max(map(len, chosen)) <= 40


def test_a_folder_without_captions_gets_general_examples(runtime: Runtime, tmp_path: Path) -> None:
    draw(1)[0].save(tmp_path / "a.png")
    chosen = examples(Retriever(runtime, from_folder(tmp_path), tmp_path / "cache"), 5)
    assert len(chosen) == 5
    assert all(chosen)
