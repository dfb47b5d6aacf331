"""Filling galleries: refused files, stopping and resuming, progress, precomputed views."""

import shutil
import sqlite3
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from torch import Tensor

from polyview.app.api.search import Question, answer, remark
from polyview.app.gallery import encode, images, indexing, prepared
from polyview.app.gallery import index as index_module
from polyview.app.gallery.indexing import Index, Progress, ProgressLine
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.refusal import Refusal
from polyview.app.search.retriever import Retriever
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from polyview.models import Views
from tests.app.conftest import IMAGES, draw, find, finish, variant


class Counting:
    """A runtime that counts the images and texts that it encodes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._lock = runtime, threading.Lock()
        self.images = self.texts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._runtime, name)

    def square_features(
        self, squares: Sequence[Image.Image], method: str | None = None, single_thread: bool = False
    ) -> Tensor:
        """Counts images."""
        with self._lock:
            self.images += len(squares)
        return self._runtime.square_features(squares, method, single_thread)

    def text_views(self, texts: Sequence[str], method: str, attention: bool = False) -> Views:
        """Counts texts times methods."""
        self.texts += len(texts)
        return self._runtime.text_views(texts, method, attention)


@pytest.fixture
def counting(runtime: Runtime) -> Counting:
    return Counting(runtime)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six images, two of them in a subfolder."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for i in range(6):
        draw(i)[0].save(folder / ("trip" if i > 3 else "") / f"{i}.png")
    return folder


def fill(runtime: Counting, folder: Path, cache: Path) -> Index:
    return finish(Index(runtime, from_folder(folder), cache))  # type: ignore[arg-type]


def test_refused_files_are_opened_again_by_new_decoders_only(
    counting: Counting, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "broken.png").write_bytes((photos / "0.png").read_bytes()[:-40])
    reasons = [refusal.reason for refusal in fill(counting, photos, tmp_path / "cache").refused]
    assert len(reasons) == 1
    (photos / "broken.png").rename(photos / "moved.png")
    opening = Mock(wraps=encode.read_frames)
    monkeypatch.setattr(encode, "read_frames", opening)
    again = fill(counting, photos, tmp_path / "cache")
    opening.assert_not_called()
    assert [refusal.reason.replace("moved", "broken") for refusal in again.refused] == reasons
    monkeypatch.setattr(encode, "decoder_versions", lambda: "a newer one")
    again = fill(counting, photos, tmp_path / "cache")
    assert [call.args[1] for call in opening.call_args_list] == ["moved.png"]
    assert len(again.refused) == 1


def test_memory_errors_are_not_stored(
    counting: Counting, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(images, "to_rgb", Mock(side_effect=MemoryError))
        collection = from_folder(photos)
        retriever = Retriever(counting, collection, tmp_path / "cache")  # type: ignore[arg-type]
        index = finish(retriever.index)
    with pytest.raises(Refusal, match="there is nothing to search"):
        find(retriever, "a red circle", "vsepp", 1)
    assert len(index.refused) == 6
    assert all("needs more memory" in refusal.reason for refusal in index.refused)
    assert len(fill(counting, photos, tmp_path / "cache")) == 6


@pytest.mark.parametrize("stage", ["pictures", "captions"])
def test_reading_stops_and_resumes(
    counting: Counting, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(encode, "SHARD", 10)
    collection = from_pack(tiny_pack)
    retriever = Retriever(counting, collection, tmp_path)  # type: ignore[arg-type]
    index, total = retriever.index, len(collection.images)
    steps: list[Progress] = []

    def watch(progress: Progress) -> None:
        steps.append(progress)
        if progress.stage == "pictures":  # reported files are on the disk
            assert not index.images_done.is_set()
            with closing(sqlite3.connect(next(tmp_path.rglob("gallery.sqlite")))) as db:
                assert db.execute("SELECT COUNT(*) FROM files").fetchone()[0] >= progress.done
        if progress.stage == stage and not index._stopped.is_set():
            index.stop()

    finish(index, watch)
    assert index.complete == (stage == "captions")
    if stage == "pictures":
        assert str(index.progress) == f"stopped after 10 of {total} images"
        for name in index.images:  # all methods are searchable while images are read
            assert len(find(retriever, "a red circle", name, 100)) == 10
        assert "not complete yet (stopped after 10 of" in remark(retriever, "a red circle")
        counting.texts = 0  # no captions are encoded yet
    index.start(steps.append)
    index.start()  # has no effect while it runs
    assert index.wait(60)
    assert (index.progress.stage, index.complete) == ("ready", True)
    done = [step.done for step in steps if step.stage == stage]
    assert done == sorted(set(done))
    whole = finish(Index(counting, collection, tmp_path))  # type: ignore[arg-type]
    distinct = {text for text, _ in collection.captions}
    assert (counting.images, counting.texts) == (total, len(distinct) * len(whole.captions))
    assert {len(gallery) for gallery in whole.captions.values()} == {len(collection.captions)}
    for ours, theirs in zip(
        (*index.images.values(), *index.captions.values()),
        (*whole.images.values(), *whole.captions.values()),
        strict=True,
    ):
        ids = ours.ids()
        assert ids.tolist() == theirs.ids().tolist()
        assert torch.equal(ours.views(ids).embeddings, theirs.views(ids).embeddings)


def test_start_waits_briefly(unread: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_START_SECONDS", 0.01)
    index, reached, going_on = unread.index, Event(), Event()

    def watch(_: Progress) -> None:
        reached.set()
        going_on.wait(30)

    index.start(watch)
    assert reached.wait(30)
    index.stop()
    index.start()
    assert index.stopping
    barrier = Barrier(3)  # three calls wait at the same time
    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(index._filling, "join", lambda _: barrier.wait(20))
        for future in [pool.submit(index.start) for _ in range(3)]:
            future.result()
    going_on.set()
    index.join(30)
    index.start()
    assert index.wait(60)
    assert index.progress.stage == "ready"
    index.stop()
    steps: list[Progress] = []
    index.start(steps.append)  # has no effect: everything is read
    index.join(30)
    assert not steps


def test_progress_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(indexing, "time", Mock(**{"monotonic.side_effect": [9.0, 9.4, 9.6, 9.7]}))
    line = ProgressLine()
    for done in (1, 2, 3):
        line(Progress("pictures", done, 5_000, rate=20.0))
    line(Progress("ready", 5_000, 5_000))
    out, err = capsys.readouterr()
    lines = [f"reading images: {done} of 5,000, 2" for done in (1, 3)]
    assert err.split("\r\x1b[K")[1:] == [*lines, ""]
    assert out == "polyview: 5,000 images ready\n"


def test_large_galleries_are_clustered(
    retriever: Retriever, unread: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("HALF_FROM", "HALF_SCORED_FROM", "CLUSTERED_FROM"):
        monkeypatch.setattr(index_module, limit, 0)
    stages = list[str]()
    finish(unread.index, lambda progress: stages.append(str(progress)))
    assert f"finding clusters: 0 of {len(unread.methods)}" in stages
    name, question = retriever.methods.best, Question("a red circle")
    results, exact = (answer(r, question, name, 5) for r in (unread, retriever))
    assert (results.exact, exact.exact) == (False, True)
    assert results.remark == "Approximate: finds 100% of the ten best."
    assert [hit.image_id for hit in results.hits] == [hit.image_id for hit in exact.hits]


@pytest.fixture
def pack(tiny_pack: Path, tmp_path: Path) -> Path:
    """A copy of the tiny pack with precomputed views, as bundled packs have."""
    pack = shutil.copytree(tiny_pack, tmp_path / "pack")
    prepared.write(Runtime.load(pack, "cpu"), from_pack(pack))
    return pack


def test_precomputed_views(pack: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runtime, own = Counting(Runtime.load(pack, "cpu")), from_pack(pack)
    index = finish(Index(runtime, own, tmp_path / "cache"))  # type: ignore[arg-type]
    assert (runtime.images, len(index)) == (0, IMAGES)
    path = prepared.path_of(load_info(pack))
    path.write_bytes(path.read_bytes()[:-9])
    encoded = finish(Index(runtime, own, tmp_path / "cache"))  # type: ignore[arg-type]
    assert (runtime.images, len(encoded)) == (IMAGES, IMAGES)
    assert "the images are encoded again" in caplog.text
    for name in index.images:
        query = runtime._runtime.text_views(["a red circle"], name)
        (ids, scores), (again, fresh) = (i.images[name].scores(query) for i in (index, encoded))
        assert ids.tolist() == again.tolist()
        assert float(abs(scores - fresh).max()) < 1e-3


def test_precomputed_views_of_other_packs(pack: Path, tiny_pack: Path, tmp_path: Path) -> None:
    info, own, counting = load_info(pack), from_pack(pack), Counting(Runtime.load(pack, "cpu"))
    assert prepared.load(info, own) is not None
    assert prepared.load(info, replace(own, images=own.images[:-1])) is None
    fill(counting, pack / "gallery" / "images", tmp_path / "cache")
    assert counting.images == IMAGES
    changed = variant(tiny_pack, tmp_path / "changed", 9)
    shutil.copy(prepared.path_of(info), prepared.path_of(load_info(changed)))
    assert prepared.load(load_info(changed), from_pack(changed)) is None
