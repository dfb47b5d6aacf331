"""Filling galleries: refused files, stopping and resuming, progress, precomputed views."""

import shutil
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from polyview.app.api.search import Question, answer, remark
from polyview.app.gallery import encode, images, indexing, prepared
from polyview.app.gallery import index as index_module
from polyview.app.gallery.indexing import Index, Progress, ProgressLine
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.refusal import Refusal
from polyview.app.search.retriever import Retriever
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, draw, find, finish, variant


def record(runtime: Runtime, patch: pytest.MonkeyPatch) -> Runtime:
    """Records the calls of a runtime's encoders, for `encoded`."""
    for name in ("square_features", "text_views"):
        patch.setattr(runtime, name, Mock(wraps=getattr(runtime, name)))
    return runtime


def encoded(method: Any) -> int:
    """The number of images or texts that an encoder of a recorded runtime has encoded."""
    return sum(len(call.args[0]) for call in method.call_args_list)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six images, two of them in a subfolder."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for i in range(6):
        draw(i)[0].save(folder / ("trip" if i > 3 else "") / f"{i}.png")
    return folder


def fill(runtime: Runtime, folder: Path, cache: Path) -> Index:
    return finish(Index(runtime, from_folder(folder), cache))


def test_refused_files_are_opened_again_by_new_decoders_only(
    runtime: Runtime, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "broken.png").write_bytes((photos / "0.png").read_bytes()[:-40])
    reasons = [refusal.reason for refusal in fill(runtime, photos, tmp_path / "cache").refused]
    assert len(reasons) == 1
    (photos / "broken.png").rename(photos / "moved.png")
    opening = Mock(wraps=encode.read_frames)
    monkeypatch.setattr(encode, "read_frames", opening)
    again = fill(runtime, photos, tmp_path / "cache")
    opening.assert_not_called()
    assert [refusal.reason.replace("moved", "broken") for refusal in again.refused] == reasons
    monkeypatch.setattr(encode, "decoder_versions", lambda: "a newer one")
    again = fill(runtime, photos, tmp_path / "cache")
    assert [call.args[1] for call in opening.call_args_list] == ["moved.png"]
    assert len(again.refused) == 1


def test_memory_errors_are_not_stored(
    runtime: Runtime, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(images, "to_rgb", Mock(side_effect=MemoryError))
        retriever = Retriever(runtime, from_folder(photos), tmp_path / "cache")
        index = finish(retriever.index)
    with pytest.raises(Refusal, match="there is nothing to search") as refused:
        find(retriever, "a red circle", "vsepp", 1)
    assert refused.value.wait == 5
    assert len(index.refused) == 6
    assert all("needs more memory" in refusal.reason for refusal in index.refused)
    assert len(fill(runtime, photos, tmp_path / "cache")) == 6


@pytest.mark.parametrize("stage", ["pictures", "captions"])
def test_reading_stops_and_resumes(
    runtime: Runtime, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(encode, "MAX_BATCH", 10)
    record(runtime, monkeypatch)
    collection = from_pack(tiny_pack)
    retriever = Retriever(runtime, collection, tmp_path)
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
    queries = 0
    if stage == "pictures":
        assert str(index.progress) == f"stopped after 10 of {total} images"
        for name in index.images:  # all methods are searchable while images are read
            assert len(find(retriever, "a red circle", name, 100)) == 10
        assert "not complete yet (stopped after 10 of" in remark(retriever, "a red circle")
        queries = encoded(runtime.text_views)  # no captions are encoded yet
    index.start(steps.append)
    index.start()  # has no effect while it runs
    assert index.wait(60)
    assert (index.progress.stage, index.complete) == ("ready", True)
    done = [step.done for step in steps if step.stage == stage]
    assert done == sorted(set(done))
    whole = finish(Index(runtime, collection, tmp_path))
    distinct = {text for text, _ in collection.captions}
    assert encoded(runtime.square_features) == total
    assert encoded(runtime.text_views) - queries == len(distinct) * len(whole.captions)
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
        patch.setattr(index._thread, "join", lambda _: barrier.wait(20))
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
    for limit in ("HALF_MIN_BYTES", "SCORED_HALF_MIN_BYTES", "CLUSTERS_MIN_BYTES"):
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


def test_precomputed_views(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, own = record(Runtime.load(pack, "cpu"), monkeypatch), from_pack(pack)
    index = finish(Index(runtime, own, tmp_path / "cache"))
    assert (encoded(runtime.square_features), len(index)) == (0, IMAGES)
    path = prepared.prepared_path(load_info(pack))
    path.write_bytes(path.read_bytes()[:-9])
    fresh = finish(Index(runtime, own, tmp_path / "cache"))
    assert (encoded(runtime.square_features), len(fresh)) == (IMAGES, IMAGES)
    assert "encoding the images again" in caplog.text
    for name in index.images:
        query = runtime.text_views(["a red circle"], name)
        (ids, scores), (again, expected) = (i.images[name].scores(query) for i in (index, fresh))
        assert ids.tolist() == again.tolist()
        assert float(abs(scores - expected).max()) < 1e-3


def test_precomputed_views_of_other_packs(
    pack: Path, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, own = load_info(pack), from_pack(pack)
    runtime = record(Runtime.load(pack, "cpu"), monkeypatch)
    assert prepared.load(info, own) is not None
    assert prepared.load(info, replace(own, images=own.images[:-1])) is None
    fill(runtime, pack / "gallery" / "images", tmp_path / "cache")
    assert encoded(runtime.square_features) == IMAGES
    changed = variant(tiny_pack, tmp_path / "changed", 9)
    shutil.copy(prepared.prepared_path(info), prepared.prepared_path(load_info(changed)))
    assert prepared.load(load_info(changed), from_pack(changed)) is None
