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

from app.gallery import thumbnails
from app.gallery.images import ImageError, open_image
from app.gallery.thumbnails import SIDE, DiskError, make_thumbnail
from tests.app import hostile
from tests.app.conftest import draw


def test_thumbnails_are_small_and_made_once(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    draw(3)[0].resize((1200, 900)).save(large)
    thumbnail = make_thumbnail(large, tmp_path / "thumbs", "one")
    with Image.open(thumbnail) as opened:
        assert opened.size == (SIDE, SIDE * 3 // 4)
    large.unlink()
    assert make_thumbnail(large, tmp_path / "thumbs", "one") == thumbnail
    assert [path.name for path in thumbnail.parent.iterdir()] == ["one.webp"]


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("side", [60, 1200])
def test_thumbnails_and_pictures_hold_no_metadata(tmp_path: Path, kind: str, side: int) -> None:
    path = tmp_path / f"photo.{kind}"
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    exif[ExifTags.Base.Artist] = "somebody"
    draw(3)[0].resize((side, side)).save(path, exif=exif, icc_profile=b"x" * 200, comment=b"home")
    thumbnail = make_thumbnail(path, tmp_path / "thumbs", "two")
    with Image.open(thumbnail) as opened:
        assert not opened.getexif()
        assert not {"exif", "xmp", "icc_profile", "comment"} & opened.info.keys()
    assert b"somebody" not in thumbnail.read_bytes()
    open_image(path).save(tmp_path / "shown.png")
    with Image.open(tmp_path / "shown.png") as opened:
        assert not opened.getexif()
        assert not opened.info


@pytest.mark.parametrize("junk", ["text", "cut", "large", "metadata", "link", "pipe"])
def test_what_lies_in_a_thumbnails_place_is_made_anew(tmp_path: Path, junk: str) -> None:
    path = tmp_path / "photo.png"
    draw(3)[0].resize((600, 600)).save(path)
    kept = make_thumbnail(path, tmp_path / "thumbs", "one")
    content = kept.read_bytes()
    kept.unlink()
    if junk == "text":
        kept.write_text("no picture")
    elif junk == "cut":
        kept.write_bytes(content[: len(content) // 2])
    elif junk == "large":
        draw(4)[0].resize((900, 900)).save(kept)
    elif junk == "metadata":
        exif = Image.Exif()
        exif[ExifTags.Base.Artist] = "somebody"
        draw(4)[0].save(kept, exif=exif)
    elif junk == "link":
        draw(4)[0].save(tmp_path / "secret.webp")
        kept.symlink_to(tmp_path / "secret.webp")
    else:
        os.mkfifo(kept)
    assert make_thumbnail(path, tmp_path / "thumbs", "one") == kept
    assert kept.read_bytes() == content
    assert not kept.is_symlink()


@pytest.mark.parametrize("trouble", ["a file", "full"])
def test_thumbnails_that_cannot_be_kept_are_a_sentence_about_the_disk(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photo.png"
    draw(3)[0].save(path)
    if trouble == "a file":
        (tmp_path / "thumbs").write_text("no folder")
    else:
        full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
        monkeypatch.setattr(tempfile, "mkstemp", Mock(side_effect=full))
    with pytest.raises(DiskError) as refusal:
        make_thumbnail(path, tmp_path / "thumbs", "one")
    assert "disk" in str(refusal.value)
    assert str(tmp_path) not in str(refusal.value)


def test_a_failed_thumbnail_leaves_nothing(tmp_path: Path) -> None:
    cut = hostile.write(tmp_path, "cut.jpg")
    with pytest.raises(ImageError):
        make_thumbnail(cut, tmp_path / "thumbs", "three")
    assert not (tmp_path / "thumbs").exists()


def test_all_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnails, "_written", 0)
    folder, photo = tmp_path / "thumbs", tmp_path / "photo.png"
    draw(3)[0].save(photo)
    first = make_thumbnail(photo, folder, "0")
    monkeypatch.setattr(thumbnails, "FOLDER_BYTES", 3 * first.stat().st_size)
    for number in range(1, 5):
        made = make_thumbnail(photo, folder, str(number))
        os.utime(made, (time.time() - 1e6 + number,) * 2)
    os.utime(first, (0, 0))
    assert make_thumbnail(photo, folder, "0") == first  # used, so it stays
    monkeypatch.setattr(thumbnails, "LOOK_AFTER", 1)
    last = make_thumbnail(photo, folder, "last")
    deadline = time.monotonic() + 10
    while len(list(folder.iterdir())) > 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {path.name for path in folder.iterdir()} == {first.name, "4.webp", last.name}
