"""Filling the galleries: what is refused, what is remembered, and how far it is."""

import functools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from torch import Tensor

from polyview.app.access import Refusal
from polyview.app.gallery import encode, images
from polyview.app.gallery import indexing as index_module
from polyview.app.gallery.images import Frames
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.indexing import Index, Progress
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.search.answers import Question, answer, remark
from polyview.app.search.retriever import Retriever
from polyview.export.runtime import Runtime
from polyview.models import Views
from tests.app.conftest import draw, find, finish


class Counting:
    """A runtime that counts the images and texts that it encodes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._lock = runtime, threading.Lock()
        self.images = self.texts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._runtime, name)

    def square_features(
        self, squares: Sequence[Image.Image], method: str | None = None, alone: bool = False
    ) -> Tensor:
        """Counts images."""
        with self._lock:
            self.images += len(squares)
        return self._runtime.square_features(squares, method, alone)

    def text_views(self, texts: Sequence[str], method: str, attention: bool = False) -> Views:
        """Counts texts times methods."""
        self.texts += len(texts)
        return self._runtime.text_views(texts, method, attention)


@pytest.fixture
def counting(runtime: Runtime) -> Counting:
    return Counting(runtime)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six pictures, two of them in a folder below."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for i in range(6):
        draw(i)[0].save(folder / ("trip" if i > 3 else "") / f"{i}.png")
    return folder


def fill(runtime: Counting, folder: Path, cache: Path) -> Index:
    return finish(Index(runtime, from_folder(folder), cache))  # type: ignore[arg-type]


def test_refused_files_are_not_opened_again_unless_another_reader_does(
    counting: Counting, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "broken.png").write_bytes((photos / "0.png").read_bytes()[:-40])
    reasons = [refusal.reason for refusal in fill(counting, photos, tmp_path / "cache").refused]
    assert len(reasons) == 1
    (photos / "broken.png").rename(photos / "moved.png")
    opened: list[str | None] = []

    honest = encode.read_frames

    def opening(file: BinaryIO, name: str, together: int) -> Frames:
        opened.append(name)
        return honest(file, name, together)

    monkeypatch.setattr(encode, "read_frames", opening)
    again = fill(counting, photos, tmp_path / "cache")
    assert opened == []
    assert [refusal.reason.replace("moved", "broken") for refusal in again.refused] == reasons
    monkeypatch.setattr(encode, "reader", lambda: "a newer one")
    again = fill(counting, photos, tmp_path / "cache")
    assert opened == ["moved.png"]
    assert len(again.refused) == 1


def test_too_little_memory_is_not_remembered(
    counting: Counting, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(images, "to_rgb", Mock(side_effect=MemoryError))
        index = fill(counting, photos, tmp_path / "cache")
    assert len(index.refused) == 6
    assert all("needs more memory" in refusal.reason for refusal in index.refused)
    assert len(fill(counting, photos, tmp_path / "cache")) == 6


def test_one_method_is_searchable_first(counting: Counting, photos: Path, tmp_path: Path) -> None:
    index = Index(counting, from_folder(photos), tmp_path, "vse_infty")  # type: ignore[arg-type]
    results: list[dict[str, int]] = []

    def watch(progress: Progress) -> None:
        if progress.stage == "pictures":
            assert not index.first_done.is_set()
        if progress.stage in ("pictures", "views"):
            results.append({name: len(gallery) for name, gallery in index.images.items()})
            assert not index.images_done.is_set()

    finish(index, watch)
    others = [name for name in index.images if name != "vse_infty"]
    assert results == [{"vse_infty": 6} | dict.fromkeys(others, 0), dict.fromkeys(index.images, 6)]
    assert counting.images == 6


def test_progress_tells_rate_and_time_left() -> None:
    assert str(Progress("pictures", 64, 7000)) == "reading images: 64 of 7,000"
    assert str(Progress("pictures", 1000, 7000, rate=250.0)) == (
        "reading images: 1,000 of 7,000, 250 a second, 24 s left"
    )
    assert str(Progress("views", 10, 7000, rate=1.0)).endswith("1 a second, 116 min left")


def test_the_rate_is_that_of_the_stage(
    runtime: Runtime, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_SURE", 1e-6)
    monkeypatch.setattr(encode, "SHARD", 1)
    rates: list[float] = []
    began = time.monotonic()
    index = Index(runtime, from_folder(photos), tmp_path / "cache")
    finish(index, lambda step: rates.append(step.rate) if step.stage == "pictures" else None)
    assert max(rates) >= 5 / (time.monotonic() - began)


@pytest.mark.parametrize("stage", ["pictures", "views", "captions"])
def test_reading_stops_and_goes_on_where_it_was(
    counting: Counting, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(encode, "SHARD", 10)
    collection = from_pack(tiny_pack)
    index = Index(counting, collection, tmp_path)  # type: ignore[arg-type]
    steps: list[Progress] = []

    def watch(progress: Progress) -> None:
        steps.append(progress)
        if progress.stage == stage and not index._stopped.is_set():
            index.stop()

    finish(index, watch)
    assert index.complete == (stage == "captions")
    index.start(steps.append)
    index.start()  # it runs already
    stopped = next(step for step in steps if step.stage == "stopped")
    total = len(collection.images)
    if stage == "pictures":
        assert str(stopped) == f"stopped after 10 of {total} images"
    assert index.wait(60)
    assert index.progress.stage == "ready"
    assert index.complete
    assert counting.images == total
    done = [step.done for step in steps if step.stage == stage]
    assert done == sorted(set(done))
    whole = Index(counting, collection, tmp_path)  # type: ignore[arg-type]
    finish(whole)
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


def test_a_stopped_gallery_answers_with_what_it_has_and_says_so(
    runtime: Runtime, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "SHARD", 10)
    retriever = Retriever(runtime, from_pack(tiny_pack), tmp_path)
    index = retriever.index
    finish(index, lambda _: index.stop())
    assert not index.complete
    assert len(find(retriever, "a red circle", index.first, 100)) == 10
    assert "not complete yet (stopped after 10 of" in remark(retriever, "a red circle")
    other = next(name for name in index.images if name != index.first)
    with pytest.raises(Refusal, match="stopped after 10 of"):
        find(retriever, "a red circle", other, 1)


def test_a_failure_is_told_and_ends_the_waiting(
    runtime: Runtime, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(runtime, from_pack(tiny_pack), tmp_path)
    failing = Mock(side_effect=RuntimeError("out of something"))
    monkeypatch.setattr(runtime, "image_views", failing)
    finish(index)
    assert index.progress.stage == "failed"
    assert "out of something" in str(index.progress)


def test_large_galleries_are_clustered_and_answers_say_what_is_found(
    runtime: Runtime, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = functools.partial(Gallery, half_from=0, clustered_from=0)
    monkeypatch.setattr(index_module, "Gallery", large)
    retriever = Retriever(runtime, from_pack(tiny_pack), tmp_path)
    stages: list[str] = []
    finish(retriever.index, lambda progress: stages.append(str(progress)))
    count = len(runtime.methods)
    assert f"finding clusters: 0 of {count}" in stages
    name = retriever.methods.best
    results = answer(retriever, Question("a red circle"), name, 5)
    assert (results.exact, results.remark) == (False, "Approximate: finds 100% of the ten best.")
    whole = [hit.image_id for hit in results.hits]
    monkeypatch.undo()
    small = Retriever(runtime, from_pack(tiny_pack), tmp_path)
    finish(small.index)
    results = answer(small, Question("a red circle"), name, 5)
    assert [hit.image_id for hit in results.hits] == whole
    assert results.exact
