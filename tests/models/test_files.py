"""Files and folders are written whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.files import replacing, replacing_folder, sha256_of, write_whole


def fail_half_way(path: Path) -> None:
    path.write_text("half")
    path.with_name("nothing").read_text()


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_whole(path, "ä")
    assert sha256_of(path) == "33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc"
    with pytest.raises(FileNotFoundError), replacing(path) as draft:
        fail_half_way(draft)
    assert path.read_text("utf-8") == "ä"
    assert list(path.parent.iterdir()) == [path]


def test_threads_may_write_one_file_at_once(tmp_path: Path) -> None:
    path, contents = tmp_path / "a", [bytes([i]) * 100_000 for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_whole(path, content), contents))
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    for content in ("one", "two"):
        with replacing_folder(path) as draft:
            (draft / content).write_text(content)
    with pytest.raises(FileNotFoundError), replacing_folder(path) as draft:
        fail_half_way(draft / "three")
    assert [file.name for file in path.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [path]
