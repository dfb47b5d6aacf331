"""The bundled pack for photographs: what it states, and a folder of pictures searched with it."""

import csv
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from polyview.app.packs.opened import Opened
from polyview.app.settings import BUNDLED, PHOTOGRAPHS, Settings
from polyview.export.hub.packs import resolve
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import current_name
from polyview.export.space import Plan, build_space
from polyview.models import argument_defaults
from polyview.training.evaluate import main as evaluate
from polyview.training.loop.config import RECIPES, TrainConfig, load_recipe
from polyview.training.settings import to_values
from tests.app import hostile
from tests.app.conftest import draw
from tests.app.serving import Serve, Server
from tests.conftest import SHARED

PACK = BUNDLED / "photos"
MB = 2**20


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dog-coloured patch on grass, a blue sea, shapes, a copy, and files that are no pictures."""
    folder = tmp_path_factory.mktemp("mine")
    lawn = Image.new("RGB", (320, 240), (70, 140, 60))
    ImageDraw.Draw(lawn).ellipse((110, 90, 210, 170), fill=(120, 80, 40))
    lawn.save(folder / "lawn.jpg")
    sea = Image.new("RGB", (240, 320), (150, 200, 240))
    ImageDraw.Draw(sea).rectangle((0, 160, 240, 320), fill=(20, 70, 160))
    sea.save(folder / "sea.png")
    (folder / "sub").mkdir()
    draw(3)[0].save(folder / "sub/mine.png")
    shutil.copy(folder / "sub/mine.png", folder / "sub/same.png")
    for name in ("rotated.jpg", "text.jpg", "bomb.png"):
        hostile.write(folder, name)
    return folder


@pytest.fixture(scope="module")
def photos(serve: Serve, images: Path) -> Server:
    """The app over one's own folder, as the README says."""
    return serve("--gallery", images)


def test_all_that_is_bundled_stays_light() -> None:
    def size(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    assert size(PACK) < 30 * MB
    assert size(BUNDLED) < 90 * MB


def test_every_method_came_of_its_recipe_and_is_measured() -> None:
    info = load_info(PACK)
    recipes = {path.stem for path in (RECIPES / "photos").glob("*.toml")}
    assert set(info.methods) == {name for name in recipes if not name.startswith("backbone")}
    younger = to_values(TrainConfig())
    for name, method in info.methods.items():
        recipe = to_values(load_recipe(TrainConfig, f"photos/{name}"))
        made_by = (PACK / "training" / name / "config.toml").read_text("utf-8")
        made = tomllib.loads(made_by)
        made |= {folder: recipe[folder] for folder in ("data", "also")}
        made["text"] = younger["text"] | made["text"]
        for values in (made, recipe):
            values["arguments"] = {**argument_defaults(name), **values["arguments"]}
        assert {**younger, **made} == recipe
        with (PACK / "training" / name / "log.csv").open(encoding="utf-8") as log:
            best = max(float(row["rsum"]) for row in csv.DictReader(log))
        assert method.metrics is not None
        assert method.metrics.split == "val"
        # what ships is rounded to half precision, so recalls move by a few captions
        assert method.metrics.values["rsum"] == pytest.approx(best, abs=1.0)
    best = max(m.metrics.values["rsum"] for m in info.methods.values() if m.metrics)
    assert best >= 205


def test_its_former_name_still_means_it(images: Path, tmp_path: Path) -> None:
    info = load_info(PACK)
    before = replace(info, name="photos_mini", title="Photographs, small")
    assert before.checksum == info.checksum  # so what was encoded under that name holds
    assert current_name(before.name) == PHOTOGRAPHS  # a copy, such as one on the Hub
    assert resolve(str(BUNDLED / "photos_mini")) == PACK
    opened = Opened(Settings("photos_mini", images, "cpu"), tmp_path / "cache")
    assert opened.first.info.folder == PACK
    opened.close()
    build_space(tmp_path / "space", Plan(("scenes", "photos_mini")))
    packs = (tmp_path / "space/app/bundled").glob("*/pack.json")
    assert {path.parent.name for path in packs} == {"scenes", "photos"}


def test_a_folder_of_ones_own_is_searched(photos: Server) -> None:
    for words, file in (("the ocean", "sea.png"), ("a brown dog on the grass", "lawn.jpg")):
        hits = photos.get("search", q=words, method="vse_infty", k=2)["hits"]
        assert hits[0]["file"] == file
        assert len(hits) == 2


def test_a_folder_is_indexed_and_its_bad_files_are_listed(photos: Server, images: Path) -> None:
    gallery = photos.get("info")["gallery"]
    assert gallery["searchable"] == 4
    assert {bad["file"] for bad in gallery["refused"]} == {"text.jpg", "bomb.png"}
    assert gallery["copies"] == [{"file": "sub/same.png", "same_as": "sub/mine.png"}]
    hits = photos.get("search", q="a red bar", method="vse_infty", k=10)["hits"]
    assert {hit["file"] for hit in hits} == {"sub/mine.png", "rotated.jpg", "lawn.jpg", "sea.png"}
    answer = photos.search_image((images / "sub/mine.png").read_bytes()).json()
    assert answer["captions"] == []
    assert answer["images"][0]["file"] == "sub/mine.png"
    assert "4 images ready" in photos.log.read_text()


@pytest.mark.slow
@pytest.mark.shared
def test_the_stated_numbers_are_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    stated = load_info(PACK).methods["vse_infty"].metrics
    assert stated is not None
    data = ["--data", str(SHARED / "flickr8k"), "--split", "val"]
    evaluate(["--pack", str(PACK), "--method", "vse_infty", *data])
    row = next(line for line in capsys.readouterr().out.splitlines() if "| vse_infty" in line)
    assert f"{stated.values['rsum']:.1f}" in row
