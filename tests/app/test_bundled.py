"""The pack that comes with the app, from a start without any cache to the answers."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from app.settings import BUNDLED
from export.pack.gallery import GalleryInfo, load_gallery
from tests.app.serving import Serve, Server
from tests.app.visitor import SECONDS, visits

PACK = BUNDLED / "scenes"


@pytest.fixture(scope="module")
def bundled(serve: Serve) -> Server:
    """`python app/main.py` without arguments and without a cache."""
    return serve()


@pytest.fixture(scope="module")
def gallery() -> GalleryInfo:
    return load_gallery(PACK)


def has(gallery: GalleryInfo, image_id: int, name: str) -> bool:
    """Whether there is such a thing in a scene, by the ground truth."""
    return any(thing.name == name for thing in gallery.images[image_id].objects)


@pytest.mark.parametrize(("words", "name"), [("a dog", "dog"), ("a red car", "car")])
def test_the_first_five_scenes_hold_what_was_asked_for(
    bundled: Server, gallery: GalleryInfo, words: str, name: str
) -> None:
    hits = bundled.ask("search_text", words, "vse_infty", 5)["hits"]
    assert len(hits) == 5
    for hit in hits:
        assert has(gallery, hit["image_id"], name)
        assert name in hit["objects"]


def test_a_scene_finds_itself_and_its_captions(bundled: Server, gallery: GalleryInfo) -> None:
    image = 17
    answer = bundled.ask_picture(PACK / "gallery" / gallery.images[image].file, "vse_infty", 5)
    assert answer["images"][0]["image_id"] == image
    true = {c.text for c in gallery.captions if image in c.relevant}
    assert sum(caption["text"] in true for caption in answer["captions"]) >= 3


def test_every_method_of_the_pack_is_measured(bundled: Server) -> None:
    info = bundled.ask("info")
    assert info["gallery"]["searchable"] == info["gallery"]["pictures"] == 1000
    assert info["gallery"]["refused"] == []
    for method in info["methods"].values():
        assert method["metrics"]["command"].startswith("python -m training.evaluate")
        assert method["parity"]["ranking"] is True


@pytest.mark.browser
def test_a_visit(bundled: Server, gallery: GalleryInfo, browser: Browser, tmp_path: Path) -> None:
    with visits(browser, bundled) as open_page:
        visitor = open_page()
        visitor.search("a dog")
        visitor.look(0)
        panel = visitor.page.locator("#pv-inspector")
        file = panel.locator(".pv-subject h3").inner_text()
        image = [entry.file for entry in gallery.images].index(file)
        assert has(gallery, image, "dog")
        for caption in gallery.images[image].captions:
            expect(panel).to_contain_text(caption.text)
        expect(panel).to_contain_text("of 7 x 7 cells")
        upload = tmp_path / "mine.webp"
        upload.write_bytes((PACK / "gallery" / file).read_bytes())
        visitor.page.fill("#pv-words textarea, #pv-words input", "")
        visitor.page.get_by_text("A picture of yours", exact=True).first.click()
        visitor.page.set_input_files("#pv-upload input[type=file]", upload)
        answer = visitor.page.locator("#pv-answer")
        expect(answer).to_contain_text("like mine.webp", timeout=SECONDS)
        assert gallery.images[image].captions[0].text in visitor.hits()[0]
        expect(visitor.page.locator(".pv-captions li")).to_have_count(8)
