"""Example queries: captions that suit the pack, and curated examples with their ranks."""

from dataclasses import replace
from pathlib import Path

from polyview.app.api.examples import Example, algebra, curated, curated_file, sentences
from polyview.app.api.search import parse, unsupported_aspects
from polyview.app.gallery.scan import from_folder
from polyview.app.search.comparison import compare
from polyview.app.search.retriever import Retriever
from polyview.export.runtime import Runtime
from tests.app.conftest import bundled_runtime, draw
from tests.export.conftest import edited


def test_sentences_are_short_captions_of_the_collection(retriever: Retriever) -> None:
    chosen = sentences(retriever, 5)
    assert len(set(chosen)) == 5
    assert set(chosen) <= {text for text, _ in retriever.collection.captions}
    assert max(map(len, chosen)) <= 40


def test_sentences_for_folders_without_captions(tmp_path: Path, runtime: Runtime) -> None:
    draw(1)[0].save(tmp_path / "a.png")
    folder = from_folder(tmp_path)
    for own, fewest in ((bundled_runtime("photos"), 5), (runtime, 0)):
        opened = Retriever(own, folder, tmp_path / "cache")
        chosen = sentences(opened, 5)
        assert len(chosen) >= fewest
        assert not opened.unknown_words(*chosen)
        assert (algebra(opened) != "") == (fewest == 5)


def test_an_example_of_several_terms(many_retriever: Retriever) -> None:
    terms = parse(algebra(many_retriever))
    objects = {name for image in many_retriever.collection.images for name in image.objects}
    assert [term.weight for term in terms] == [2, 1, -1]
    assert len({term.words for term in terms}) == 3
    assert {term.words for term in terms} <= objects


def test_ranks_of_the_bundled_examples(scenes: Retriever) -> None:
    home, examples = scenes, curated(scenes.info, scenes.collection)
    assert len({example.winner for example in examples}) == len(home.methods)
    for example in examples:
        assert not unsupported_aspects(home.info, example.caption)
        results = compare(home, {}, parse(example.caption), list(home.methods), 3)
        reached = {column.method: column.best_true_rank for column in results.columns}
        assert reached == example.ranks
        assert [name for name, best in reached.items() if best == 1] == [example.winner]
        assert example.why.startswith(f"Only {home.methods[example.winner].title} finds it first")


def test_outdated_examples(retriever: Retriever, tmp_path: Path) -> None:
    info = replace(retriever.info, folder=tmp_path / "pack")
    caption = retriever.collection.captions[0][0]
    ranks = {"vsepp": 1, "vse_infty": 4}
    known = Example(caption=caption, view=None, winner="vsepp", ranks=ranks, why="Only VSE++ ...")
    path = curated_file(info)
    assert curated(info, retriever.collection) == []
    path.write_text("{}")
    with edited(path) as content:
        content["checksum"] = info.checksum
        content["examples"] = [dict(known), {**dict(known), "caption": "not here"}]
    assert curated(info, retriever.collection) == [known]
    path.write_text(path.read_text().replace(info.checksum, "0" * 64))
    assert curated(info, retriever.collection) == [known.model_copy(update={"why": ""})]
    path.write_text("{")
    assert curated(info, retriever.collection) == []
