"""Clusters on the disk: taken where they are right, found again where they are not."""

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from app.gallery import indexing as index_module
from app.gallery.clusters import Clusters
from app.gallery.collection import from_folder
from app.gallery.indexing import Index
from app.gallery.rows import Snapshot
from app.gallery.vector_index import Gallery
from export.runtime import Runtime
from tests.app.conftest import draw, finish

IMAGES = 60


class Start:
    """A start of the app over a folder whose gallery counts as large."""

    def __init__(self, runtime: Runtime, photos: Path, cache: Path) -> None:
        self.found = 0
        find = Clusters.find

        def counted(there: Snapshot, seed: int = 0) -> Clusters:
            self.found += 1
            return find(there, seed)

        large = functools.partial(Gallery, half_from=0, clustered_from=0, exhaustive_up_to=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Clusters, "find", counted)
            patch.setattr(index_module, "Gallery", large)
            self.index = Index(runtime, from_folder(photos), cache)
            finish(self.index)
        assert self.index.progress.stage == "ready", self.index.progress
        self.answers = {}
        for name, gallery in self.index.images.items():
            query = runtime.text_views(["a red circle"], name)
            assert isinstance(gallery, Gallery)
            self.answers[name] = (gallery.recall, gallery.search(query, 10), gallery.caveat())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(IMAGES):
        draw(i)[0].rotate(i).save(folder / f"{i}.png")
    return folder


def test_the_next_start_takes_the_clusters(runtime: Runtime, photos: Path, tmp_path: Path) -> None:
    first = Start(runtime, photos, tmp_path / "cache")
    assert first.found == len(runtime.methods)
    assert "Approximate" in first.answers["vsepp"][2]
    again = Start(runtime, photos, tmp_path / "cache")
    assert again.found == 0
    assert again.answers == first.answers
    (photos / "7.png").unlink()
    changed = Start(runtime, photos, tmp_path / "cache")
    assert changed.found == len(runtime.methods)
    assert len(changed.index) == IMAGES - 1
    kept = list((tmp_path / "cache").glob("galleries/*/clusters/*"))
    assert sorted(f.suffix for f in kept if f.suffix != ".lock") == sorted(
        [".faiss", ".json"] * first.found
    )


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def forget(path: Path) -> None:
    path.with_suffix(".json").unlink()


def killed(path: Path) -> None:
    """As a process leaves it that is killed while it writes."""
    path.with_suffix(".json").unlink()
    path.rename(path.with_suffix(".partial"))


def nonsense(path: Path) -> None:
    path.with_suffix(".json").write_text('{"version": 1')


def other(path: Path) -> None:
    about = path.with_suffix(".json")
    about.write_text(json.dumps(json.loads(about.read_text()) | {"looked_into": None}))


@pytest.mark.parametrize("damage", [flip, cut, forget, killed, nonsense, other])
def test_damaged_ones_are_found_again(
    runtime: Runtime,
    photos: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Start(runtime, photos, tmp_path / "cache")
    file, *_ = sorted((tmp_path / "cache").glob("galleries/*/clusters/*.faiss"))
    damage(file)
    with caplog.at_level(logging.WARNING):
        again = Start(runtime, photos, tmp_path / "cache")
    assert again.found == 1
    assert again.answers == first.answers
    assert len(caplog.records) == (damage not in (forget, killed))
    assert not file.with_suffix(".partial").exists()
    assert Start(runtime, photos, tmp_path / "cache").found == 0


def test_a_folder_that_cannot_be_written_costs_only_time(
    runtime: Runtime, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Clusters, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no space left")

    monkeypatch.setattr(Clusters, "save", full)
    first = Start(runtime, photos, tmp_path / "cache")
    left = {file.suffix for file in (tmp_path / "cache").glob("galleries/*/clusters/*")}
    assert left <= {".lock"}
    monkeypatch.undo()
    again = Start(runtime, photos, tmp_path / "cache")
    assert again.found == first.found
    assert again.answers == first.answers
