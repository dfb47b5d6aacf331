"""The image encoder trained along: pictures in batches, its weights, resuming, a second stage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from polyview.export.encoders.sources import load_image_source
from polyview.export.pack.validation import check
from polyview.models.checkpoint import load_tensors
from polyview.training.data.batches import batches
from polyview.training.data.features import Extraction, read_pixels
from polyview.training.data.image_files import ahead
from polyview.training.data.open_split import open_split
from polyview.training.data.texts import TokenTable, build_tokenizer
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.trainer import Trainer, build_trainer, run_views
from tests.published import save_bert
from tests.training.photographs import SIZE, write_encoder, write_photographs


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos/` and `backbone/`, an encoder with batch norms."""
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


def test_batches_hold_what_the_encoder_reads_of_each_caption_s_picture(world: Path) -> None:
    encoder, preprocess, _ = load_image_source(world / "backbone", rounded=False)
    data = read_pixels(open_split(world / "photos", "train"), encoder, preprocess).first(6)
    assert data.features.shape == (8, 3, SIZE, SIZE)
    table = TokenTable(build_tokenizer(data.captions), data.captions)
    whole = list(batches(data, table, 4, (0, 0)))
    assert len(whole) == 3
    for batch in whole:
        for row, image in enumerate(batch.image_ids):
            with Image.open(world / f"photos/images/{int(image):03}.jpg") as picture:
                assert torch.equal(batch.features[row], torch.from_numpy(preprocess([picture])[0]))
    for batch, same in zip(whole, ahead(batches(data, table, 4, (0, 0))), strict=True):
        for name in ("features", "ids", "lengths", "image_ids"):
            assert torch.equal(getattr(same, name), getattr(batch, name))


def test_training_begins_at_published_weights(world: Path, tmp_path: Path) -> None:
    frozen = build(world, tmp_path / "frozen", backbone_frozen=True)
    trained = build(world, tmp_path / "trained", backbone_lr_scale=0.1)
    # the same heads over the same features, but for their rounding
    for ours, theirs in zip(trained.validation_views(), frozen.validation_views(), strict=True):
        torch.testing.assert_close(ours.embeddings, theirs.embeddings, atol=5e-3, rtol=0)
    assert {group["share"] for group in trained.optimizer.param_groups} == {1.0, 0.1}
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    trained.fit()
    after = trained.model.state_dict()
    statistics = [name for name in before if "running" in name or "num_batches" in name]
    assert statistics
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    moved = {n for n in before if n not in statistics and not torch.equal(before[n], after[n])}
    assert {f"image_encoder.{n}" for n, _ in trained.encoder.named_parameters()} <= moved  # type: ignore[union-attr]
    tensors, about = load_tensors(tmp_path / "trained" / "best.safetensors")
    assert about["image_encoder"]["arch"] == "scene_net"
    assert {name.split(".")[0] for name in tensors} == {"method", "text_encoder", "image_encoder"}


@pytest.mark.parametrize("read_by", ["bigru", "bert"])
def test_a_run_without_an_export_scores_as_its_training_did(
    read_by: str, world: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {}
    if read_by == "bert":
        changes["text"] = {"arch": "bert", "source": str(save_bert(tmp_path / "bert"))}
    best = build(world, tmp_path / "run", **changes).fit()
    run = run_views(tmp_path / "run", "val", Extraction(tmp_path, device="cpu"))
    name, method, images, texts, split = run
    results = retrieval_metrics(score_matrix(method, images, texts), split.image_of)
    assert name == "vsepp"
    assert results == pytest.approx(best, abs=0.01)


def test_a_second_stage_starts_where_the_first_ended(world: Path, tmp_path: Path) -> None:
    first = build(world, tmp_path / "first", backbone_frozen=True)
    first.fit()
    reached, _ = load_tensors(tmp_path / "first" / "best.safetensors")
    second = build(world, tmp_path / "second", init=str(tmp_path / "first"), seed=5)
    state = second.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in reached.items())
    encoder, _, _ = load_image_source(world / "backbone", rounded=False)
    for name, value in encoder.state_dict().items():
        assert torch.equal(state[f"image_encoder.{name}"], value)
    second.fit()

    third = build(world, tmp_path / "third", init=str(tmp_path / "second"))
    reached, _ = load_tensors(tmp_path / "second" / "best.safetensors")
    assert all(torch.equal(third.model.state_dict()[n], value) for n, value in reached.items())
    with pytest.raises(ValueError, match="trained its image_encoder, which is frozen here"):
        build(world, tmp_path / "a", init=str(tmp_path / "second"), backbone_frozen=True)


def test_a_start_that_does_not_fit_is_refused(world: Path, tmp_path: Path) -> None:
    build(world, tmp_path / "first", backbone_frozen=True, epochs=1).fit()
    other = write_encoder(tmp_path / "other", seed=1)
    start = {"init": str(tmp_path / "first")}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "vse_infty"}, "is a run of vsepp, not of vse_infty"),
        ({"backbone": str(other)}, "trained with another encoder than backbone"),
        ({"text": {"word_dim": 6, "hidden_dim": 8, "min_count": 9}}, "with another tokenizer"),
        ({"arguments": {"embed_dim": 9}}, "does not fit VSEPP"),
        ({"init": str(tmp_path / "none")}, "there is no weights file"),
        ({"init": str(world / "backbone")}, "is not of a method's run"),
    ]
    for number, (changes, message) in enumerate(cases):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            build(world, tmp_path / f"{number}", **{**start, **changes})
