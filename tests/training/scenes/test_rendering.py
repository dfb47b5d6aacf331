"""Pixels, masks and folders of the scenes world. These need the emoji font."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.gallery import load_gallery
from polyview.training.scenes import render
from polyview.training.scenes.classes import CLASSES
from polyview.training.scenes.relevance import relevant_images
from polyview.training.scenes.render import Rendered, find_font, sprite
from polyview.training.scenes.store import load_scenes, main, make_scene, write_split
from polyview.training.scenes.world import SIZE

ROOT = Path(__file__).parents[3]
BUNDLED = ROOT / "app" / "bundled" / "scenes"


@pytest.fixture(scope="module")
def rendered() -> list[Rendered]:
    """Sixty scenes with pixels."""
    return [make_scene(0, "test", index) for index in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small rendered test split."""
    out = tmp_path_factory.mktemp("scenes")
    assert write_split(out, "test", 6, workers=1)
    return out / "test"


@pytest.mark.font
def test_scenes_are_those_of_the_shipped_gallery(rendered: list[Rendered]) -> None:
    """The shipped numbers stay valid only as long as the same seed gives the same scenes."""
    gallery = load_gallery(BUNDLED)
    relevant = iter(relevant_images([entry.scene for entry in rendered]))
    for entry, image in zip(rendered, gallery.images, strict=False):
        mask = np.asarray(Image.open(gallery.folder / str(image.mask)))
        assert np.array_equal(entry.instances, mask)
        displayed = np.asarray(Image.open(gallery.folder / image.file).convert("RGB"), float)
        assert np.abs(displayed - entry.image).mean() < 6  # a lossy file
        scene = entry.scene
        assert (scene.setting, scene.time, scene.weather) == (
            *(image.setting, image.time, image.weather),
        )
        objects = [(item.name, item.color, item.box) for item in scene.objects]
        assert objects == [(item.name, item.color, item.box) for item in image.objects]
        for caption, stored in zip(scene.captions, image.captions, strict=True):
            assert (caption.text, caption.view) == (stored.text, stored.view)
            assert caption.mentions == stored.mentions
            rows = [row for row in stored.relevant if row < len(rendered)]
            assert next(relevant).tolist() == rows


@pytest.mark.font
def test_every_look_has_an_image_of_its_own() -> None:
    images: dict[bytes, str] = {}
    for kind in CLASSES:
        for look in kind.looks:
            image = sprite(look.glyph, look.hue)
            assert min(image.size) > 60
            assert (np.asarray(image)[..., 3] > 127).mean() > 0.1, kind.name
            pixels = image.tobytes()
            assert pixels not in images, (kind.name, images[pixels])
            images[pixels] = kind.name
    with pytest.raises(ValueError, match="no image for"):
        sprite("\ue000")


@pytest.mark.font
@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    for out, workers in (("one", 1), ("two", 2)):
        write_split(tmp_path / out, "train", 30, workers=workers)
    for name in ("images.npy", "instances.npy", "scenes.jsonl", "meta.json"):
        first, second = (tmp_path / part / "train" / name for part in ("one", "two"))
        assert first.read_bytes() == second.read_bytes(), name
    data = load_scenes(tmp_path / "one/train")
    assert np.array_equal(data.instances[29], make_scene(0, "train", 29).instances[2::4, 2::4])


@pytest.mark.font
def test_folder_is_read_back(folder: Path, rendered: list[Rendered]) -> None:
    data = load_scenes(folder)
    assert len(data) == 6
    assert isinstance(data.images, np.memmap)
    for index, item in enumerate(rendered[:6]):
        assert data.scenes[index] == item.scene
        assert np.array_equal(data.images[index], item.image)
        assert np.array_equal(data.instances[index], item.instances)


@pytest.mark.font
def test_damaged_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_scenes(tmp_path / "nowhere")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    meta = json.loads((copy / "meta.json").read_text())
    for change, message in (
        ({"world_version": 0}, "of another world .version 0"),
        ({"twins_version": 1}, "of another world"),  # written by an older version of this code
        ({"split": None}, "not finished"),
    ):
        (copy / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ValueError, match=message):
            load_scenes(copy)
    (copy / "meta.json").write_text(json.dumps(meta))
    lines = (copy / "scenes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for text, message in (("".join(lines[:-1]), "promises"), ("{", "damaged")):
        (copy / "scenes.jsonl").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load_scenes(copy)


@pytest.mark.font
def test_a_disk_without_room_is_named_before_anything_is_rendered(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    count = free // SIZE**2 // 3 + 1
    out = ["--out", str(tmp_path / "data"), "--split", "train", "--count", str(count)]
    with pytest.raises(SystemExit) as end:
        main(out)
    message = str(end.value)
    assert f"the disk is full: {tmp_path / 'data' / 'train'} needs more than" in message
    assert "delete files there" in message
    assert "\n" not in message
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.font
def test_a_disk_that_fills_up_ends_in_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files fails in the midst of writing, as a full disk does."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)); "
    code = limit + "from polyview.training.scenes.store import main; raise SystemExit(main())"
    arguments = ["--out", str(tmp_path), "--split", "val", "--count", "4", "--workers", "1"]
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert f"{tmp_path / 'val'} cannot be written: File too large" in message
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_missing_font_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(render.FONT_ENV, str(tmp_path / "none.ttf"))
    with pytest.raises(SystemExit, match=f"(?s)fonts-noto-color-emoji.*{render.FONT_ENV}"):
        main(["--out", str(tmp_path / "out"), "--split", "val", "--count", "2"])
    monkeypatch.delenv(render.FONT_ENV)
    monkeypatch.setattr(render, "FONT_FILE", "no-such-font.ttf")
    with pytest.raises(ValueError, match="fonts-noto-color-emoji"):
        find_font()
