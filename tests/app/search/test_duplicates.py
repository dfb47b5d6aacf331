"""Images that look nearly the same are told from those that do not."""

import io
from pathlib import Path

from PIL import Image, ImageEnhance

from polyview.app.search.hits import fingerprint, first_alike
from tests.app.conftest import IMAGES, draw


def prints(folder: Path, images: list[Image.Image]) -> list:
    results = []
    for place, image in enumerate(images):
        image.save(folder / f"{place}.png")
        results.append(fingerprint(folder / f"{place}.png"))
    return results


def test_the_same_image_saved_in_other_ways_is_found(tmp_path: Path) -> None:
    image = draw(0)[0].resize((384, 288))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=50)
    images = [
        draw(1)[0], image, Image.open(packed), image.resize((192, 144)),
        ImageEnhance.Brightness(image).enhance(1.02), image.rotate(90, expand=True),
        image.crop((0, 0, 384, 200)),
    ]  # fmt: skip
    assert first_alike(prints(tmp_path, images)) == [0, 1, 1, 1, 1, 5, 6]


def test_images_that_differ_in_one_thing_are_no_duplicates(tmp_path: Path) -> None:
    images = [draw(index)[0] for index in range(IMAGES)]
    assert first_alike(prints(tmp_path, images)) == list(range(IMAGES))
    assert first_alike([]) == []


def test_no_chain_leads_from_one_image_to_another(tmp_path: Path) -> None:
    shades = [Image.new("RGB", (32, 32), (grey,) * 3) for grey in range(0, 60, 3)]
    firsts = first_alike(prints(tmp_path, shades))
    assert all(abs(place - first) * 3 <= 4 for place, first in enumerate(firsts))
    assert len(set(firsts)) == len(shades) / 2
