"""Thumbnails: small, without metadata, made once, and of bounded size together."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import ExifTags, Image

from polyview.app.gallery import images, scan
from polyview.app.gallery.images import THUMBNAIL_SIDE as SIDE
from polyview.app.gallery.images import ImageError, open_image, sweep
from polyview.app.gallery.scan import CollectionImage
from tests.app import hostile
from tests.app.conftest import draw


def of(path: Path, folder: Path) -> Path:
    return CollectionImage(0, path, path.name).thumbnail(folder)


def test_thumbnails_are_small_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large.png"
    draw(3)[0].resize((1200, 900)).save(large)
    thumbnail = of(large, tmp_path / "thumbs")
    with Image.open(thumbnail) as opened:
        assert opened.size == (SIDE, SIDE * 3 // 4)
    with monkeypatch.context() as patch:
        patch.setattr(scan, "decode", None)
        assert of(large, tmp_path / "thumbs") == thumbnail
    draw(4)[0].save(large)
    assert of(large, tmp_path / "thumbs") != thumbnail


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("side", [60, 1200])
def test_thumbnails_and_images_hold_no_metadata(tmp_path: Path, kind: str, side: int) -> None:
    path = tmp_path / f"photo.{kind}"
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    exif[ExifTags.Base.Artist] = "somebody"
    draw(3)[0].resize((side, side)).save(path, exif=exif, icc_profile=b"x" * 200, comment=b"home")
    thumbnail = of(path, tmp_path / "thumbs")
    with Image.open(thumbnail) as opened:
        assert not opened.getexif()
        assert not {"exif", "xmp", "icc_profile", "comment"} & opened.info.keys()
    assert b"somebody" not in thumbnail.read_bytes()
    open_image(path).save(tmp_path / "large.png")
    with Image.open(tmp_path / "large.png") as opened:
        assert not opened.getexif()
        assert not opened.info


@pytest.mark.parametrize("trouble", ["a file", "full"])
def test_thumbnails_that_cannot_be_written_are_a_sentence_about_the_disk(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photo.png"
    draw(3)[0].save(path)
    if trouble == "a file":
        (tmp_path / "thumbs").write_text("no folder")
    else:
        full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
        monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=full))
    with pytest.raises(ImageError, match="another disk") as refusal:
        of(path, tmp_path / "thumbs")
    assert str(tmp_path) not in str(refusal.value)


def test_a_failed_thumbnail_leaves_nothing(tmp_path: Path) -> None:
    cut = hostile.write(tmp_path, "cut.jpg")
    with pytest.raises(ImageError):
        of(cut, tmp_path / "thumbs")
    assert not (tmp_path / "thumbs").exists()


def test_all_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "thumbs"
    made = []
    for number in range(5):
        path = tmp_path / f"{number}.png"
        draw(3)[0].save(path)
        made.append(of(path, folder))
        os.utime(made[-1], (time.time() - 1e6 + number,) * 2)
    os.utime(made[0], (0, 0))
    assert of(tmp_path / "0.png", folder) == made[0]  # used, so it stays
    monkeypatch.setattr(images, "THUMBNAILS_BYTES", 3 * made[0].stat().st_size)
    sweep(folder)
    assert set(folder.iterdir()) == {made[0], made[3], made[4]}
