"""Several packs at once: each session keeps its own, failures change nothing."""

import shutil
from pathlib import Path

import pytest

from app.packs import open_packs as module
from app.packs.open_packs import OpenPacks
from app.search.query import Term
from app.settings import Settings
from tests.app.conftest import IMAGES, draw, find, finish
from tests.export.editing import edited


@pytest.fixture
def open_packs(tiny_pack: Path, tmp_path: Path) -> OpenPacks:
    open_packs = OpenPacks(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    finish(open_packs.first.index)
    return open_packs


def variant(tiny_pack: Path, folder: Path, max_length: int, title: str = "Variant") -> Path:
    """A copy of the tiny pack with another checksum and title."""
    shutil.copytree(tiny_pack, folder)
    with edited(folder / "pack.json") as manifest:
        manifest["tokenizer"]["max_length"] = max_length
        manifest["title"] = title
    return folder


def test_another_pack_opens_beside_it(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    key = open_packs.load(str(variant(tiny_pack, tmp_path / "other", 9)))
    assert open_packs.get(key).info.tokenizer.max_length == 9
    assert open_packs.get("") is open_packs.first
    assert open_packs.get(key).index.wait(60)
    assert len(find(open_packs.get(key), "a bar", "vsepp", 99)) == IMAGES


def test_one_pack_is_not_opened_twice(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    assert open_packs.load(str(tiny_pack)) == ""
    other = variant(tiny_pack, tmp_path / "other", 9)
    key = open_packs.load(str(other))
    before = open_packs.get(key)
    assert open_packs.load(str(other)) == key
    assert open_packs.get(key) is before


def test_old_guests_make_room(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GUESTS", 2)
    keys = [open_packs.load(str(variant(tiny_pack, tmp_path / f"v{i}", i))) for i in (5, 6)]
    open_packs.get(keys[0])
    newest = open_packs.load(str(variant(tiny_pack, tmp_path / "v7", 7)))
    assert open_packs.get(keys[0]) is not open_packs.get(newest)
    with pytest.raises(ValueError, match="closed to make room; load it again"):
        open_packs.get(keys[1])


@pytest.mark.parametrize("address", ["", "  ", "no such thing", "/etc/passwd", "a/b/c"])
def test_what_names_no_pack_is_refused(open_packs: OpenPacks, address: str) -> None:
    with pytest.raises(ValueError, match="name"):
        open_packs.load(address)


def test_visitors_of_a_public_app_may_not_name_folders(tiny_pack: Path, tmp_path: Path) -> None:
    settings = Settings(str(tiny_pack), device="cpu", host="0.0.0.0")
    open_packs = OpenPacks(settings, tmp_path / "cache")
    with pytest.raises(
        ValueError, match=r"may not be loaded here; name one of photos_mini, scenes$"
    ):
        open_packs.load(str(tiny_pack))


def test_a_damaged_pack_changes_nothing(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    damaged = variant(tiny_pack, tmp_path / "damaged", 9)
    head = damaged / "vsepp" / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=r"head\.safetensors"):
        open_packs.load(str(damaged))
    assert find(open_packs.get(""), "a bar", "vsepp", 1)


def test_a_folder_of_pictures_replaces_the_packs_own(tiny_pack: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    draw(2)[0].save(photos / "mine.png")
    open_packs = OpenPacks(Settings(str(tiny_pack), photos, "cpu"), tmp_path / "cache")
    open_packs.first.index.start()
    assert [hit.file for hit in find(open_packs.first, "a bar", "vsepp", 9)] == ["mine.png"]
    image = Term(image=draw(2)[0])
    assert open_packs.first.search([image], "vsepp", 9, captions=9).captions == []


def test_a_pack_without_pictures_needs_a_gallery(tiny_pack: Path, tmp_path: Path) -> None:
    bare = variant(tiny_pack, tmp_path / "bare", 9)
    with edited(bare / "pack.json") as manifest:
        manifest["gallery"] = None
    with pytest.raises(ValueError, match="comes without pictures; give your own with --gallery"):
        OpenPacks(Settings(str(bare), device="cpu"), tmp_path / "cache")
    open_packs = OpenPacks(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    borrowed = open_packs.get(open_packs.load(str(bare)))
    assert len(borrowed.collection.images) == IMAGES


def test_a_pack_of_region_features_is_refused(tiny_pack: Path, tmp_path: Path) -> None:
    regions = variant(tiny_pack, tmp_path / "regions", 7)
    with edited(regions / "pack.json") as manifest:
        manifest["image_encoder"]["file"] = None
    with pytest.raises(ValueError, match=r"computed elsewhere, .* and reads no pictures"):
        OpenPacks(Settings(str(regions), device="cpu"), tmp_path / "cache")
    open_packs = OpenPacks(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    with pytest.raises(ValueError, match="reads no pictures"):
        open_packs.load(str(regions))
