"""A pack that reads no images, in the app: its own gallery is searched by ready-made features."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from app.api.library import Library
from app.packs.open_packs import OpenPacks
from app.search.questions import Question
from app.settings import Settings
from export.runtime import Runtime
from tests.app.conftest import finish
from tests.app.serving import Serve, Server
from tests.app.visitor import Guests
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


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_each_tab_shows_its_regions(guests: Guests, server: Server, width: int, dark: bool) -> None:
    with guests.visits(server) as open_page:
        visitor = open_page(width, dark)
        visitor.choose_method("MV-VSE")
        visitor.search(WORDS)
        visitor.look(0)
        visitor.open_tab("Compare")
        visitor.page.fill("#pv-cmp-words :is(input, textarea)", WORDS)
        visitor.page.press("#pv-cmp-words :is(input, textarea)", "Enter")
        expect(visitor.page.get_by_role("grid", name=f"for {WORDS}")).to_be_visible()
        visitor.open_tab("Views")
        expect(visitor.page.locator("#pv-v-grid .pv-v-view")).to_have_count(5)


def test_visitors_search_it_and_look_inside(pack: Path, server: Server, tmp_path: Path) -> None:
    runtime = Runtime.load(pack, "cpu")
    info = server.ready()
    assert info["gallery"]["searchable"] == 20
    regions, text = runtime.regions, runtime.text_views([WORDS], "mv_vse")
    assert regions is not None
    images = runtime.image_views(regions.features(range(20)), "mv_vse", attention=True)
    scores = runtime.methods["mv_vse"].score(images, text)[:, 0].numpy()
    hits = server.ask("search_text", WORDS, "mv_vse", 5)["hits"]
    best = np.argsort(-scores, kind="stable")[:5]
    assert [hit["image_id"] for hit in hits] == best.tolist()
    first = int(best[0])
    seen = server.ask("views", first, "mv_vse", WORDS)
    assert seen["grid"] == [16, 16]
    assert images.attention is not None
    expected = regions.strongest(first, images.attention[first])
    drawn = np.array([view["attention"] for view in seen["views"]])
    np.testing.assert_allclose(drawn, expected.numpy(), atol=1e-4)
    why = server.ask("explain", WORDS, first, "mv_vse")
    total = why["base"] + np.sum(why["cells"]) + np.sum(why["whole_sentence"])
    assert total == pytest.approx(scores[first], abs=0.01)  # of rounded numbers
    Image.new("RGB", (64, 64)).save(tmp_path / "mine.png")
    assert SENTENCE in server.ask_image(tmp_path / "mine.png", "mv_vse")["error"]


def test_other_images_are_not_for_it(pack: Path, tiny_pack: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    Image.new("RGB", (64, 64)).save(mine / "a.png")
    with pytest.raises(ValueError, match=SENTENCE):
        OpenPacks(Settings(str(pack), mine, device="cpu"), tmp_path / "cache")
    with pytest.raises(ValueError, match=SENTENCE):
        Library(pack, mine, device="cpu")
    packs = OpenPacks(Settings(str(tiny_pack), mine, device="cpu"), tmp_path / "cache")
    key = packs.open(pack)
    assert len(packs.get(key).collection.images) == 20  # its own, and not the folder's
    other = packs.show(key, str(mine))
    assert packs.get(other).info.name == "photos"
    assert [image.file for image in packs.get(other).collection.images] == ["a.png"]
    for retriever in packs.packs().values():
        finish(retriever.index)
    asked = Question("image", image_id=3).terms(packs.get(key))
    assert packs.get(key).search(asked, "vsepp", 1).hits[0].image_id == 3
    with pytest.raises(ValueError, match=SENTENCE):  # an image of another pack's gallery
        packs.get(key).search(Question("image", image_id=0).terms(packs.first), "vsepp", 1)


def test_programs_search_it(pack: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path))
    with Library(pack, device="cpu") as library:
        found = library.search(WORDS, 3)
        assert len(found) == 3
        why = library.explain(WORDS, found[0])
        assert why.score == pytest.approx(found[0].score, abs=1e-5)
        with pytest.raises(ValueError, match=SENTENCE):
            library.search(Image.new("RGB", (64, 64)))
