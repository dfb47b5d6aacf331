"""Open packs, collections and uploads: limits, sharing, messages for closed ones."""

import os
import tempfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from polyview.app.api.library import Library
from polyview.app.api.search import Question
from polyview.app.gallery import indexing
from polyview.app.gallery.indexing import Index
from polyview.app.packs import description, uploads
from polyview.app.packs import state as module
from polyview.app.packs.state import AppState
from polyview.app.refusal import Refusal
from polyview.app.settings import Settings
from tests.app.api.conftest import encoded
from tests.app.conftest import draw, variant
from tests.training.conftest import shared_world


def upload(state: AppState, count: int = 1) -> str:
    key = state.new_upload()
    for i in range(count):
        state.uploads.add(key, f"{i}.png", encoded(i))
    return key


def test_unused_uploads_are_deleted(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    key = upload(state)
    folder, go_on, read = state.uploads[key].folder, threading.Event(), Index._read_files

    def wait_and_read(index: Index) -> None:
        assert go_on.wait(60)
        read(index)

    monkeypatch.setattr(Index, "_read_files", wait_and_read)
    retriever = state.start_upload(key, "")
    assert state.retriever("", key) is retriever
    monkeypatch.setattr(uploads, "UPLOAD_SECONDS", -1.0)
    state.sweep()
    assert folder.exists()  # the last step may still write
    go_on.set()
    retriever.index.join(60)
    assert retriever.index.progress.stage == "stopped"
    state.sweep()
    assert not folder.exists()
    for ask in (
        lambda: state.retriever("", key),
        lambda: state.uploads.add(key, "x.png", b"x"),
        lambda: state.pending_stage(key),
    ):
        with pytest.raises(Refusal, match="upload the files again"):
            ask()


def test_uploaded_files_have_short_printable_names_without_folders(state: AppState) -> None:
    key = state.new_upload()
    for name in ("../../etc/x.png", "..\\x.png", "a\0b.png", "<img src=x>", "n" * 400 + ".png"):
        state.uploads.add(key, name, b"x")
    names = [name for _, name in state.uploads[key].files]
    assert names == ["x.png", "x.png", "ab.png", "<img src=x>", "n" * 196 + ".png"]
    assert {path.parent for path, _ in state.uploads[key].files} == {state.uploads[key].folder}


def test_one_thread_reads_an_upload(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    key, go_on, read = upload(state), threading.Event(), Index._read_files

    def wait_and_read(index: Index) -> None:
        assert go_on.wait(60)
        read(index)

    monkeypatch.setattr(Index, "_read_files", wait_and_read)
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.01)
    monkeypatch.setattr(indexing, "_START_SECONDS", 0.01)
    retriever = state.start_upload(key, "")
    assert state.start_upload(key, "") is retriever  # no file was added
    retriever.index.stop()
    go_on.set()
    retriever.index.join(60)
    assert retriever.index.progress.stage == "stopped"
    go_on.clear()
    assert state.start_upload(key, "") is retriever  # resumes
    state.uploads.add(key, "other.png", encoded(1))
    retriever.index.stop()
    for ask in (lambda: state.start_upload(key, ""), lambda: state.resume("", key)):
        with pytest.raises(Refusal, match="still being read"):
            ask()
    go_on.set()
    retriever.index.join(60)
    monkeypatch.setattr(Index, "_read_files", Mock(side_effect=RuntimeError("out of memory")))
    failed = state.start_upload(key, "")
    assert failed is not retriever
    failed.index.join(60)
    assert failed.index.progress.stage == "failed"
    assert "out of memory" in str(failed.index.progress)
    monkeypatch.setattr(Index, "_read_files", read)
    again = state.start_upload(key, "")
    assert again.index.wait(60)
    assert len(again.index) == 2


def test_readings_stop_before_a_join_and_uploads_are_deleted_after_it(
    state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, stopped = upload(state), list[bool]()
    folder, join = state.uploads[key].folder, Index.join
    indexes = [state.start_upload(key, pack).index for pack in ("", "clip_tiny")]
    for index in indexes:
        index.join(60)
    state.uploads.add(key, "other.png", encoded(1))

    def check_and_join(index: Index, seconds: float) -> None:
        stopped.append(folder.exists() and all(index._stopped.is_set() for index in indexes))
        join(index, seconds)

    monkeypatch.setattr(Index, "join", check_and_join)
    state.start_upload(key, "")
    assert stopped == [True, True]
    state.close()
    assert (stopped, folder.exists()) == ([True] * 4, False)


def test_a_missing_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert uploads.Uploads().expired_keys() == []


def test_uploads_are_bounded(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = upload(state), upload(state, 3)
    state.sweep()
    assert set(state.uploads) == {small, large}
    for name, value in (("MAX_ALL_BYTES", 10), ("MIN_FREE_BYTES", 10**18), ("MAX_FILES", 1)):
        with monkeypatch.context() as limited:
            limited.setattr(uploads, name, value)
            with pytest.raises(ValueError, match=r"no room for more files|files already"):
                state.uploads.add(small, "1.png", b"123456")
    with monkeypatch.context() as failing:
        failing.setattr(Path, "write_bytes", Mock(side_effect=OSError("the disk is full")))
        with pytest.raises(OSError, match="disk is full"):
            state.uploads.add(small, "1.png", b"123456")
    assert len(state.uploads[small].files) == 1
    (state.uploads[large].folder / "encoded").mkdir()  # computed files count, too
    (state.uploads[large].folder / "encoded" / "views").write_bytes(bytes(200_000))
    monkeypatch.setattr(uploads, "MAX_ALL_BYTES", 100_000)
    state.sweep()
    assert set(state.uploads) == {small}
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 2)
    second = upload(state)
    with pytest.raises(Refusal, match="ten minutes"):
        state.new_upload()
    state.uploads[small].last_used = time.monotonic() - uploads.FULL_UPLOAD_SECONDS - 1
    third = state.new_upload()
    assert set(state.uploads) == {second, third}


def test_peers_search_the_same_images(state: AppState) -> None:
    key = upload(state)
    first, second = (state.start_upload(key, pack) for pack in ("", "clip_tiny"))
    other = state.start_upload(upload(state), "clip_tiny")
    assert state.peers(first) == {"clip_tiny": second}
    assert state.peers(other) == state.peers(state.first) == {}
    state.close()


def test_a_pipe_as_training_log_is_not_read(state: AppState, tmp_path: Path) -> None:
    log = tmp_path / "training/vsepp/log.csv"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    curves: list[object] = []
    info = replace(state.first.info, folder=tmp_path)
    read = description._training_curve
    thread = threading.Thread(target=lambda: curves.append(read(info, "vsepp")), daemon=True)
    thread.start()
    thread.join(10)
    assert curves == [None]


def test_visitors_open_no_other_pack_on_the_images(tiny_pack: Path, tmp_path: Path) -> None:
    draw(1)[0].save(tmp_path / "x.png")
    settings = Settings(str(tiny_pack), tmp_path, "cpu", host="0.0.0.0")
    state = AppState(settings, tmp_path / "cache")
    (key,) = (c["key"] for c in state.collections() if c["kind"] == "folder")
    assert state.retriever("", key) is state.retriever()
    with pytest.raises(Refusal, match=r"only the packs .* may search these images"):
        state.retriever("scenes", key)


def test_impossible_places_are_refused(state: AppState) -> None:
    for place in ("~nosuchuser/x", "x" * 5000):
        with pytest.raises(ValueError, match=r"\".*\" cannot be read \("):
            state.open_collection(place)


def test_open_folders_and_packs_are_bounded(
    state: AppState, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FOLDERS", 2)
    monkeypatch.setattr(module, "MAX_RETRIEVERS", 2)
    keys = []
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        draw(i)[0].save(folder / "x.png")
        keys.append(state.open_collection(str(folder)))
        state.retriever(state.first_pack, keys[-1])
    with pytest.raises(Refusal, match="open the folder again"):
        state.retriever("", keys[0])
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.png", encoded(0))
    unpacked = state.retriever("", state.open_collection(str(archive))).collection.folder
    os.utime(unpacked, (0, 0))
    state.sweep()  # an open archive is not deleted as unused
    assert time.time() - unpacked.stat().st_mtime < 60
    assert state.retriever(state.first_pack, keys[2]).collection.title == "2"
    for length in (8, 9):
        pack = state.add_pack(variant(tiny_pack, tmp_path / f"pack {length}", length))
        state.retriever(pack, keys[2])
    assert len(state._retrievers) <= 3
    assert len(state.runtimes) <= 3
    assert state.retriever() is state.first
    state.close()


def test_a_bundled_pack_without_images_searches_the_scenes(tmp_path: Path) -> None:
    state = AppState(Settings("clip_tiny", device="cpu"), tmp_path / "cache")
    assert state.first.info.name == "clip_tiny"
    assert len(state.first.collection.images) == 1000
    assert state.resolve("", "") == ("clip_tiny", "scenes")
    state.close()


def test_a_pack_of_features_searches_its_own_images_only(
    state: AppState, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pack, sentence = shared_world(tmp_path_factory) / "pack", "reads no images"
    (tmp_path / "mine").mkdir()
    draw(0)[0].save(tmp_path / "mine/a.png")
    with pytest.raises(ValueError, match=sentence):
        AppState(Settings(str(pack), tmp_path / "mine", device="cpu"), tmp_path / "cache")
    with pytest.raises(ValueError, match=sentence):
        Library(pack, tmp_path / "mine", device="cpu")
    key, folder = state.add_pack(pack), state.open_collection(str(tmp_path / "mine"))
    with pytest.raises(ValueError, match=sentence):
        state.retriever(key, folder)
    assert state.retriever("", folder).info.name == "shapes"
    own = state.retriever(key)
    assert own.index.wait(60)
    query = Question(image_id=3).terms(own)
    assert own.search(query, "vsepp", 1).hits[0].image_id == 3
    with pytest.raises(ValueError, match=sentence):  # an image of another pack's gallery
        own.search(Question(image_id=0).terms(state.first), "vsepp", 1)
    state.close()
