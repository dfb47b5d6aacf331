"""The bundled pack of clips: what it states, and clips as the sets of frames its methods read."""

import csv
import tomllib

import numpy as np
import pytest
import torch

from polyview.app.settings import BUNDLED
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from polyview.training.data.image_files import read_frames
from polyview.training.data.open_split import from_pack
from polyview.training.loop.config import TrainConfig, load_recipe
from polyview.training.scenes.motion import FRAMES
from polyview.training.settings import to_values

PACK = BUNDLED / "scenes_moving"
MB = 2**20


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime.load(PACK, "cpu")


def test_every_method_came_of_its_recipe_and_is_measured_by_kind() -> None:
    info = load_info(PACK)
    assert {"vsepp", "vse_infty", "pvse", "mvam"} <= set(info.methods)
    assert info.image_encoder.frames == FRAMES
    for name, method in info.methods.items():
        folder = PACK / "training" / name
        made = tomllib.loads((folder / "config.toml").read_text("utf-8"))
        recipe = to_values(load_recipe(TrainConfig, f"scenes_moving/{name}"))
        made["text"] = to_values(TrainConfig())["text"] | made["text"]
        assert {**to_values(TrainConfig()), **made} == recipe
        with (folder / "log.csv").open(encoding="utf-8") as log:
            assert len(list(csv.DictReader(log))) == recipe["epochs"]
        assert method.metrics is not None
        assert method.metrics.split == "test"
        for kind in ("free", "motion", "order"):
            assert method.metrics.values[f"{kind}_rsum"] > 60  # chance has 11


def test_three_hundred_clips_stay_light() -> None:
    gallery = load_gallery(PACK)
    assert len(gallery.images) == 300
    assert sum((gallery.folder / image.file).stat().st_size for image in gallery.images) < 15 * MB
    split = from_pack(PACK, "test")
    assert split.image_count == 300
    assert split.frames == FRAMES
    assert split.alike is not None
    assert np.bincount(split.alike).tolist() == [2] * 150
    assert {kind: split.kinds.count(kind) for kind in set(split.kinds)} == {
        **{"free": 600, "motion": 300, "order": 600}
    }


def test_a_clip_is_its_frames_in_order_and_one_frame_an_image(runtime: Runtime) -> None:
    gallery = load_gallery(PACK)
    frames = read_frames(gallery.folder / gallery.images[0].file, FRAMES)
    features = runtime.image_features(frames)
    assert features.shape == (FRAMES, 1, runtime.info.image_encoder.dim)
    clip = features.transpose(0, 1)  # (1, FRAMES, d)
    for name, method in runtime.methods.items():
        ahead = runtime.image_views(clip, name).embeddings
        back = runtime.image_views(clip.flip(1), name).embeddings
        assert torch.allclose(ahead, back, atol=1e-5) != method.order_matters, name
        still = runtime.image_views(features[:1], name).embeddings
        text = runtime.text_views(["a dog runs by"], name).embeddings
        assert still.shape[2] == text.shape[2]
