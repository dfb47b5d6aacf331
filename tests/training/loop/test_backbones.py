"""Training of image encoders: distillation, and pretraining with the labels of scenes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export.encoders.sources import load_image_source
from polyview.training import distill, pretrain
from polyview.training.scenes.store import load_scenes, write_split
from polyview.training.scenes.world import LABELS
from tests.training.conftest import COLORS, check_resume, write_encoder, write_photographs


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> distill.DistillConfig:
    """Captioned photographs of one colour each, and a random teacher."""
    root = write_photographs(tmp_path_factory.mktemp("school"), {"train": 14, "val": 6}, captions=2)
    write_encoder(root / "teacher", widths=(4, 6, 8, 24), size=224)
    folders = {"data": str(root), "teacher": str(root / "teacher"), "cache": str(root / "cache")}
    small = {"widths": (6, 8, 8, 12), "blocks": (1, 1, 1), "crops": 3, "targets": 8}
    plan = {"epochs": 2, "retrieval_epochs": 1, "batch_size": 7, "warmup_steps": 1}
    return distill.DistillConfig.model_validate({**folders, **small, **plan, "precision": "fp32"})


@pytest.mark.slow
def test_targets_are_projected_teacher_maps(school: distill.DistillConfig, tmp_path: Path) -> None:
    student = distill.Distillation(school, tmp_path, resume=False)
    pixels, targets = student.load_crops(np.array([2, 9, 9]), np.array([1, 0, 2]))
    net, seen_as, _ = load_image_source(school.teacher, "cpu")
    squares = ((pixels + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    with torch.inference_mode():
        features = net(torch.from_numpy(seen_as.planes(squares)))
    expected = (features - student.mean) @ student.basis
    torch.testing.assert_close(targets, expected, atol=2e-2, rtol=0)
    assert not torch.equal(pixels[1], pixels[2])


def test_components_and_their_weights_have_mean_square_1() -> None:
    maps = 3 + np.random.default_rng(0).normal(size=(600, 49, 3)) * [2, 1, 0.5]
    mean, basis, weights = distill.principal_components(maps, 3)
    squares = ((torch.from_numpy(maps).float() - mean) @ basis).square()
    assert squares.mean().item() == pytest.approx(1.0, rel=0.02)
    assert (squares * weights).mean().item() == pytest.approx(1.0, rel=0.02)
    for each in (squares.mean(dim=(0, 1)), weights):
        assert (each[0] / each[2]).item() == pytest.approx(4.0, rel=0.1)  # of the deviations


def test_maps_are_mirrored_with_their_images() -> None:
    pixels = torch.rand(3, 3, 8, 8)
    pooled = torch.nn.AvgPool2d(2)
    maps = pooled(pixels).flatten(2).mT.contiguous()  # (B, 16 cells, 3)
    before = pixels.clone()
    distill.mirror(pixels, maps, torch.tensor([True, False, True]))
    torch.testing.assert_close(maps, pooled(pixels).flatten(2).mT)
    assert [torch.equal(a, b) for a, b in zip(before, pixels, strict=True)] == [False, True, False]


def test_saturation_contrast_and_brightness_change_in_this_order() -> None:
    pixels = np.random.default_rng(1).uniform(0.2, 0.8, (4, 3, 5, 5)).astype(np.float32)
    results = distill.change_colors(torch.from_numpy(pixels) * 2 - 1, 0.3, np.random.default_rng(2))
    drawn = 1 + np.random.default_rng(2).uniform(-0.3, 0.3, (3, 4))
    for image, *factors, result in zip(pixels, *drawn, (results + 1) / 2, strict=True):
        brightness, contrast, saturation = factors
        grey = image.mean(axis=0, keepdims=True)
        saturated = grey + saturation * (image - grey)
        contrasted = image.mean() + contrast * (saturated - image.mean())
        np.testing.assert_allclose(result, np.clip(brightness * contrasted, 0, 1), atol=1e-5)


@pytest.mark.slow
def test_images_without_captions(school: distill.DistillConfig, tmp_path: Path) -> None:
    also = tmp_path / "also"
    (also / "images").mkdir(parents=True)
    for name in ("spoken", "silent"):
        Image.new("RGB", (70, 60), COLORS["red"]).save(also / "images" / f"{name}.png")
    entry = {"filename": "spoken.png", "split": "train", "imgid": 0, "sentences": [{"raw": "red"}]}
    (also / "captions.json").write_text(json.dumps({"images": [entry]}))
    wider = school.model_copy(update={"also": (str(also),), "batch_size": 16})
    student = distill.Distillation(wider, tmp_path / "run", resume=False)
    assert (student.train.image_count, student.captioned_count) == (16, 15)
    assert student.train.captions[-1] == "red"
    student.random = np.random.default_rng(0)
    terms = [student.losses(np.array(rows), 1).keys() for rows in ([15], [14, 15])]
    assert [set(names) for names in terms] == [{"distillation"}, {"distillation", "retrieval"}]


@pytest.mark.slow
def test_a_deeper_student_starts_from_a_run(school: distill.DistillConfig, tmp_path: Path) -> None:
    first = distill.Distillation(school, tmp_path / "first", resume=False)
    first.fit()
    deeper = school.model_copy(
        update={"init": str(tmp_path / "first"), "blocks": (1, 1, 2), "side": 256}
    )
    second = distill.Distillation(deeper, tmp_path / "second", resume=False)
    pixels = torch.from_numpy(first.val_pixels.features[:3])
    trunks = [student.model.trunk.eval() for student in (first, second)]
    torch.testing.assert_close(trunks[1](pixels), trunks[0](pixels))
    before, fitted = (student.validate(0)["val_distillation"] for student in (first, second))
    assert fitted <= before + 0.02  # the linear map is fitted at once
    second.fit()
    net, seen_as, about = load_image_source(str(tmp_path / "second"))
    assert (seen_as.size, net.grid(256), net.dim) == (256, (8, 8), 12)
    assert {"val_distillation", "rsum"} <= about["metrics"]["val"].keys()
    check_resume(distill.Distillation, deeper, tmp_path / "second", tmp_path / "part")
    wider = school.model_copy(update={"init": str(tmp_path / "first"), "widths": (6, 8, 10, 12)})
    with pytest.raises(ValueError, match="stages"):
        distill.Distillation(wider, tmp_path / "third", resume=False)


@pytest.fixture(scope="module")
def scenes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scenes")
    write_split(out, "train", 16)
    write_split(out, "val", 8)
    return out


@pytest.mark.font
def test_cell_labels_agree_with_the_instance_map(scenes_folder: Path) -> None:
    data = load_scenes(scenes_folder / "val")
    all_labels = pretrain.cell_labels(data, np.arange(len(data)), 7)
    names = [LABELS[label] for label in pretrain.OBJECTS]
    for row, scene in zip(all_labels.max(axis=1), data.scenes, strict=True):  # in any cell
        displayed = {name for name, on in zip(names, row, strict=True) if on and ":" not in name}
        assert displayed == {item.name for item in scene.objects}
    labels, objects = all_labels[3].reshape(7, 7, -1), data.scenes[3].objects
    cells = np.asarray(data.instances[3]).reshape(7, 32, 7, 32).swapaxes(1, 2)
    for i, item in enumerate(objects):
        shares = (cells == i + 1).mean(axis=(2, 3))  # (7, 7)
        known = labels[..., names.index(item.name)] == 1
        assert (known | (shares < 0.15)).all()
        if [other.name for other in objects].count(item.name) == 1:
            assert (shares[known] > 0).all()


def test_r_precision_by_hand() -> None:
    logits = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    truth = np.array([[1, 0, 1, 0], [0, 0, 0, 1]])
    assert pretrain.object_r_precision(logits, truth) == pytest.approx(75.0)


@pytest.mark.font
def test_resumed_pretraining_has_the_same_weights(scenes_folder: Path, tmp_path: Path) -> None:
    small = {"widths": (8, 8, 12, 16), "blocks": (1, 1, 1), "data": str(scenes_folder)}
    plan = {"epochs": 2, "batch_size": 8, "precision": "fp32", "warmup_steps": 2}
    config = pretrain.PretrainConfig.model_validate({**small, **plan})
    pretrain.Pretraining(config, tmp_path / "whole", resume=False).fit()
    check_resume(pretrain.Pretraining, config, tmp_path / "whole", tmp_path / "part")
