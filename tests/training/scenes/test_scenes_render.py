"""Pixels, masks and folders of the scenes world. These need the emoji font."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from training.scenes import contact_sheet, glyphs
from training.scenes.__main__ import main
from training.scenes.classes import CLASSES
from training.scenes.generate import generate, make_scene
from training.scenes.glyphs import FontMissingError, find_font, sprite
from training.scenes.relevance import satisfies
from training.scenes.render import MIN_VISIBLE, Rendered
from training.scenes.store import SceneDataError, load_scenes
from training.scenes.world import SIZE, WORLD_VERSION


@pytest.fixture(scope="module")
def rendered() -> list[Rendered]:
    """Sixty scenes with pixels."""
    return [make_scene(0, "val", index) for index in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small rendered validation split."""
    out = tmp_path_factory.mktemp("scenes")
    assert generate(out, "val", 6, workers=1, progress=False)
    return out / "val"


@pytest.mark.font
def test_every_look_has_a_picture_of_its_own() -> None:
    pictures: dict[bytes, str] = {}
    for kind in CLASSES:
        for look in kind.looks:
            image = sprite(look.glyph, look.hue)
            assert min(image.size) > 60
            assert (np.asarray(image)[..., 3] > 127).mean() > 0.1, kind.name
            pixels = image.tobytes()
            assert pixels not in pictures, (kind.name, pictures[pixels])
            pictures[pixels] = kind.name


@pytest.mark.font
def test_unknown_glyph_is_refused() -> None:
    with pytest.raises(ValueError, match="no image for"):
        sprite("\ue000")


@pytest.mark.font
def test_same_seed_same_pixels_and_words(rendered: list[Rendered]) -> None:
    for index in (0, 7, 31):
        again = make_scene(0, "val", index)
        assert again.scene == rendered[index].scene
        assert np.array_equal(again.image, rendered[index].image)
        assert np.array_equal(again.instances, rendered[index].instances)
    assert make_scene(0, "test", 0).scene.objects != rendered[0].scene.objects
    assert make_scene(1, "val", 0).scene.objects != rendered[0].scene.objects


@pytest.mark.font
def test_masks_boxes_and_visibility_agree(rendered: list[Rendered]) -> None:
    for one in rendered:
        assert one.image.shape == (SIZE, SIZE, 3)
        assert one.image.dtype == one.instances.dtype == np.uint8
        assert int(one.instances.max()) == len(one.scene.objects)
        for index, item in enumerate(one.scene.objects):
            assert item.visible >= MIN_VISIBLE
            rows, columns = np.nonzero(one.instances == index + 1)
            x0, y0, x1, y1 = (round(value * SIZE) for value in item.box)
            assert 0 <= x0 < x1 <= SIZE
            assert 0 <= y0 < y1 <= SIZE
            assert x0 <= columns.min() <= columns.max() < x1
            assert y0 <= rows.min() <= rows.max() < y1
            if item.visible == 1.0:
                assert (x0, y0) == (columns.min(), rows.min())
                assert (x1, y1) == (columns.max() + 1, rows.max() + 1)
            assert 20 <= max(x1 - x0, y1 - y0) <= 120


@pytest.mark.font
def test_objects_stand_out_from_what_is_behind_them(rendered: list[Rendered]) -> None:
    faint = 0
    total = 0
    for one in rendered:
        image = one.image.astype(np.float32)
        for index in range(len(one.scene.objects)):
            mask = one.instances == index + 1
            ring = np.zeros_like(mask)
            for axis in (0, 1):
                for step in (-4, 4):
                    ring |= np.roll(mask, step, axis)
            ring &= one.instances == 0
            spread = np.abs(image[mask][:, None] - image[ring].mean(0)).max(-1).mean()
            faint += bool(spread < 18)
            total += 1
    assert faint <= 0.01 * total


@pytest.mark.font
def test_captions_are_true_of_rendered_scenes(rendered: list[Rendered]) -> None:
    for one in rendered:
        assert len(one.scene.captions) == 5
        assert all(satisfies(one.scene, caption.fact) for caption in one.scene.captions)


@pytest.mark.font
@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    generate(tmp_path / "one", "train", 60, workers=1, progress=False)
    generate(tmp_path / "two", "train", 60, workers=2, progress=False)
    for name in ("images.npy", "instances.npy", "scenes.jsonl", "meta.json"):
        first, second = (tmp_path / part / "train" / name for part in ("one", "two"))
        assert first.read_bytes() == second.read_bytes(), name
    data = load_scenes(tmp_path / "one/train")
    assert data.instances.shape == (60, SIZE // 4, SIZE // 4)


@pytest.mark.font
def test_folder_is_read_back(folder: Path, rendered: list[Rendered]) -> None:
    data = load_scenes(folder)
    assert len(data) == 6
    assert data.meta["world_version"] == WORLD_VERSION
    assert isinstance(data.images, np.memmap)
    for index, one in enumerate(rendered[:6]):
        assert data.scenes[index] == one.scene
        assert np.array_equal(data.images[index], one.image)
        assert np.array_equal(data.instances[index], one.instances)


@pytest.mark.font
def test_finished_folder_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "images.npy").stat().st_mtime_ns
    arguments = ["--out", str(folder.parent), "--split", "val", "--count", "6"]
    assert main(arguments) == 0
    assert "already there" in capsys.readouterr().out
    assert (folder / "images.npy").stat().st_mtime_ns == before
    assert main([*arguments, "--seed", "1"]) == 2
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in folder.parent.iterdir()] == ["val"]


@pytest.mark.font
def test_damaged_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SceneDataError, match="does not exist"):
        load_scenes(tmp_path / "nowhere")
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    (half / "meta.json").unlink()
    with pytest.raises(SceneDataError, match="no finished scenes"):
        load_scenes(half)
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    meta = json.loads((old / "meta.json").read_text())
    (old / "meta.json").write_text(json.dumps({**meta, "world_version": 0}))
    with pytest.raises(SceneDataError, match="world version 0"):
        load_scenes(old)
    short = tmp_path / "short"
    shutil.copytree(folder, short)
    lines = (short / "scenes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (short / "scenes.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(SceneDataError, match="promises"):
        load_scenes(short)
    (short / "scenes.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(SceneDataError, match="damaged"):
        load_scenes(short)


@pytest.mark.font
def test_half_written_folder_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("training.scenes.generate._render_into", fail)
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, "val", 3, progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.font
def test_contact_sheet(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    assert contact_sheet.main(["--data", str(folder), "--count", "4", "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000
    assert contact_sheet.main(["--data", str(tmp_path / "no"), "--out", str(out)]) == 2


def test_missing_font_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(glyphs.FONT_ENV, str(tmp_path / "none.ttf"))
    assert main(["--out", str(tmp_path / "out"), "--split", "val", "--count", "2"]) == 2
    error = capsys.readouterr().err
    assert "fonts-noto-color-emoji" in error
    assert glyphs.FONT_ENV in error
    assert error.count("\n") == 1
    monkeypatch.delenv(glyphs.FONT_ENV)
    monkeypatch.setattr(glyphs, "FONT_FILE", "no-such-font.ttf")
    with pytest.raises(FontMissingError, match="fonts-noto-color-emoji"):
        find_font()
