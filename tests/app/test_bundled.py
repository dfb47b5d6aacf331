"""The pack that comes with the app, from a start without any cache to the answers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
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
    answer = bundled.ask_image(PACK / "gallery" / gallery.images[image].file, "vse_infty", 5)
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


LIGHTEST = """image => {
  const map = document.querySelector(`#pv-grid [data-picture="${image}"] .pv-ev-map`);
  const pixels = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
  let best = 0;
  for (let i = 0; i < map.width * map.height; i++)
    if (pixels[4 * i + 3] < pixels[4 * best + 3]) best = i;
  return [best % map.width / map.width, Math.floor(best / map.width) / map.height];
}"""  # where the shade over a thumbnail is thinnest, in 0..1


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_lights_the_object_that_it_names(
    bundled: Server, gallery: GalleryInfo, browser: Browser, width: int
) -> None:
    image = 5  # "a kangaroo and a whale can be seen in the image"
    scene = gallery.images[image]
    words = next(c.text for c in scene.captions if "kangaroo" in c.text and "whale" in c.text)
    assert scene.mask is not None
    mask = np.asarray(Image.open(PACK / "gallery" / scene.mask))
    with visits(browser, bundled) as open_page:
        visitor = open_page()
        visitor.resize(width, dark=width < 600)
        visitor.search(words)
        page = visitor.page
        said = page.locator(".pv-ev-said")
        expect(said).to_contain_text("The words together add", timeout=SECONDS)
        tile = page.locator(f'#pv-grid [data-picture="{image}"]')
        expect(tile.locator(".pv-ev-map")).to_be_visible()  # as it is in the first row
        for name in ("kangaroo", "whale"):
            word = page.locator(".pv-ev-word", has_text=name)
            if width < 600:
                word.click()
                expect(word).to_have_attribute("aria-pressed", "true")
            else:
                word.hover()
            expect(said).to_contain_text(f"“{name}” adds 0.")
            x, y = page.evaluate(LIGHTEST, image)
            row, column = int(7 * y) * len(mask) // 7, int(7 * x) * len(mask[0]) // 7
            cell = mask[row : row + len(mask) // 7 + 1, column : column + len(mask[0]) // 7 + 1]
            seen = {scene.objects[value - 1].name for value in np.unique(cell) if value}
            assert name in seen
        tile.click()
        head = page.locator("#pv-inspector .pv-subject")
        expect(head).to_contain_text(scene.file, timeout=SECONDS)
        word.focus()
        page.keyboard.press("Home")  # to the first word, which the open image follows
        page.keyboard.press("ArrowRight")
        expect(page.locator('#pv-layers input[value="evidence:2"]')).to_be_checked(timeout=SECONDS)
        expect(page.locator("#pv-inspector")).to_contain_text("“kangaroo” brings", timeout=SECONDS)
        if width < 600:
            word.click()  # lets it go
        page.get_by_label("Show evidence").uncheck()
        page.mouse.move(0, 0)
        expect(page.locator("#pv-grid .pv-ev-map")).to_have_count(0)


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
        expect(panel).to_contain_text("All words together bring")
        visitor.page.get_by_label("View 1", exact=False).first.check()
        expect(panel).to_contain_text("of 7 x 7 cells", timeout=SECONDS)
        upload = tmp_path / "mine.webp"
        upload.write_bytes((PACK / "gallery" / file).read_bytes())
        visitor.page.fill("#pv-words textarea, #pv-words input", "")
        visitor.page.get_by_text("A picture of yours", exact=True).first.click()
        visitor.page.set_input_files("#pv-upload input[type=file]", upload)
        answer = visitor.page.locator("#pv-answer")
        expect(answer).to_contain_text("like mine.webp", timeout=SECONDS)
        assert gallery.images[image].captions[0].text in visitor.hits()[0]
        expect(visitor.page.locator(".pv-captions li")).to_have_count(8)
