"""A student of a teacher: what it is shown, what it learns, and that it can be interrupted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from export.encoders.sources import load_image_source
from models.checkpoint import load_tensors, save_tensors
from models.encoders.scene_net import SceneNet
from models.preprocess import Preprocess
from training.distill import Distillation, DistillConfig, change_colors, component_weights
from training.loop import teacher
from training.loop.runs import BEST, LAST
from training.loop.teacher import Lesson

pytestmark = pytest.mark.slow

COLORS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220)}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> DistillConfig:
    """Captioned photographs of one colour each, and a teacher with random weights."""
    root, random = tmp_path_factory.mktemp("school"), np.random.default_rng(0)
    entries = []
    (root / "images").mkdir()
    for i in range(20):
        name, color = list(COLORS.items())[i % 3]
        noise = random.integers(-30, 30, (60, 80, 3))
        pixels = np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{i}.png")
        sentences = [{"raw": f"a {name} field {word}", "tokens": []} for word in ("one", "two")]
        split = "train" if i < 14 else "val"
        entries.append({"filename": f"{i}.png", "split": split, "imgid": i, "sentences": sentences})
    (root / "dataset_flickr8k.json").write_text(json.dumps({"images": entries}))
    torch.manual_seed(0)
    about = {
        "kind": "image_backbone",
        "arch": "scene_net",
        "arguments": {"widths": [4, 6, 8, 24], "blocks": [1, 1, 1]},
        "preprocess": Preprocess(std=(0.25, 0.25, 0.25)).to_json(),
    }
    net = SceneNet((4, 6, 8, 24), (1, 1, 1))
    save_tensors(root / "teacher" / BEST, net.state_dict(), about)
    return DistillConfig(
        data=str(root), teacher=str(root / "teacher"), cache=str(root / "cache"),
        widths=(6, 8, 8, 12), blocks=(1, 1, 1), crops=3, targets=8, epochs=2, retrieval_epochs=1,
        batch_size=7, warmup_steps=1, precision="fp32",
    )  # fmt: skip


def test_targets_are_the_teachers_maps_of_the_same_crops(school: DistillConfig) -> None:
    lesson = teacher.prepare(school, "train", Preprocess(), CPU)
    assert lesson.targets.shape == (14 * 3, 49, 8)
    spread = np.square(lesson.targets.astype(np.float32)).reshape(14, 3, -1).mean(axis=(0, 2))
    assert spread[0] == pytest.approx(1.0, rel=0.02)  # whole photographs, which they are fitted on
    rows, crops = np.array([2, 9]), np.array([1, 0])
    net, seen_as, _ = load_image_source(school.teacher, "cpu")
    with torch.inference_mode():
        features = net(torch.from_numpy(seen_as.planes(lesson.pixels(rows, crops))))
    (basis,) = (load_tensors(p)[0] for p in Path(school.cache).rglob("components.safetensors"))
    expected = (features - basis["mean"]) @ basis["map"]
    np.testing.assert_allclose(lesson.maps(rows, crops), expected.numpy(), atol=5e-3)


def test_crops_lie_inside_and_keep_to_their_areas(school: DistillConfig) -> None:
    boxes = teacher.random_boxes(500, 4, 224, school)
    assert (boxes[:, 0] == (0, 0, 224, 224)).all()
    assert boxes.min() >= 0
    assert boxes.max() <= 224.01
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    areas = (width * height / 224**2)[:, 1:]
    assert areas.max() <= 1.0001
    assert 0.9 * school.smallest < areas.min() < 1.2 * school.smallest  # a side is at most 1
    assert 0.5 < (width / height).min() < 0.8


def test_a_crop_shows_what_the_box_says() -> None:
    square = np.zeros((8, 8, 3), np.uint8)
    square[:4, 4:] = 200
    bright = teacher.cut(square, np.array([4, 0, 8, 4]))
    assert bright.shape == (8, 8, 3)
    assert (bright[:6, 2:] == 200).all()  # at the edges the filter reads what lies beyond
    half = teacher.cut(square, np.array([0, 0, 8, 4]))
    assert (half[:, :2] == 0).all()
    assert (half[:6, 6:] == 200).all()
    assert teacher.cut(square, np.array([0, 0, 8, 8])) is square


def test_colors_change_within_bounds() -> None:
    pixels = np.random.default_rng(1).uniform(0, 255, (5, 6, 6, 3)).astype(np.float32)
    same = change_colors(pixels, 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(same, pixels, atol=1e-3)
    changed = change_colors(pixels, 0.5, np.random.default_rng(0))
    assert changed.min() >= 0
    assert changed.max() <= 255
    assert np.abs(changed - pixels).mean() > 5


def test_colors_change_one_after_the_other() -> None:
    pixels = np.random.default_rng(1).integers(60, 120, (4, 5, 5, 3)).astype(np.uint8)
    found = change_colors(pixels, 0.3, np.random.default_rng(2))
    drawn = 1 + np.random.default_rng(2).uniform(-0.3, 0.3, (3, 4))
    for image, brightness, contrast, saturation, result in zip(pixels, *drawn, found, strict=True):
        grey = image.mean(axis=2, keepdims=True)
        saturated = grey + saturation * (image - grey)
        contrasted = image.mean() + contrast * (saturated - image.mean())
        np.testing.assert_allclose(result, np.clip(brightness * contrasted, 0, 255), atol=1e-3)


def test_weights_leave_the_error_of_the_mean_at_1() -> None:
    spread = np.array([4.0, 1.0, 0.25])
    targets = np.random.default_rng(0).normal(size=(600, 49, 3)) * np.sqrt(spread)
    weights = component_weights(targets.astype(np.float16)).numpy()
    assert weights[0] / weights[2] == pytest.approx(16.0, rel=0.1)
    assert (np.square(targets) * weights).mean() == pytest.approx(1.0, rel=0.05)


def test_photographs_without_captions_have_the_teacher_alone(
    school: DistillConfig, tmp_path: Path
) -> None:
    also = tmp_path / "also"
    (also / "images").mkdir(parents=True)
    for name in ("spoken", "silent"):
        Image.new("RGB", (70, 60), COLORS["red"]).save(also / "images" / f"{name}.png")
    entry = {"filename": "spoken.png", "split": "train", "imgid": 0, "sentences": [{"raw": "red"}]}
    (also / "captions.json").write_text(json.dumps({"images": [entry]}))
    wider = school.changed(also=(str(also),), batch_size=16)
    student = Distillation(wider, tmp_path / "run", resume=False)
    assert len(student.train.squares) == 16
    assert student.train.captioned == 15
    assert student.train.captions[-1] == "red"
    asked = []
    caption_of = Lesson.caption_of

    def watch(self: Lesson, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        asked.append(rows)
        return caption_of(self, rows, random)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lesson, "caption_of", watch)
        student.fit()
    assert [rows.tolist() for rows in asked] == [list(range(15))]


@pytest.mark.parametrize("deeper", [False, True])
def test_a_student_learns_and_goes_on_bit_for_bit(
    school: DistillConfig, deeper: bool, tmp_path: Path
) -> None:
    if deeper:
        Distillation(school.changed(epochs=1), tmp_path / "first", resume=False).fit()
        school = school.changed(init=str(tmp_path / "first"), blocks=(1, 1, 2))
    Distillation(school, tmp_path / "whole", resume=False).fit()
    half = Distillation(school, tmp_path / "parts", resume=False)
    epochs = half._epoch

    def once(epoch: int) -> dict[str, float]:
        if epoch == 1:
            raise KeyboardInterrupt
        return epochs(epoch)

    half._epoch = once  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        half.fit()
    Distillation(school, tmp_path / "parts", resume=True).fit()
    whole, parts = (load_tensors(tmp_path / name / LAST)[0] for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    net, _, about = load_image_source(str(tmp_path / "whole"), "cpu")
    assert net.dim == 12
    assert {"val_distillation", "rsum"} <= about["metrics"]["val"].keys()
    rows = (tmp_path / "whole" / "log.csv").read_text().splitlines()
    assert len(rows) == 3


def test_a_deeper_student_starts_where_another_ended(school: DistillConfig, tmp_path: Path) -> None:
    first = Distillation(school, tmp_path / "first", resume=False)
    first.fit()
    deeper = school.changed(init=str(tmp_path / "first"), blocks=(1, 1, 2), side=256, epochs=1)
    second = Distillation(deeper, tmp_path / "second", resume=False)
    pixels = first.val.pixels(np.arange(3), np.zeros(3, int))
    first.model.eval()
    second.model.eval()
    cells = [student._cells(pixels) for student in (first, second)]
    torch.testing.assert_close(cells[1], cells[0])
    found, fitted = (student.validate(0)["val_distillation"] for student in (first, second))
    assert fitted <= found + 0.02  # the map is as good as it can be at once
    second.fit()
    net, seen_as, _ = load_image_source(str(tmp_path / "second"))
    assert seen_as.size == 256
    assert net.grid(256) == (8, 8)
    wider = school.changed(init=str(tmp_path / "first"), widths=(6, 8, 10, 12))
    with pytest.raises(ValueError, match="stages"):
        Distillation(wider, tmp_path / "third", resume=False)


def test_maps_of_another_size_are_refused(school: DistillConfig, tmp_path: Path) -> None:
    wider = school.changed(widths=(6, 8, 12), blocks=(1, 1))
    with pytest.raises(ValueError, match="teacher's map has 49 cells and the student's 196"):
        Distillation(wider, tmp_path, resume=False)
