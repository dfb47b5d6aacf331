"""Views that come with a bundled pack: used where they fit, computed again where not."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from polyview.app.gallery import prepared
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import Collection, from_folder, from_pack
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, finish, variant
from tests.app.gallery.test_indexing import Counting


@pytest.fixture
def pack(tiny_pack: Path, tmp_path: Path) -> Path:
    """A copy of the tiny pack with its views beside it."""
    pack = shutil.copytree(tiny_pack, tmp_path / "pack")
    prepared.write(Runtime.load(pack, "cpu"), from_pack(pack))
    return pack


def fill(pack: Path, cache: Path, collection: Collection | None = None) -> tuple[Index, Counting]:
    counting = Counting(Runtime.load(pack, "cpu"))
    index = finish(Index(counting, collection or from_pack(pack), cache))  # type: ignore[arg-type]
    assert index.progress.stage == "ready"
    return index, counting


def test_no_picture_is_encoded_and_the_same_ones_are_found(pack: Path, tmp_path: Path) -> None:
    index, counting = fill(pack, tmp_path / "one")
    assert counting.images == 0
    assert len(index) == IMAGES
    prepared.place(load_info(pack)).unlink()
    encoded, counting = fill(pack, tmp_path / "two")
    assert counting.images == IMAGES
    for name in counting._runtime.methods:
        query = counting._runtime.text_views(["a red circle"], name)
        ids, scores = index.images[name].scores(query)
        fresh_ids, fresh = encoded.images[name].scores(query)
        assert ids.tolist() == fresh_ids.tolist()
        assert float(abs(scores - fresh).max()) < 1e-3


def test_another_pack_or_gallery_ignores_them(pack: Path, tiny_pack: Path, tmp_path: Path) -> None:
    info = load_info(pack)
    own = from_pack(pack)
    assert prepared.load(info, own) is not None
    assert prepared.load(info, replace(own, images=own.images[:-1])) is None
    _, counting = fill(pack, tmp_path / "cache", from_folder(pack / "gallery" / "images"))
    assert counting.images == IMAGES
    changed = variant(tiny_pack, tmp_path / "changed", 9)
    shutil.copy(prepared.place(info), prepared.place(load_info(changed)))
    assert prepared.load(load_info(changed), own) is None


def test_damage_costs_only_time(
    pack: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = prepared.place(load_info(pack))
    place.write_bytes(place.read_bytes()[:-9])
    index, counting = fill(pack, tmp_path / "cache")
    assert counting.images == len(index) == IMAGES
    assert "the images are encoded again" in caplog.text
