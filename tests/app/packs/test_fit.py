"""A pack over images that it does not know is named, with the one that knows them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.app.packs.description import mismatch
from polyview.app.packs.opened import Opened
from polyview.app.settings import PHOTOGRAPHS, SCENES, Settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    opened = Opened(Settings(device="cpu"), tmp_path_factory.mktemp("cache"))
    yield opened
    opened.close()


def test_noise_is_nothing_that_the_scenes_pack_knows(opened: Opened, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for i in range(4):
        noise = random.integers(256, size=(64, 96, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
    folder = opened.open_place(str(tmp_path))
    suits = opened.retriever("", folder)
    assert suits.info.name == PHOTOGRAPHS
    misfit = opened.retriever(SCENES, folder)
    assert misfit.index.wait(60)
    results = mismatch(misfit)
    assert results is not None
    assert results.better == PHOTOGRAPHS
    assert mismatch(suits) is None


def test_scenes_fit_their_own_pack_and_not_that_for_photographs(opened: Opened) -> None:
    assert mismatch(opened.first) is None
    misfit = opened.retriever(PHOTOGRAPHS, SCENES)
    results = mismatch(misfit)
    misfit.index.stop()
    assert results is not None
    assert results.better == SCENES


def test_scenes_in_a_folder_are_familiar(opened: Opened, tmp_path: Path) -> None:
    images = opened.first.collection.images[:6]
    for image in images:
        (tmp_path / image.file.rpartition("/")[2]).write_bytes(image.path.read_bytes())
    misfit = opened.retriever(SCENES, opened.open_place(str(tmp_path)))
    assert misfit.index.wait(60)
    assert mismatch(misfit) is None
