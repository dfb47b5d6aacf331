"""Who may take part in a comparison: methods, averages, other open packs, and what is true."""

from pathlib import Path

import pytest

from app.gallery.collection import from_folder
from app.packs.columns import Columns
from app.packs.open_packs import OpenPacks
from app.search.query import Term, parse
from app.search.retriever import Retriever
from app.settings import Settings
from tests.app.conftest import IMAGES, draw
from tests.app.packs.test_open_packs import variant


@pytest.fixture(scope="module")
def open_packs(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> OpenPacks:
    """The tiny pack, a variant of it over the same pictures, and one over others."""
    tmp_path = tmp_path_factory.mktemp("open_packs")
    open_packs = OpenPacks(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    open_packs.first.index.start()
    key = open_packs.open(variant(tiny_pack, tmp_path / "other", 9, title="Variant"))
    photos = tmp_path / "photos"
    photos.mkdir()
    draw(3)[0].save(photos / "mine.png")
    elsewhere = Retriever(open_packs.first.runtime, from_folder(photos), tmp_path / "cache")
    open_packs._guests["elsewhere"] = elsewhere
    assert open_packs.first.index.wait(60)
    assert open_packs.get(key).index.wait(60)
    return open_packs


def test_methods_averages_and_other_packs_take_part(open_packs: OpenPacks) -> None:
    lineup = Columns(open_packs, "")
    assert lineup.default() == ["vsepp", "vse_infty"]
    assert list(lineup.others) == ["shapes"]
    assert lineup.elsewhere == ["Shapes <b>"]
    keys = [key for _, key in lineup.choices()]
    assert keys == ["vsepp", "vse_infty", "shapes/vsepp", "shapes/vse_infty", "vsepp+vse_infty"]
    found = lineup.ask(parse("a red circle"), ["vsepp", "vse_infty+vsepp", "shapes/vsepp"], 5)
    assert [column.key for column in found.columns] == ["vsepp", "vsepp+vse_infty", "shapes/vsepp"]
    assert [column.title for column in found.columns][2] == "VSE++ of Variant"
    assert found.pictures == IMAGES
    assert found.overlap[0][2] == 1  # the same weights in both packs
    assert found.tau[0][2] == pytest.approx(1)
    mean = open_packs.first.scores(parse("a red circle"), "vsepp+vse_infty").values
    assert found.columns[1].places[0].score == pytest.approx(mean.max(), abs=1e-6)
    assert all(1 <= column.runs <= 3 and column.ms > 0 for column in found.columns)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["vsepp"], "choose 2 to 8 methods to compare, not 1"),
        (["vsepp"] * 9, "not 9"),
        (["vsepp", "vsepp"], '"vsepp" is there twice'),
        (["vsepp+vse_infty", "vse_infty+vsepp"], '"vsepp.vse_infty" is there twice'),
        (["vsepp", "clip"], "choose one of vsepp, vse_infty"),
        (["vsepp", "nowhere/vsepp"], 'no open pack "nowhere".* those that do: shapes'),
        ("vsepp", "must be a list of names, not str"),
        (None, "must be a list of names, not NoneType"),
    ],
)
def test_bad_columns_get_a_sentence(open_packs: OpenPacks, keys: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Columns(open_packs, "").titles(keys)


def test_truth_is_known_for_captions_word_for_word(open_packs: OpenPacks) -> None:
    lineup = Columns(open_packs, "")
    caption = lineup.home.collection.images[5].captions[0]
    truth = lineup.truth(parse(caption))
    assert truth is not None
    assert 5 in truth.ids
    assert not truth.complete  # nobody judged the other pictures
    assert lineup.truth(parse(f"2: {caption}")) is None
    assert lineup.truth([Term(image=lineup.home.open(5))]) is None
    own = lineup.ask([Term(image=lineup.home.open(5))], lineup.default(), 5, image_id=5)
    assert own.pictures == IMAGES - 1
    assert 5 not in own.ranks
