"""A pack that reads no images, in the app: its own gallery is searched by ready-made features."""

from pathlib import Path

import pytest
from PIL import Image

from polyview.app.api.library import Library
from polyview.app.packs.opened import Opened
from polyview.app.search.answers import Question
from polyview.app.settings import Settings
from tests.regions import shared_world

WORDS = "a thing1 and a thing4"
SENTENCE = "reads no images"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of regions with its gallery of 20 images; nobody may change it."""
    return shared_world(tmp_path_factory) / "pack"


def test_other_images_are_not_for_it(pack: Path, tiny_pack: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    Image.new("RGB", (64, 64)).save(mine / "a.png")
    with pytest.raises(ValueError, match=SENTENCE):
        Opened(Settings(str(pack), mine, device="cpu"), tmp_path / "cache")
    with pytest.raises(ValueError, match=SENTENCE):
        Library(pack, mine, device="cpu")
    opened = Opened(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    key = opened.add_pack(pack)
    own = opened.retriever(key)
    assert len(own.collection.images) == 20
    folder = opened.open_place(str(mine))
    with pytest.raises(ValueError, match=SENTENCE):
        opened.retriever(key, folder)
    assert opened.retriever("", folder).info.name == "shapes"
    assert own.index.wait(60)
    query = Question(image_id=3).terms(own)
    assert own.search(query, "vsepp", 1).hits[0].image_id == 3
    with pytest.raises(ValueError, match=SENTENCE):  # an image of another pack's gallery
        own.search(Question(image_id=0).terms(opened.first), "vsepp", 1)
    opened.close()
