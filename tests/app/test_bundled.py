"""The bundled packs: sizes, recipes, stated metrics, and the quality of their answers."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from polyview.app.api.search import Question, answer
from polyview.app.packs.description import describe_gallery, mismatch
from polyview.app.packs.state import AppState
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED, PHOTOGRAPHS, Settings
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import read_info
from polyview.models import argument_defaults
from polyview.training.evaluate import main as evaluate
from polyview.training.loop.config import RECIPES, TrainConfig, load_recipe
from tests.app.conftest import finish
from tests.conftest import SHARED

SCENES, PHOTOS, MOVING = (BUNDLED / name for name in ("scenes", "photos", "scenes_moving"))
MB = 2**20


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_bundled_packs_are_small() -> None:
    assert size(PHOTOS) < 30 * MB
    assert size(MOVING / "gallery") < 15 * MB
    assert size(BUNDLED) < 90 * MB


@pytest.mark.parametrize("pack", [PHOTOS, MOVING])
def test_methods_follow_their_recipes_and_have_metrics(pack: Path) -> None:
    info, usual = read_info(pack), TrainConfig().model_dump(mode="json")
    recipes = {path.stem for path in (RECIPES / pack.name).glob("*.toml")}
    if pack == PHOTOS:
        assert set(info.methods) == {name for name in recipes if not name.startswith("backbone")}
    for name, method in info.methods.items():
        folder = pack / "training" / name
        recipe = load_recipe(TrainConfig, f"{pack.name}/{name}").model_dump(mode="json")
        made = usual | tomllib.loads((folder / "config.toml").read_text("utf-8"))
        made |= {"data": recipe["data"], "also": recipe["also"]}
        made["text"] = usual["text"] | made["text"]
        for values in (made, recipe):
            values["arguments"] = argument_defaults(recipe["method"]) | values["arguments"]
        assert made == recipe
        with (folder / "log.csv").open(encoding="utf-8") as log:
            rows = list(csv.DictReader(log))
        assert method.metrics is not None
        measured = method.metrics.values
        if pack == PHOTOS:  # rounded to half precision, so recalls move by a few captions
            best = max(float(row["rsum"]) for row in rows)
            assert measured["rsum"] == pytest.approx(best, abs=1.0)
        else:
            assert len(rows) == recipe["epochs"]
            assert min(measured[f"{kind}_rsum"] for kind in ("free", "motion", "order")) > 60


@pytest.mark.soak
@pytest.mark.shared
def test_stated_metrics_are_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    stated = read_info(PHOTOS).methods["vse_infty"].metrics
    assert stated is not None
    data = ["--data", str(SHARED / "flickr8k"), "--split", "val"]
    evaluate(["--pack", str(PHOTOS), "--method", "vse_infty", *data])
    row = next(line for line in capsys.readouterr().out.splitlines() if "| vse_infty" in line)
    assert f"{stated.values['rsum']:.1f}" in row


@pytest.mark.parametrize(("words", "name"), [("a dog", "dog"), ("a red car", "car")])
def test_the_first_five_scenes_are_right(scenes: Retriever, words: str, name: str) -> None:
    hits = answer(scenes, Question(words), "vse_infty", 5).hits
    assert all(name in scenes.collection.images[hit.image_id].objects for hit in hits)


@pytest.mark.parametrize("method", ["mv_vse", "vse_infty"])
def test_absent_objects_are_refused_and_captions_are_not(scenes: Retriever, method: str) -> None:
    gibberish = answer(scenes, Question("asdfgh qwerty"), method, 3)
    assert gibberish.matches is False
    assert [item.word for item in gibberish.unknown] == ["asdfgh", "qwerty"]
    assert max(hit.probability or 0 for hit in gibberish.hits) < 0.1
    images = load_gallery(SCENES).images
    settings = {str(image.setting) for image in images}
    displayed = {(entry.name, image.setting) for image in images for entry in image.objects}
    refused = []
    for name in sorted({name for name, _ in displayed})[::8]:  # in settings without the object
        only = [f"setting:{item}" for item in settings if (name, item) not in displayed]
        if only:
            refused.append(not answer(scenes, Question(f"a {name}"), method, 3, only).matches)
    assert len(refused) >= 15
    assert np.mean(refused) >= 0.85
    captions = [images[i].captions[i // 50 % 5].text for i in range(0, 1000, 50)]
    results = [answer(scenes, Question(text), method, 3) for text in captions]
    assert sum(bool(result.matches) for result in results) >= 19
    for result in results:
        sure = [hit.probability or 0 for hit in result.hits]
        assert sure == sorted(sure, reverse=True)


def test_a_scene_finds_itself_and_its_captions(scenes: Retriever) -> None:
    result = answer(scenes, Question(image=scenes.image(17).decode()), "vse_infty", 5)
    assert (result.hits[0].image_id, result.unfamiliar) == (17, False)
    own = {caption.text for caption in load_gallery(SCENES).captions if 17 in caption.relevant}
    assert sum(caption.text in own for caption in result.captions) >= 3


def test_photographs_search_a_folder_and_list_files_that_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    lawn = Image.new("RGB", (320, 240), (70, 140, 60))  # a brown patch on grass
    ImageDraw.Draw(lawn).ellipse((110, 90, 210, 170), fill=(120, 80, 40))
    lawn.save(folder / "lawn.png")
    lawn.save(folder / "same.png")
    sea = Image.new("RGB", (240, 320), (150, 200, 240))  # below a sky
    ImageDraw.Draw(sea).rectangle((0, 160, 240, 320), fill=(20, 70, 160))
    sea.save(folder / "sea.png")
    (folder / "text.jpg").write_text("text with the name of an image")
    state = AppState(Settings(PHOTOGRAPHS, folder, "cpu"), tmp_path / "cache")
    mine = state.first
    assert mine.info.folder == PHOTOS
    finish(mine.index)
    for words, file in (("the ocean", "sea.png"), ("a brown dog on the grass", "lawn.png")):
        assert answer(mine, Question(words), "vse_infty", 2).hits[0].file == file
    gallery = describe_gallery(mine)
    assert gallery["progress"] == "2 images ready"
    assert [bad["file"] for bad in gallery["refused"]] == ["text.jpg"]
    assert gallery["copies"] == [{"file": "same.png", "same_as": "lawn.png"}]
    state.close()


@pytest.mark.slow
def test_packs_report_unfamiliar_images(tmp_path: Path) -> None:
    state = AppState(Settings(device="cpu"), tmp_path / "cache")
    random, folders = np.random.default_rng(0), {}
    for name in ("noise", "drawn"):
        (tmp_path / name).mkdir()
        for i in range(4):
            pixels = random.integers(256, size=(64, 96, 3), dtype=np.uint8)
            image = Image.fromarray(pixels) if name == "noise" else state.first.image(i).decode()
            image.save(tmp_path / name / f"{i}.png")
        folders[name] = state.open_collection(str(tmp_path / name))
    assert state.retriever("", folders["noise"]).info.name == PHOTOGRAPHS
    for pack, images, better in (
        ("scenes", folders["noise"], PHOTOGRAPHS),
        ("scenes", folders["drawn"], None),
        (PHOTOGRAPHS, folders["noise"], None),
        ("scenes", "scenes", None),
        (PHOTOGRAPHS, "scenes", "scenes"),
    ):
        retriever = state.retriever(pack, images)
        assert images == "scenes" or retriever.index.images_done.wait(60)
        result = mismatch(retriever)
        retriever.index.stop()
        assert (result.better if result else None) == better
    state.close()
