"""A pack that reads no images, in the app: its own gallery is searched by ready-made features."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.app.api.library import Library
from polyview.app.packs.opened import Opened
from polyview.app.search.answers import Question
from polyview.app.settings import Settings
from polyview.export.runtime import Runtime
from tests.app.serving import Serve, Server
from tests.regions import write_world

WORDS = "a thing1 and a thing4"
SENTENCE = "reads no images"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of regions with its gallery of 20 images; nobody may change it."""
    return write_world(tmp_path_factory.mktemp("regions")) / "pack"


@pytest.fixture(scope="module")
def server(serve: Serve, pack: Path) -> Server:
    """The app over that pack."""
    return serve("--pack", pack)


def test_visitors_search_it_and_look_inside(pack: Path, server: Server, tmp_path: Path) -> None:
    runtime = Runtime.load(pack, "cpu")
    assert server.get("info")["gallery"]["searchable"] == 20
    regions, text = runtime.regions, runtime.text_views([WORDS], "mv_vse")
    assert regions is not None
    images = runtime.image_views(regions.features(range(20)), "mv_vse", attention=True)
    scores = runtime.methods["mv_vse"].score(images, text)[:, 0].numpy()
    hits = server.get("search", q=WORDS, method="mv_vse", k=5)["hits"]
    best = np.argsort(-scores, kind="stable")[:5]
    assert [hit["image_id"] for hit in hits] == best.tolist()
    first = int(best[0])
    seen = server.get("views", image=first, method="mv_vse", q=WORDS)
    assert seen["grid"] == [16, 16]
    assert images.attention is not None
    expected = regions.strongest(first, images.attention[first])
    drawn = np.array([view["attention"] for view in seen["views"]])
    np.testing.assert_allclose(drawn, expected.numpy(), atol=1e-4)
    why = server.get("explain", q=WORDS, image=first, method="mv_vse")
    total = why["base"] + np.sum(why["cells"]) + np.sum(why["whole_sentence"])
    assert total == pytest.approx(scores[first], abs=0.01)  # of rounded numbers
    Image.new("RGB", (64, 64)).save(tmp_path / "mine.png")
    reply = server.search_image((tmp_path / "mine.png").read_bytes(), method="mv_vse")
    assert SENTENCE in reply.json()["error"]


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
    asked = Question(image_id=3).terms(own)
    assert own.search(asked, "vsepp", 1).hits[0].image_id == 3
    with pytest.raises(ValueError, match=SENTENCE):  # an image of another pack's gallery
        own.search(Question(image_id=0).terms(opened.first), "vsepp", 1)
    opened.close()


def test_programs_search_it(pack: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path))
    with Library(pack, device="cpu") as library:
        found = library.search(WORDS, 3)
        assert len(found) == 3
        why = library.explain(WORDS, found[0])
        assert why.score == pytest.approx(found[0].score, abs=1e-5)
        with pytest.raises(ValueError, match=SENTENCE):
            library.search(Image.new("RGB", (64, 64)))
