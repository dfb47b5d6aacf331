"""The bundled pack of twins: what it states, what tells them apart, and whose encoder it reads."""

import csv
import tomllib

import numpy as np

from app.settings import BUNDLED
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from training.data.pack_gallery import from_pack
from training.loop.config import TrainConfig, load_recipe
from training.settings import to_values, with_new_names

PACK = BUNDLED / "scenes_twins"
KINDS = ("side", "height", "number", "color", "absence")
MB = 2**20


def test_every_method_came_of_its_recipe_and_is_measured_by_kind() -> None:
    info = load_info(PACK)
    assert set(info.methods) == {"vse_infty", "mvam", "pvse"}
    for name, method in info.methods.items():
        folder = PACK / "training" / name
        made = with_new_names(tomllib.loads((folder / "config.toml").read_text("utf-8")))
        recipe = to_values(load_recipe(TrainConfig, f"scenes_twins/{name}"))
        assert {**to_values(TrainConfig()), **made} == recipe
        with (folder / "log.csv").open(encoding="utf-8") as log:
            assert len(list(csv.DictReader(log))) == recipe["epochs"]
        assert method.metrics is not None
        assert method.metrics.split == "test"
        for kind in KINDS:
            assert method.metrics.values[f"{kind}_rsum"] > 200  # chance has 21


def test_what_the_results_say_is_what_was_measured() -> None:
    """docs/results.md: colours are told, numbers by PVSE, sides and absence by nobody."""
    found = {name: m.metrics for name, m in load_info(PACK, verify=False).methods.items()}
    values = {name: metrics.values for name, metrics in found.items() if metrics is not None}
    assert values["vse_infty"]["rsum"] > values["mvam"]["rsum"] > values["pvse"]["rsum"]
    for row in values.values():
        assert row["color_above_alike_low"] > 60
        for kind in ("side", "height", "absence"):
            assert 40 < row[f"{kind}_above_alike"] < 60
        assert row["evidence_pointing"] > 90 > row["evidence_random_head"] + 40
        assert row["evidence_error"] < 1e-5


def test_eighty_pairs_stay_light() -> None:
    gallery = load_gallery(PACK)
    assert len(gallery.images) == 160
    assert sum((gallery.folder / image.file).stat().st_size for image in gallery.images) < 4 * MB
    split = from_pack(PACK, "test")
    assert split.alike is not None
    assert np.bincount(split.alike).tolist() == [2] * 80
    assert {kind: split.kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 160)
    for left, right in zip(gallery.images[::2], gallery.images[1::2], strict=True):
        same = {thing.name for thing in left.objects} & {thing.name for thing in right.objects}
        assert len(same) >= 4
        for image in (left, right):
            assert all(caption.relevant for caption in image.captions)


def test_the_scenes_encoder_is_read_where_it_lies() -> None:
    info, scenes = load_info(PACK), load_info(BUNDLED / "scenes")
    file = str(info.image_encoder.file)
    assert not (PACK / file).exists()
    assert info.path(file) == scenes.folder / file
    assert info.files[file] == scenes.files[file]
