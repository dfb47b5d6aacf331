"""Images of all modes and orientations become upright RGB; sizes and normalisation."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from polyview.models.preprocess import Preprocess, to_rgb


@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 17, 19), (0, 16, 16)])
def test_pixels_are_normalised(shape: tuple[int, int, int]) -> None:
    preprocess = Preprocess(size=16, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    pixels = np.resize(np.arange(256, dtype=np.uint8), (3, *shape)).transpose(1, 3, 2, 0)
    mean, std = (np.asarray(v, np.float32) * 255.0 for v in (preprocess.mean, preprocess.std))
    plain = ((pixels.astype(np.float32) - mean) / std).transpose(0, 3, 1, 2)
    planes = preprocess.planes(pixels)
    np.testing.assert_array_equal(planes, plain, strict=True)
    assert planes.flags.c_contiguous


def test_modes_become_rgb() -> None:
    grey = Image.fromarray(np.array([[0, 65535], [32768, 16384]], np.uint16))
    np.testing.assert_allclose(np.asarray(to_rgb(grey))[..., 0], [[0, 255], [127, 63]], atol=1)
    palette = Image.new("P", (8, 8), 7)
    palette.putpalette([200] * 768)
    images: list[tuple[Image.Image, tuple[int, int, int]]] = [
        (Image.new("L", (8, 8), 200), (200, 200, 200)),
        (Image.new("RGBA", (8, 8), (200, 90, 10, 255)), (200, 90, 10)),
        (Image.new("RGBA", (8, 8), (0, 0, 0, 0)), (255, 255, 255)),  # over white
        (palette, (200, 200, 200)),
        (Image.new("CMYK", (8, 8), (255, 0, 0, 0)), (0, 255, 255)),
    ]
    for image, color in images:
        rgb = to_rgb(image)
        assert (rgb.mode, rgb.getcolors()) == ("RGB", [(64, color)])


@pytest.mark.parametrize("kind", ["png", "jpg", "tif", "webp"])
def test_exif_orientations_are_applied_once(tmp_path: Path, kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / f"x.{kind}", exif=exif)
        turned = to_rgb(Image.open(tmp_path / f"x.{kind}"))
        expected = ImageOps.exif_transpose(Image.open(tmp_path / f"x.{kind}")).convert("RGB")
        np.testing.assert_array_equal(turned, expected)
        np.testing.assert_array_equal(to_rgb(turned), expected)  # unchanged


def test_the_first_frame_of_an_animation_is_used(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 6), c) for c in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    image = Image.open(tmp_path / "a.gif")
    image.seek(1)
    assert to_rgb(image).getpixel((0, 0)) == (255, 0, 0)


def test_crop_keeps_the_centre_and_invalid_values_are_refused() -> None:
    wide = Image.new("RGB", (40, 20))
    wide.paste((0, 255, 0), (10, 0, 30, 20))
    square = np.asarray(Preprocess(size=20, fit="crop").square(wide))
    assert (square[..., 1] == 255).all()
    assert Preprocess(fit="crop").visible_box(40, 20) == (0.25, 0.0, 0.75, 1.0)
    for values, message in (
        ({"size": 4}, "size must be 16 to 1024"),
        ({"std": [0, 1, 1]}, "std from 0.0001 to 10"),
        ({"colour": 1}, "unknown preprocess keys: colour"),
    ):
        with pytest.raises(ValueError, match=message):
            Preprocess.from_json(values)
