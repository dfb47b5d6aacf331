"""Who may take part in a comparison: methods, averages, other open packs, and what is true."""

from pathlib import Path

import pytest

from polyview.app.gallery.scan import from_folder
from polyview.app.packs.columns import Columns
from polyview.app.search.query import Term, parse
from polyview.app.search.retriever import Retriever
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, draw, filled, variant


@pytest.fixture(scope="module")
def columns(
    retriever: Retriever, tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory
) -> Columns:
    """The tiny pack, a variant of it over the same images, and one over others."""
    folder = tmp_path_factory.mktemp("packs")
    other = variant(tiny_pack, folder / "other", 9)
    same = filled(Runtime.load(other, "cpu"), other, folder / "cache")
    (folder / "photos").mkdir()
    draw(3)[0].save(folder / "photos/mine.png")
    elsewhere = Retriever(retriever.runtime, from_folder(folder / "photos"), folder / "cache")
    return Columns(retriever, [same, elsewhere])


def test_methods_averages_and_other_packs_take_part(columns: Columns) -> None:
    assert list(columns.others) == ["shapes"]
    results = columns.ask(parse("a red circle"), ["vsepp", "vse_infty+vsepp", "shapes/vsepp"], 5)
    assert [column.method for column in results.columns] == [
        "vsepp",
        "vsepp+vse_infty",
        "shapes/vsepp",
    ]
    assert [column.title for column in results.columns][2] == "VSE++ of Variant"
    assert results.pictures == IMAGES
    assert results.overlap[0][2] == 1  # the same weights in both packs
    assert results.tau[0][2] == pytest.approx(1)
    mean = columns.home.scores(parse("a red circle"), "vsepp+vse_infty").values
    assert results.columns[1].hits[0].score == pytest.approx(mean.max(), abs=1e-6)
    assert all(1 <= column.runs <= 3 and column.ms > 0 for column in results.columns)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["vsepp", "vsepp"], '"vsepp" is named twice'),
        (["vsepp+vse_infty", "vse_infty+vsepp"], '"vsepp.vse_infty" is named twice'),
        (["vsepp", "clip"], "choose one of vsepp, vse_infty"),
        (["vsepp", "nowhere/vsepp"], 'no open pack "nowhere".* those that do: shapes'),
    ],
)
def test_bad_columns_get_a_sentence(columns: Columns, keys: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        columns.ask(parse("a red circle"), keys, 5)


def test_truth_is_known_for_captions_word_for_word(columns: Columns) -> None:
    caption = columns.home.collection.images[5].captions[0]
    truth = columns.truth(parse(caption))
    assert truth is not None
    assert 5 in truth.image_ids
    assert not truth.complete  # nobody judged the other images
    assert columns.truth(parse(f"2: {caption}")) is None
    image = [Term(image=columns.home.open(5))]
    assert columns.truth(image) is None
    own = columns.ask(image, list(columns.home.methods), 5, image_id=5)
    assert own.pictures == IMAGES - 1
    assert 5 not in own.ranks
