"""Several packs at once: each session keeps its own, failures change nothing."""

import gc
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from app.packs import open_packs as module
from app.packs.open_packs import OpenPacks
from app.search.query import Term
from app.settings import Settings
from export.build.offer import PACK
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
    key = open_packs.open(variant(tiny_pack, tmp_path / "other", 9))
    assert open_packs.get(key).info.tokenizer.max_length == 9
    assert open_packs.get("") is open_packs.first
    assert open_packs.get(key).index.wait(60)
    assert len(find(open_packs.get(key), "a bar", "vsepp", 99)) == IMAGES


def test_one_pack_is_not_opened_twice(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    assert open_packs.open(tiny_pack) == ""
    other = variant(tiny_pack, tmp_path / "other", 9)
    key = open_packs.open(other)
    before = open_packs.get(key)
    assert open_packs.open(other) == key
    assert open_packs.get(key) is before


def test_old_guests_make_room(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GUESTS", 2)
    keys = [open_packs.open(variant(tiny_pack, tmp_path / f"v{i}", i)) for i in (5, 6)]
    open_packs.get(keys[0])
    newest = open_packs.open(variant(tiny_pack, tmp_path / "v7", 7))
    assert open_packs.get(keys[0]) is not open_packs.get(newest)
    with pytest.raises(ValueError, match="closed to make room; load it again"):
        open_packs.get(keys[1])


@pytest.mark.parametrize("address", ["", "  ", "no such thing", "/etc/passwd", "a/b/c"])
def test_what_names_no_pack_is_refused(open_packs: OpenPacks, address: str) -> None:
    with pytest.raises(ValueError, match="name"):
        open_packs.sources.find(PACK, address)


def test_visitors_of_a_public_app_may_not_name_folders(tiny_pack: Path, tmp_path: Path) -> None:
    settings = Settings(str(tiny_pack), device="cpu", host="0.0.0.0")
    open_packs = OpenPacks(settings, tmp_path / "cache")
    told = r"may not be loaded here; name one of photos, scenes, scenes_moving$"
    with pytest.raises(ValueError, match=told):
        open_packs.sources.find(PACK, str(tiny_pack))


def test_only_the_owner_is_sent_files_of_a_folder(
    tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stranger may have as it is came with the pack, or from that stranger."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "sent"))
    files = sent(tmp_path / "sent", "a.png")
    photos = tmp_path / "photos"
    photos.mkdir()
    draw(2)[0].save(photos / "mine.png")
    for host, gallery, sends in (
        ("127.0.0.1", photos, True),
        ("127.0.0.1", None, True),
        ("0.0.0.0", photos, False),
        ("0.0.0.0", None, True),
    ):
        settings = Settings(str(tiny_pack), gallery, "cpu", host)
        open_packs = OpenPacks(settings, tmp_path / "cache")
        assert open_packs.sends_files("") is sends, (host, gallery)
        assert open_packs.sends_files(open_packs.upload("", files))


def test_a_damaged_pack_changes_nothing(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    damaged = variant(tiny_pack, tmp_path / "damaged", 9)
    head = damaged / "vsepp" / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=r"head\.safetensors"):
        open_packs.open(damaged)
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
    borrowed = open_packs.get(open_packs.open(bare))
    assert len(borrowed.collection.images) == IMAGES


def test_another_pack_keeps_a_persons_images_and_not_those_of_a_pack(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    draw(2)[0].save(photos / "mine.png")
    other = variant(tiny_pack, tmp_path / "other", 9)
    shown = open_packs.show("", str(photos))
    kept = open_packs.open(other, key=shown)
    assert open_packs.get(kept).info.tokenizer.max_length == 9
    assert open_packs.get(kept).collection is open_packs.get(shown).collection
    assert open_packs.keeps_images(kept)
    own = open_packs.open(other)
    assert len(open_packs.get(own).collection.images) == IMAGES
    assert not open_packs.keeps_images(own)
    assert open_packs.use(open_packs.name(""), kept) == shown
    started = OpenPacks(Settings(str(tiny_pack), photos, "cpu"), tmp_path / "cache")
    assert started.get(started.open(other)).collection is started.first.collection


def test_the_packs_on_this_machine_are_listed_once_each(
    open_packs: OpenPacks, tiny_pack: Path, tmp_path: Path
) -> None:
    open_packs.open(variant(tiny_pack, tmp_path / "other", 9))
    open_packs.open(variant(tiny_pack, tmp_path / "cache" / "packs" / "converted", 8, "Converted"))
    titles = [info.title for info in open_packs.here().values()]
    bundled = ["Photographs", "Scenes", "Scenes in motion"]
    assert sorted(titles) == sorted([*bundled, "Converted", "Shapes <b>", "Variant"])
    with pytest.raises(ValueError, match="not here any more"):
        open_packs.use("x", "")


def sent(folder: Path, *names: str) -> list[tuple[Path, str]]:
    """Files as they are kept when they were uploaded."""
    files = []
    for i, name in enumerate(names):
        place = folder / f"{i:032x}" / name
        place.parent.mkdir(parents=True)
        draw(i)[0].save(place, format="PNG")
        files.append((place, name))
    return files


def test_files_that_were_sent_are_searched_by_their_sender_alone(
    open_packs: OpenPacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "sent"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = sent(tmp_path / "sent", "a.png", "a.png", "note.txt")
    key = open_packs.upload("", [*files, files[0]])
    retriever = open_packs.get(key)
    assert retriever.index.wait(60)
    assert {h.file for h in find(retriever, "a bar", "vsepp", 9)} == {"a.png", "a (2).png"}
    assert [refusal.file for refusal in retriever.index.refused] == ["note.txt"]
    assert key not in open_packs.packs()
    assert open_packs.upload("", files) != key  # nobody finds them by what they are
    assert not list((tmp_path / "cache" / "galleries").glob("*sent*"))
    with pytest.raises(ValueError, match="none of these files is a picture"):
        open_packs.upload("", files[2:])


def test_galleries_of_sent_files_are_bounded(
    open_packs: OpenPacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "sent"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_UPLOADED", 2)
    files = sent(tmp_path / "sent", "a.png")
    other = open_packs.use("photos", "")
    keys = []
    for _ in range(3):
        keys.append(open_packs.upload("", files))
        assert open_packs.get(keys[-1]).index.wait(60)
    assert open_packs.get(other).info.name == "photos"  # packs have places of their own
    with pytest.raises(ValueError, match="closed to make room"):
        open_packs.get(keys[0])
    deadline = time.monotonic() + 20
    while len(list(tmp_path.glob("polyview-*"))) > 2:  # what was made of the first goes, too
        gc.collect()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ValueError, match=f"at most {module.MOST_FILES:,}"):
        open_packs.upload("", [(Path(f"{i}.png"), "a.png") for i in range(module.MOST_FILES + 1)])


def test_a_pack_of_region_features_is_refused(tiny_pack: Path, tmp_path: Path) -> None:
    regions = variant(tiny_pack, tmp_path / "regions", 7)
    with edited(regions / "pack.json") as manifest:
        manifest["image_encoder"]["file"] = None
    with pytest.raises(ValueError, match=r"computed elsewhere, .* and reads no images"):
        OpenPacks(Settings(str(regions), device="cpu"), tmp_path / "cache")
    open_packs = OpenPacks(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    with pytest.raises(ValueError, match="reads no images"):
        open_packs.open(regions)
