"""Features of frozen image encoders, extracted once, and image encoders that are trained too."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export.encoders.sources import load_image_source
from polyview.export.pack.validation import check
from polyview.models.checkpoint import load_tensors
from polyview.models.preprocess import Preprocess
from polyview.training.data import features
from polyview.training.data.batches import batches
from polyview.training.data.features import Extraction, drop_damaged, read_features
from polyview.training.data.image_files import crops, prefetch
from polyview.training.data.open_split import open_split
from polyview.training.data.photographs import open_photographs
from polyview.training.data.split import Copies
from polyview.training.data.texts import TokenTable, build_tokenizer
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.trainer import Trainer, build_trainer, run_views
from tests.training.conftest import SIZE, WIDTH, write_encoder, write_photographs


class Scaled(torch.nn.Module):
    """Averages the quarters of an image, times a factor; counts the images."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.read = factor, 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Maps pixels (B, 3, S, S) to features (B, 4, 3)."""
        self.read += len(pixels)
        return self.factor * torch.nn.functional.adaptive_avg_pool2d(pixels, 2).flatten(2).mT


@pytest.fixture
def train(tmp_path: Path) -> Any:
    """Ten photographs with five captions each."""
    return open_photographs(write_photographs(tmp_path / "photos", {"train": 10}), "train")


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "backbone")


@pytest.fixture
def how(tmp_path: Path) -> Extraction:
    return Extraction(tmp_path / "cache", device="cpu")


def encoded(backbone: Path, images: list[Image.Image]) -> np.ndarray:
    """Returns the encoder's features (B, 4, WIDTH)."""
    encoder, preprocess, _ = load_image_source(backbone)
    with torch.inference_mode():
        return encoder(torch.from_numpy(preprocess(images))).numpy()


@pytest.mark.parametrize("worth", [1, 200], ids=["as a graph", "by torch"])
def test_features_are_those_of_the_encoder(
    worth: int, train: Any, backbone: Path, how: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "MIN_GRAPH_IMAGES", worth)
    made = read_features(train, backbone, how).features
    path = features.feature_file(train, backbone, how)
    assert made.shape == (10, 4, WIDTH)
    assert isinstance(made, np.memmap)
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, encoded(backbone, [*train.images]), rtol=2e-3, atol=2e-3)
    assert list(path.parent.iterdir()) == [path]


def test_threads_extract_the_same_features_once(train: Any, tmp_path: Path) -> None:
    def run(encoder: Scaled) -> None:
        out, cpu = tmp_path / "f.npy", torch.device("cpu")
        features.extract(encoder, Preprocess(SIZE), train.images, out, cpu)

    encoders = [Scaled(), Scaled()]
    threads = [threading.Thread(target=run, args=(encoder,)) for encoder in encoders]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert sorted(encoder.read for encoder in encoders) == [0, 10]
    (tmp_path / "f.npy").unlink()
    with pytest.raises(ValueError, match="not finite in half precision"):
        run(Scaled(1e6))


def test_damaged_images_are_named_or_skipped(train: Any, backbone: Path, how: Extraction) -> None:
    paths = train.images.paths
    good = paths[2].read_bytes()
    paths[2].write_bytes(good[: len(good) // 2])
    paths[7].write_text("no picture")
    with pytest.raises(ValueError, match="2 of 10 images cannot be read") as caught:
        read_features(train, backbone, how)
    assert all(f"{paths[row]} is not a readable image" in str(caught.value) for row in (2, 7))
    assert "--skip-damaged" in str(caught.value)
    assert not list(how.cache.rglob("*.npy"))  # no incomplete file
    assert len(drop_damaged(train, how).images) == 10
    drop_damaged(train, replace(how, skip_damaged=True))
    whole = read_features(drop_damaged(train, how), backbone, how)  # by the cached list
    assert (len(whole.features), len(whole.captions)) == (8, 40)
    assert whole.image_of.tolist() == np.repeat(np.arange(8), 5).tolist()
    assert whole.captions[10].startswith("A grey field")  # the caption of the fourth photograph
    fourth = encoded(backbone, [Image.open(paths[3])])
    np.testing.assert_allclose(whole.features[2:3], fourth, rtol=2e-3, atol=2e-3)


def test_crops_are_repeatable(train: Any, backbone: Path, how: Extraction) -> None:
    images, mirrored = train.images, 0
    versions = [crops(images, number) for number in (1, 1, 2)]
    for i, whole in enumerate(map(np.asarray, images)):
        first, again, other = (np.asarray(version[i]) for version in versions)
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
        assert 0.45 < first.shape[0] * first.shape[1] / (whole.shape[0] * whole.shape[1]) <= 1
        windows = np.lib.stride_tricks.sliding_window_view(whole, first.shape)[..., 0, :, :, :]
        matches = [(windows == crop).all(axis=(2, 3, 4)).any() for crop in (first, first[:, ::-1])]
        assert any(matches)
        mirrored += not matches[0]
    assert 0 < mirrored < 10
    data = read_features(train, backbone, how, copies=3)  # the images themselves and two crops
    assert isinstance(data.features, Copies)
    assert data.features.shape == (10, 4, WIDTH)
    assert len({part[0].tobytes() for part in data.features.versions}) == 3
    assert np.array_equal(read_features(train, backbone, how).features[:], data.features[:])
    assert len(list(how.cache.rglob("*.npy"))) == 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos/` and `backbone/`, an encoder with batch norms."""
    root = tmp_path_factory.mktemp("trained")
    write_photographs(root / "photos", {"train": 8, "val": 4}, captions=2)
    write_encoder(root / "backbone")
    return root


def build(world: Path, out: Path, *, resume: bool = False, **changes: Any) -> Trainer:
    values: dict[str, Any] = {
        "method": "vsepp",
        "arguments": {"embed_dim": 8},
        "data": f"{world}/photos",
        "backbone": f"{world}/backbone",
        "backbone_frozen": False,
        "text": {"word_dim": 6, "hidden_dim": 8},
        "optimizer": {"learning_rate": 1e-2},
        "size_augmentation": 0.0,
        "epochs": 2,
        "batch_size": 8,
    }
    config = check(TrainConfig, values | changes)
    extraction = Extraction(world / "cache", device="cpu")
    return build_trainer(config, out, resume=resume, extraction=extraction)


def test_batches_hold_the_pixels_of_each_captions_image(world: Path) -> None:
    _, preprocess, _ = load_image_source(world / "backbone", rounded=False)
    data = open_split(world / "photos", "train").with_pixels(preprocess).head(6)
    table = TokenTable(build_tokenizer(data.captions), data.captions)
    whole, early = (batches(data, table, 4, (0, 0)) for _ in range(2))
    for batch, same in zip(whole, prefetch(early), strict=True):
        for row, image in enumerate(batch.image_ids):
            with Image.open(world / f"photos/images/{int(image):03}.jpg") as file:
                assert torch.equal(batch.features[row], torch.from_numpy(preprocess([file])[0]))
        for name in ("features", "ids", "lengths", "image_ids"):
            assert torch.equal(getattr(same, name), getattr(batch, name))


def test_training_starts_from_the_encoders_weights(world: Path, tmp_path: Path) -> None:
    frozen = build(world, tmp_path / "frozen", backbone_frozen=True)
    trained = build(world, tmp_path / "trained", backbone_lr_scale=0.1)
    # the same heads over the same features, which the cache stores in half precision
    for ours, theirs in zip(trained.validation_views(), frozen.validation_views(), strict=True):
        torch.testing.assert_close(ours.embeddings, theirs.embeddings, atol=5e-3, rtol=0)
    assert {group["share"] for group in trained.optimizer.param_groups} == {1.0, 0.1}
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    best = trained.fit()
    after = trained.model.state_dict()
    statistics = [name for name in before if "running" in name or "num_batches" in name]
    assert statistics
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    moved = {n for n in before if n not in statistics and not torch.equal(before[n], after[n])}
    assert {f"image_encoder.{n}" for n, _ in trained.encoder.named_parameters()} <= moved  # type: ignore[union-attr]
    tensors, about = load_tensors(tmp_path / "trained" / "best.safetensors")
    assert about["image_encoder"]["arch"] == "scene_net"
    assert {name.split(".")[0] for name in tensors} == {"method", "text_encoder", "image_encoder"}
    extraction = Extraction(tmp_path, device="cpu")  # the metrics of the best epoch
    _, method, *views, split = run_views(tmp_path / "trained", "val", extraction)
    results = retrieval_metrics(score_matrix(method, *views), split.image_of)
    assert results == pytest.approx(best, abs=0.01)


def test_a_second_stage_starts_from_the_weights_of_the_first(world: Path, tmp_path: Path) -> None:
    def best_weights(run: str) -> dict[str, torch.Tensor]:
        return load_tensors(tmp_path / run / "best.safetensors")[0]

    build(world, tmp_path / "first", backbone_frozen=True, epochs=1).fit()
    second = build(world, tmp_path / "second", init=str(tmp_path / "first"), seed=5)
    encoder, _, _ = load_image_source(world / "backbone", rounded=False)
    start = {f"image_encoder.{name}": value for name, value in encoder.state_dict().items()}
    for name, value in (best_weights("first") | start).items():
        assert torch.equal(second.model.state_dict()[name], value)
    second.fit()
    third = build(world, tmp_path / "third", init=str(tmp_path / "second"))
    for name, value in best_weights("second").items():
        assert torch.equal(third.model.state_dict()[name], value)

    init = {"init": str(tmp_path / "first")}
    other = str(write_encoder(tmp_path / "other", seed=1))
    ended = {"init": str(tmp_path / "second"), "backbone_frozen": True}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "vse_infty", **init}, "is a run of vsepp, not of vse_infty"),
        ({"backbone": other, **init}, "trained with another encoder than backbone"),
        ({"text": {"word_dim": 6, "hidden_dim": 8, "min_count": 9}, **init}, "another tokenizer"),
        ({"arguments": {"embed_dim": 9}, **init}, "does not fit VSEPP"),
        ({"init": str(tmp_path / "none")}, "there is no weights file"),
        ({"init": str(world / "backbone")}, "holds no trained method; name another folder"),
        (ended, "trained its image_encoder, which is frozen here"),
    ]
    for changes, message in cases:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            build(world, tmp_path / "refused", **changes)
