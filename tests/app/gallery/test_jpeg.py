"""What a JPEG costs is known from its markers, before anything is decoded."""

import contextlib
import io
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.gallery.images import ImageError, open_image
from app.gallery.jpeg import MAX_SCANS, JpegError, read_jpeg
from tests.app import hostile
from tests.app.conftest import draw

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def encoded(mode: str = "RGB", **how: object) -> io.BytesIO:
    file = io.BytesIO()
    draw(3)[0].resize((100, 50)).convert(mode).save(file, "JPEG", **how)
    return file


def test_most_jpegs_have_one_scan_and_hold_no_samples() -> None:
    found = read_jpeg(encoded())
    assert (found.width, found.height, found.scans, found.coefficients) == (100, 50, 1, 0)


@pytest.mark.parametrize(
    ("mode", "how", "scans", "samples"),
    [
        ("RGB", {}, 10, 1.5),
        ("RGB", {"subsampling": 0}, 10, 3),
        ("L", {}, 6, 1),
        ("CMYK", {}, 18, 4),
    ],
)
def test_progressive_samples(mode: str, how: dict[str, int], scans: int, samples: float) -> None:
    found = read_jpeg(encoded(mode, progressive=True, **how))
    assert found.scans == scans
    least = 2 * samples * 100 * 50
    assert least <= found.coefficients < 2 * least


def test_what_is_hidden_in_a_scans_own_header_does_not_hide_scans() -> None:
    content = hostile.repeated_scans(64, 40)
    comment = b"\xff\xfe\x00\x08\xff\xd9\xff\xda\x00\x02"  # an end and a scan that are none
    for between in (comment, b"\xff\xff\xff", b"\x00\x11", b"\xff\xd0"):
        assert read_jpeg(io.BytesIO(content.replace(b"\xff\xda", between + b"\xff\xda"))).scans > 32
    with_more = io.BytesIO(encoded().getvalue() + content)  # phones put more after the end
    assert read_jpeg(with_more).scans == 1


@pytest.mark.parametrize("cut", [2, 20, 200, 400])
def test_half_a_jpeg_is_no_surprise(cut: int) -> None:
    content = encoded(progressive=True).getvalue()
    with contextlib.suppress(JpegError):
        assert read_jpeg(io.BytesIO(content[:cut])).scans < read_jpeg(io.BytesIO(content)).scans


def test_a_jpeg_of_nothing_but_parts_ends_soon() -> None:
    started = time.process_time()
    with pytest.raises(JpegError, match="parts"):
        read_jpeg(io.BytesIO(b"\xff\xd8" + b"\xff\xfe\x00\x02" * 5_000_000))
    assert time.process_time() - started < 5


def test_repeated_scans_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scans.jpg"
    path.write_bytes(hostile.repeated_scans(2000, 1200))
    started = time.process_time()
    with pytest.raises(ImageError, match=f"more than {MAX_SCANS} scans"):
        open_image(path)
    assert time.process_time() - started < 1
    path.write_bytes(hostile.repeated_scans(2000, MAX_SCANS))
    assert open_image(path).getpixel((9, 9)) == (128, 128, 128)


def test_large_ones_may_have_fewer_scans(tmp_path: Path) -> None:
    path = tmp_path / "scans.jpg"
    content = hostile.repeated_scans(64, 24).replace(b"\x00\x40\x00\x40", b"\x26\xac\x26\xac", 1)
    path.write_bytes(content)
    with pytest.raises(ImageError, match=r"more than 20 scans"):
        open_image(path)


def test_the_full_size_counts_not_the_fraction_that_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    path.write_bytes(hostile.progressive(13_300))
    tracemalloc.start()
    with pytest.raises(ImageError, match="13300 x 13300 pixels, more than the 100 million"):
        open_image(path)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_images_decoded_by_a_loop_in_python_are_small(tmp_path: Path) -> None:
    path = tmp_path / "plain.ppm"
    path.write_bytes(b"P3 3000 3000 255\n" + b"0 " * 1000)
    with pytest.raises(ImageError, match="4 million allowed of this kind of PPM"):
        open_image(path)
    path.write_bytes(b"P3 2 1 255\n 255 0 0  0 0 255\n")
    assert np.asarray(open_image(path)).tolist() == [[[255, 0, 0], [0, 0, 255]]]


def test_metadata_of_any_kind_does_not_disturb() -> None:
    exif = Image.Exif()
    exif[270] = "\xff\xda" * 3000
    found = read_jpeg(encoded(progressive=True, exif=exif, comment=b"\xff\xda" * 200))
    assert found.scans == 10
