"""Images of every kind become the same upright RGB."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from polyview.models.preprocess import Preprocess, to_rgb


@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 17, 17), (0, 16, 16)])
def test_whole_rows_are_normalised_as_single_pixels(shape: tuple[int, int, int]) -> None:
    preprocess = Preprocess(size=16, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    pixels.reshape(-1, 3)[:256] = np.arange(256, dtype=np.uint8)[: pixels.size // 3, None]
    mean, std = (np.asarray(v, np.float32) * 255.0 for v in (preprocess.mean, preprocess.std))
    plain = ((pixels.astype(np.float32) - mean) / std).transpose(0, 3, 1, 2)
    planes = preprocess.planes(pixels)
    assert planes.dtype == np.float32
    assert planes.flags.c_contiguous
    np.testing.assert_array_equal(planes, plain)
    turned = pixels.transpose(0, 2, 1, 3)  # not contiguous
    np.testing.assert_array_equal(preprocess.planes(turned), plain.transpose(0, 1, 3, 2))


@pytest.mark.parametrize(
    ("mode", "color"),
    [("L", 200), ("RGBA", (200, 200, 200, 255)), ("P", 7), ("CMYK", (9, 9, 9, 0))],
)
def test_modes_become_rgb(mode: str, color: object) -> None:
    image = Image.new(mode, (8, 8), color)  # type: ignore[arg-type]
    if mode == "P":
        image.putpalette([200] * 768)
    rgb = to_rgb(image)
    assert rgb.mode == "RGB"
    assert np.ptp(np.asarray(rgb)) == 0


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.array([[0, 65535], [32768, 16384]], np.uint16)
    rgb = np.asarray(to_rgb(Image.fromarray(values)))[..., 0]
    np.testing.assert_allclose(rgb, [[0, 255], [127, 63]], atol=1)


def test_transparency_lies_over_white() -> None:
    rgb = to_rgb(Image.new("RGBA", (4, 4), (0, 0, 0, 0)))
    assert rgb.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["png", "jpg", "tif", "webp"])
def test_images_are_turned_as_pillow_turns_them(
    tmp_path: Path, orientation: int, kind: str
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / f"x.{kind}", exif=exif)
    turned = to_rgb(Image.open(tmp_path / f"x.{kind}"))
    expected = ImageOps.exif_transpose(Image.open(tmp_path / f"x.{kind}")).convert("RGB")
    np.testing.assert_array_equal(turned, expected)
    np.testing.assert_array_equal(to_rgb(turned), expected)  # not turned again


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 6), c) for c in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    image = Image.open(tmp_path / "a.gif")
    image.seek(1)
    assert to_rgb(image).getpixel((0, 0)) == (255, 0, 0)


def test_crop_keeps_the_centre() -> None:
    wide = Image.new("RGB", (40, 20))
    wide.paste((0, 255, 0), (10, 0, 30, 20))
    square = np.asarray(Preprocess(size=20, fit="crop").square(wide))
    assert (square[..., 1] == 255).all()
    assert Preprocess(fit="crop").visible_box(40, 20) == (0.25, 0.0, 0.75, 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 4}, "size must be 16 to 1024"),
        ({"std": [0, 1, 1]}, "std > 0"),
        ({"colour": 1}, "unknown preprocess keys: colour"),
    ],
)
def test_nonsense_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocess.from_json(values)
