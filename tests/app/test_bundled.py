"""The pack that comes with the app, from a start without any cache to the answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from app.settings import BUNDLED
from export.pack.gallery import GalleryImage, GalleryInfo, load_gallery
from tests.app.serving import Server
from tests.app.visitor import Guests, Visitor

PACK = BUNDLED / "scenes"


@pytest.fixture
def visitor(guests: Guests, bundled: Server) -> Iterator[Visitor]:
    """Somebody who has just come, in the browser of the one before."""
    with guests.at(bundled) as guest:
        guest.enter()
        yield guest


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


@pytest.mark.parametrize("method", ["mv_vse", "vse_infty"])
def test_what_is_not_there_is_refused_and_true_captions_are_not(
    bundled: Server, gallery: GalleryInfo, method: str
) -> None:
    gibberish = bundled.ask("search_text", "asdfgh qwerty", method, 3)
    assert gibberish["matches"] is False
    assert [word["word"] for word in gibberish["unknown"]] == ["asdfgh", "qwerty"]
    assert max(hit["probability"] for hit in gibberish["hits"]) < 0.1
    settings = {str(image.setting) for image in gallery.images}
    shown = {(thing.name, image.setting) for image in gallery.images for thing in image.objects}
    refused = []
    for name in sorted({name for name, _ in shown})[::8]:  # where no image shows such a thing
        only = {"setting": sorted(one for one in settings if (name, one) not in shown)}
        if only["setting"]:
            answer = bundled.ask("search_text", f"a {name}", method, 3, only)
            refused.append(answer["matches"] is False)
    assert len(refused) >= 15
    assert np.mean(refused) >= 0.85
    captions = [gallery.images[i].captions[i // 50 % 5].text for i in range(0, 1000, 50)]
    found = [bundled.ask("search_text", text, method, 3) for text in captions]
    assert sum(answer["matches"] for answer in found) >= 19
    for answer in found:
        sure = [hit["probability"] for hit in answer["hits"]]
        assert sure == sorted(sure, reverse=True)


def test_sums_ensembles_and_images_are_not_judged(bundled: Server) -> None:
    for words, method in (("2: dog + beach", "mv_vse"), ("a dog", "mv_vse+avse")):
        answer = bundled.ask("search_text", words, method, 3)
        assert answer["matches"] is None
        assert {hit["probability"] for hit in answer["hits"]} == {None}


def test_a_scene_finds_itself_and_its_captions(bundled: Server, gallery: GalleryInfo) -> None:
    image = 17
    answer = bundled.ask_image(PACK / "gallery" / gallery.images[image].file, "vse_infty", 5)
    assert answer["images"][0]["image_id"] == image
    assert answer["unfamiliar"] is False
    true = {c.text for c in gallery.captions if image in c.relevant}
    assert sum(caption["text"] in true for caption in answer["captions"]) >= 3


def test_every_method_of_the_pack_is_measured(bundled: Server) -> None:
    info = bundled.ask("info")
    assert info["gallery"]["searchable"] == info["gallery"]["pictures"] == 1000
    assert info["gallery"]["refused"] == []
    for method in info["methods"].values():
        assert method["metrics"]["command"].startswith("python -m training.evaluate")
        assert method["parity"]["ranking"] is True


LIGHTEST = """map => {
  const pixels = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
  let best = 0;
  for (let i = 0; i < map.width * map.height; i++)
    if (pixels[4 * i + 3] < pixels[4 * best + 3]) best = i;
  return [best % map.width / map.width, Math.floor(best / map.width) / map.height];
}"""  # where the shade over an image is thinnest, in 0..1


@dataclass(frozen=True)
class TwoAnimals:
    """A scene that shows a kangaroo and a whale, with a caption that names both."""

    image: int
    scene: GalleryImage
    mask: np.ndarray

    @classmethod
    def of(cls, gallery: GalleryInfo, image: int = 5) -> "TwoAnimals":
        """The scene of the bundled gallery, or another of its images."""
        scene = gallery.images[image]
        assert scene.mask is not None
        return cls(image, scene, np.asarray(Image.open(PACK / "gallery" / scene.mask)))

    @property
    def words(self) -> str:
        """The caption."""
        texts = [caption.text for caption in self.scene.captions]
        return next(text for text in texts if "kangaroo" in text and "whale" in text)

    def lit(self, canvas: Locator) -> set[str]:
        """What stands in the cell where a canvas over the scene is lightest."""
        x, y = canvas.evaluate(LIGHTEST)
        size = len(self.mask)
        row, column = int(7 * y) * size // 7, int(7 * x) * size // 7
        cell = self.mask[row : row + size // 7 + 1, column : column + size // 7 + 1]
        return {self.scene.objects[value - 1].name for value in np.unique(cell) if value}


def _names(gallery: GalleryInfo, image: int) -> set[str]:
    return {thing.name for thing in gallery.images[image].objects}


def show_word(page: Page, bar: str, name: str, *, tap: bool) -> None:
    """Points at a word of an evidence bar, or taps it."""
    word = page.locator(f"{bar} .pv-ev-word", has_text=name)
    if tap:
        word.click()
        expect(word).to_have_attribute("aria-pressed", "true")
    else:
        word.hover()
    expect(page.locator(f"{bar} .pv-ev-said")).to_contain_text(f"“{name}”")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_lights_the_object_that_it_names(
    visitor: Visitor, gallery: GalleryInfo, width: int
) -> None:
    animals = TwoAnimals.of(gallery)
    visitor.resize(width, dark=width < 600)
    visitor.search(animals.words)
    page = visitor.page
    said = page.locator("#pv-evidence .pv-ev-said")
    expect(said).to_contain_text("The words together add")
    tile = page.locator(f'#pv-grid [data-picture="{animals.image}"]')
    expect(tile.locator(".pv-ev-map")).to_be_visible()  # as it is in the first row
    for name in ("kangaroo", "whale"):
        show_word(page, "#pv-evidence", name, tap=width < 600)
        expect(said).to_contain_text(f"“{name}” adds 0.")
        assert name in animals.lit(tile.locator(".pv-ev-map"))
    word = page.locator("#pv-evidence .pv-ev-word", has_text="whale")
    tile.click()
    head = page.locator("#pv-inspector .pv-subject")
    expect(head).to_contain_text(animals.scene.file)
    word.focus()
    page.keyboard.press("Home")  # to the first word, which the open image follows
    page.keyboard.press("ArrowRight")
    expect(page.locator('#pv-layers input[value="evidence:2"]')).to_be_checked()
    expect(page.locator("#pv-inspector")).to_contain_text("“kangaroo” brings")
    if width < 600:
        word.click()  # lets it go
    page.get_by_label("Show evidence").uncheck()
    page.mouse.move(0, 0)
    expect(page.locator("#pv-grid .pv-ev-map")).to_have_count(0)


@pytest.mark.browser
def test_the_page_says_what_an_unknown_word_is_read_as(visitor: Visitor) -> None:
    visitor.search("two fluffy labradors")
    line = visitor.page.locator("#pv-answer")
    expect(line).to_contain_text("Unknown to this pack: “fluffy”. “labradors” is read as “dogs”.")
    expect(line).not_to_contain_text("Nothing here matches")
    words = visitor.page.locator("#pv-evidence .pv-ev-word")
    expect(words.last).to_contain_text("dogs")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_lights_its_object_in_every_column(
    visitor: Visitor, gallery: GalleryInfo, width: int
) -> None:
    animals = TwoAnimals.of(gallery)
    visitor.resize(width, dark=width < 600)
    visitor.open_tab("Compare")
    page, bar = visitor.page, "#pv-cmp-evidence"
    page.fill("#pv-cmp-words :is(textarea, input)", animals.words)
    page.press("#pv-cmp-words :is(textarea, input)", "Enter")
    expect(page.locator(f"{bar} .pv-ev-said")).to_contain_text("VSE∞ adds 0.")
    maps = page.locator("#pv-cmp-results .pv-ev-map")
    expect(maps).to_have_count(0)  # until somebody asks for them
    word = f"{bar} .pv-ev-word"
    assert page.locator(word, has_text="kangaroo").count() == 1  # all methods read it alike
    for name in ("kangaroo", "whale"):
        show_word(page, bar, name, tap=width < 600)
        for title in ("VSE∞", "MV-VSE", "AVSE"):
            head = page.locator(".pv-cmp-head", has=page.locator("h2", has_text=title)).last
            column = int(head.locator(".pv-cmp-no").inner_text()) - 1
            expect(page.locator(f"{bar} .pv-ev-said")).to_contain_text(f"{title} adds 0.")
            place = f'[data-column="{column}"][data-id="{animals.image}"]'
            assert name in animals.lit(page.locator(f".pv-cmp-tile{place} .pv-ev-map"))
    if width < 600:
        page.locator(word, has_text="whale").click()  # lets it go
    page.mouse.move(0, 0)
    expect(maps).to_have_count(0)
    page.locator(word).first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(f"{bar} .pv-ev-said")).to_contain_text("“kangaroo”")
    expect(maps.first).to_be_visible()
    page.keyboard.press("Tab")
    page.get_by_label("Maps inside").check()
    first = page.locator('.pv-cmp-grid .pv-cmp-tile[data-row="1"]')
    expect(first.locator(".pv-ev-map")).to_have_count(7)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_a_part_of_a_picture_shows_what_it_found(visitor: Visitor, gallery: GalleryInfo) -> None:
    animals = TwoAnimals.of(gallery)
    kangaroo = next(o for o in animals.scene.objects if o.name == "kangaroo")
    ys, xs = np.nonzero(animals.mask == animals.scene.objects.index(kangaroo) + 1)
    size = len(animals.mask)
    cell = int(7 * ys.mean() / size) * 7 + int(7 * xs.mean() / size)
    page = visitor.page
    visitor.search(animals.words)
    visitor.choose_method("VSE++")
    page.locator(f'#pv-grid [data-picture="{animals.image}"]').click()
    page.get_by_role("button", name="Search with this picture").click()
    own = page.locator("#pv-evidence .pv-ev-own button")
    expect(own).to_have_count(49)
    # what came for an earlier question, as the visitor scrolled, is none of this one's
    page.evaluate("""() => {
        const bar = document.querySelector("#pv-evidence .pv-ev");
        const { hits } = JSON.parse(bar.dataset.evidence);
        for (const hit of Object.values(hits)) delete hit.tops;
        document.querySelector("#pv-grid .pv-tiles").pvEvidence = { of: "an earlier one", hits };
        document.dispatchEvent(new Event("pv-more"));
    }""")
    few = page.locator("#pv-grid .pv-tile").count()
    page.locator("#pv-grid .pv-further").scroll_into_view_if_needed()
    expect(page.locator("#pv-grid .pv-tile")).not_to_have_count(few)  # more, which join none of it
    own.nth(cell).hover()
    said = page.locator("#pv-evidence .pv-ev-said")
    expect(said).to_contain_text(f"Row {cell // 7 + 1}, column {cell % 7 + 1} of the picture")
    tiles = page.locator("#pv-grid [data-picture]")
    hits = tiles.evaluate_all("all => all.map(one => Number(one.dataset.picture))")
    assert animals.image not in hits  # what is asked with is no answer
    other = next(TwoAnimals.of(gallery, i) for i in hits if kangaroo.name in _names(gallery, i))
    canvas = page.locator(f'#pv-grid [data-picture="{other.image}"] .pv-ev-map')
    assert "kangaroo" in other.lit(canvas)
    page.locator("#pv-grid .pv-tile").nth(1).click()
    panel = page.locator("#pv-inspector")
    expect(panel).to_contain_text("The picture asked with brings")
    own.nth(cell).focus()
    page.keyboard.press("ArrowDown")
    expect(own.nth(cell + 7)).to_be_focused()
    below = f"Row {cell // 7 + 2}, column {cell % 7 + 1} of the picture"
    expect(panel).to_contain_text(below)


@pytest.mark.browser
def test_a_visit(visitor: Visitor, gallery: GalleryInfo, tmp_path: Path) -> None:
    visitor.search("a dog")
    visitor.choose_method("MV-VSE")
    visitor.look(0)
    panel = visitor.page.locator("#pv-inspector")
    file = panel.locator(".pv-subject h2").inner_text()
    image = [entry.file for entry in gallery.images].index(file)
    assert has(gallery, image, "dog")
    for caption in gallery.images[image].captions:
        expect(panel).to_contain_text(caption.text)
    expect(panel).to_contain_text("All words together bring")
    visitor.page.get_by_label("View 1", exact=False).first.check()
    expect(panel).to_contain_text("of 7 x 7 cells")
    upload = tmp_path / "mine.webp"
    upload.write_bytes((PACK / "gallery" / file).read_bytes())
    visitor.page.fill("#pv-words textarea, #pv-words input", "")
    visitor.page.get_by_text("A picture of yours", exact=True).first.click()
    visitor.page.set_input_files("#pv-upload input[type=file]", upload)
    answer = visitor.page.locator("#pv-answer")
    expect(answer).to_contain_text("like mine.webp")
    assert gallery.images[image].captions[0].text in visitor.hits()[0]
    expect(visitor.page.locator(".pv-captions li")).to_have_count(8)
