"""Finding pictures: in a pack, and in somebody's folder."""

import os
import time
from pathlib import Path

import pytest

from app.gallery.collection import MAX_DEPTH, Collection, CollectionImage, from_folder, from_pack
from export.pack.gallery import GalleryCaption, GalleryImage
from tests.app.conftest import HOSTILE, IMAGES, draw


def test_a_pack_brings_pictures_captions_and_objects(tiny_pack: Path) -> None:
    collection = from_pack(tiny_pack)
    assert len(collection.images) == IMAGES
    third = collection.images[3]
    assert third.image_id == 3
    assert third.path.is_file()
    assert third.objects == tuple(draw(3)[1])
    assert collection.captions[2] == (HOSTILE, 0)
    assert collection.captions[3][1] == 1


def test_a_folder_is_read_however_deep(tmp_path: Path) -> None:
    for name in ("b.JPG", "deep/er/a.png", "deep/c.webp", ".hidden/d.png", ".e.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    collection = from_folder(tmp_path)
    assert [p.file for p in collection.images] == ["b.JPG", "deep/c.webp", "deep/er/a.png"]
    assert [p.image_id for p in collection.images] == [0, 1, 2]


@pytest.mark.parametrize("follow_links", [False, True])
def test_folders_without_end_are_left_out(tmp_path: Path, follow_links: bool) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    deepest = tmp_path.joinpath(*["n"] * 150)  # Python itself ends at about a thousand
    deepest.mkdir(parents=True)
    (deepest / "b.png").write_bytes(b"x")
    collection = from_folder(tmp_path, follow_links)
    assert [p.file for p in collection.images] == ["a.png"]
    [left] = collection.left_out
    assert left.file == "/".join(["n"] * MAX_DEPTH)
    assert "more than 100 deep" in left.reason


def test_one_caption_of_many_images_is_no_endless_work(tmp_path: Path) -> None:
    many = 50_000  # of which all were copied for each of them, a minute long
    images = [
        CollectionImage(
            i,
            tmp_path,
            "a.png",
            truth=GalleryImage(file="a.png", captions=(GalleryCaption("a", relevant=(i,)),)),
        )
        for i in range(many)
    ]
    began = time.process_time()
    found = Collection("many", tmp_path, tuple(images)).relevant
    assert time.process_time() - began < 10
    assert found == {"a": frozenset(range(many))}


def test_names_that_are_not_utf8_can_be_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(b"x")
    [image] = from_folder(tmp_path).images
    assert image.path.read_bytes() == b"x"
    assert image.file == "caf\\xe9.png"


def test_a_folder_without_pictures_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="holds no pictures"):
        from_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        from_folder(tmp_path / "missing")


def test_a_key_changes_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"1234")
    [image] = from_folder(tmp_path).images
    before = image.key()
    os.utime(path, ns=(1, 1))
    later = image.key()
    path.write_bytes(b"12345")
    os.utime(path, ns=(1, 1))
    assert len({before, later, image.key()}) == 3
    assert "a.png" not in image.thumbnail_name()


def test_a_pack_brings_the_truth(tiny_pack: Path) -> None:
    collection = from_pack(tiny_pack)
    assert collection.relevant[HOSTILE] == {0}
    same = f"a picture of a {draw(3)[1][1]}"
    assert 3 in collection.relevant[same]
    assert len(collection.relevant[same]) > 1
    truth = collection.images[3].truth
    assert truth is not None
    assert [thing.name for thing in truth.objects] == list(draw(3)[1])


def test_images_of_a_folder_are_told_apart_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.png", "b/c.png"):
        (tmp_path / name).write_bytes(b"x")
    assert [p.facts for p in from_folder(tmp_path).images] == [{}, {"folder": "b"}]


def test_facts_name_the_pictures_that_have_them(views_pack: Path) -> None:
    facts = from_pack(views_pack).facts
    assert list(facts) == ["setting", "time"]
    assert list(facts["setting"]) == ["dusk", "sand", "sky"]
    assert facts["setting"]["sand"] == set(range(1, IMAGES, 3))
    assert facts["time"] == {"night": set(range(0, IMAGES, 4))}
