"""One pack's galleries over one collection, filled in the background."""

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app.gallery import prepared
from app.gallery.clip_frames import Clips
from app.gallery.clusters import SavedClusters
from app.gallery.collection import Collection, CollectionImage
from app.gallery.encoder import Encoder
from app.gallery.encoding_steps import Encoded
from app.gallery.image_files import Refusal, StoppedError, reason
from app.gallery.regions import RegionEncoder
from app.gallery.searchable import Searchable
from app.gallery.vector_index import Gallery
from export.pack.schema import FOLDER
from export.runtime import Runtime
from models import Views

IMAGES_AT_ONCE = 64
_CLIP_TAKES = 16  # of these, what a clip is counted for
_CAPTIONS_AT_ONCE = 512
_TELLING = 2.0  # seconds of a stage, before which its rate says little
_PROBES = 64  # queries that recall is measured with

_log = logging.getLogger(__name__)
Stage = Literal["pictures", "views", "captions", "clusters", "stopped", "ready", "failed"]


@dataclass(frozen=True)
class Progress:
    """How far a gallery is.

    Attributes:
        stage: what is being done.
        done: items of the stage that are done.
        total: items of the stage.
        detail: where it was stopped, or why it failed.
        rate: items a second; 0 where that is not known yet.
    """

    stage: Stage
    done: int = 0
    total: int = 0
    detail: str = ""
    rate: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether nothing more will be added, even if somebody waits or goes on."""
        return self.stage in ("ready", "failed")

    def __str__(self) -> str:
        if self.stage == "ready":
            return f"{self.total:,} pictures ready"
        if self.stage in ("failed", "stopped"):
            return self.detail
        how_far = f"{self.done:,} of {self.total:,}"
        if self.rate:
            left = round((self.total - self.done) / self.rate)
            time_left = f"{left // 60} min" if left >= 120 else f"{left} s"
            how_far += f", {self.rate:,.0f} a second, {time_left} left"
        if self.stage == "views":
            return f"making the other methods' views: {how_far}"
        if self.stage == "clusters":
            return f"finding clusters for faster answers: {how_far} methods"
        return f"reading {self.stage}: {how_far}"


@dataclass(frozen=True)
class Copy:
    """A file that is the same, byte for byte, as one that is shown in its place."""

    file: str
    same_as: str


@dataclass(frozen=True)
class Report:
    """What came of adding pictures: how many are searchable now, and which files are not."""

    added: int
    refused: list[Refusal]


class Index:
    """The galleries of every method of a pack. Nothing is encoded before `start` or `add`.

    `start` fills one method's gallery first, so that somebody can search as soon as the pictures
    are encoded, and makes the other methods' views of the same features after that.

    Args:
        runtime: the loaded pack.
        collection: the pictures, and their captions where there are any.
        cache: the user's cache folder.
        first: the method whose gallery is filled first; None takes the pack's first.
        ready: the pictures' gallery of each method, where they lie ready elsewhere.

    Attributes:
        first: as given.
        images: the pictures' gallery of each method.
        captions: the captions' gallery of each method; ids count `collection.captions`.
        first_done: set once no more pictures will come for `first`.
        images_done: set once no more pictures will come for any method.
        captions_done: set once no more captions will come.
        complete: whether every method can find all pictures that can be read.
        encoder: the runtime with its cache.
        refused: the files that were skipped so far, and why.
        copies: the files that are not shown because another one is the same. Pictures that come
            with captions are all shown: captions and measurements mean each of them.
        progress: how far the galleries are.
        files: how many the collection has.
        clips: the moments of each clip's frames; the galleries hold their windows.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        cache: Path,
        first: str | None = None,
        ready: Mapping[str, Searchable] | None = None,
    ) -> None:
        self.first = first or next(iter(runtime.methods))
        methods, count = runtime.methods.items(), len(collection.images)
        self._own = {n: Gallery("images", m, runtime.device, count) for n, m in methods}
        self._ready = ready is not None
        self.images: Mapping[str, Searchable] = self._own if ready is None else ready
        count = len(collection.captions)
        self.captions = {n: Gallery("texts", m, runtime.device, count) for n, m in methods}
        self.first_done, self.images_done = threading.Event(), threading.Event()
        self.captions_done = threading.Event()
        self.encoder = (
            Encoder(runtime, collection, cache)
            if runtime.regions is None
            else RegionEncoder(runtime, collection, cache, runtime.regions)
        )
        self.refused = list(collection.left_out)
        self.copies: list[Copy] = []
        self.files = len(collection.images)
        self.clips = Clips(collection, runtime.info.image_encoder.frames)
        self._shown: dict[bytes, str] = {}  # the file in the place of all that are the same
        self._digests: dict[int, bytes] = {}  # what was in the pictures that are shown, by id
        self.progress = Progress("pictures", 0, len(collection.images))
        self._collection = collection
        self._runtime = runtime
        self.complete = False
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._filling: threading.Thread | None = None
        self._passed: dict[Stage, int] = {}  # pictures that are done with, where it was stopped
        self._watch: Callable[[Progress], None] | None = None

    def __len__(self) -> int:
        """How many pictures every method can find; a clip is one."""
        return min(map(self._count, self.images.values()))

    def _count(self, gallery: Searchable) -> int:
        """How many pictures are in it, without the further frames of clips."""
        return int((gallery.ids() < self.files).sum()) if self.clips else len(gallery)

    def start(self, watch: Callable[[Progress], None] | None = None) -> None:
        """Begins to fill the galleries, or goes on where `stop` ended it.

        Args:
            watch: is told of every step; None leaves the one that was given before.
        """
        with self._starting:
            if self._filling is not None:
                if not self._stopped.is_set() or self.progress.finished:
                    return
                self._filling.join()  # it ends after its present step
            self._watch = watch or self._watch
            self._stopped.clear()
            for done in (self.first_done, self.images_done, self.captions_done):
                done.clear()
            self._filling = threading.Thread(target=self._fill, name="index", daemon=True)
            self._filling.start()

    def stop(self) -> None:
        """Ends the filling after its present step; what is there can be searched."""
        self._stopped.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until pictures and captions are ready; False where that took too long."""
        return self.images_done.wait(seconds) and self.captions_done.wait(seconds)

    def add(
        self,
        images: Sequence[CollectionImage],
        progress: Callable[[int, int], None],
        cancel: threading.Event,
        methods: Sequence[str] | None = None,
    ) -> Report:
        """Encodes pictures and makes them searchable; files that cannot be used are skipped.

        Args:
            images: of the collection.
            progress: called with how many are done, and of how many.
            cancel: when set, ends the work within the present step, which then counts as not done.
            methods: those that can find them then; None for all.
        """
        report = Report(0, [])
        chunks, done = _chunks(images), 0
        with (
            contextlib.suppress(StoppedError),
            contextlib.closing(self.encoder.encode_each(chunks, methods, cancel)) as encoding,
        ):
            for chunk in chunks:
                if cancel.is_set():
                    break
                encoded = next(encoding)
                rows, changed = self._to_show(encoded)
                ids = [encoded.images[row].image_id for row in rows]
                for name, views in encoded.views.items():
                    self._own[name].add(ids, Views(views.embeddings[rows]))
                refused = encoded.refused + changed
                self.refused.extend(refused)
                files = sum(image_id < self.files for image_id in ids)
                report = Report(report.added + files, report.refused + refused)
                done += len(chunk)
                progress(done, len(images))
        return report

    def _to_show(self, encoded: Encoded) -> tuple[list[int], list[Refusal]]:
        """The rows to show: of files that are the same, the first; and those changed meanwhile."""
        rows, clips = [], encoded.clips
        left_out = self.clips.too_many(clips) if clips else {}
        for row, (image, digest) in enumerate(zip(encoded.images, encoded.keys, strict=True)):
            if image.file in left_out:
                continue
            before = self._digests.get(image.image_id)
            first = self._shown.setdefault(digest, image.file)
            if before is not None and before != digest:
                reason = f"{image.file} changed while pictures were read; start again"
                left_out[image.file] = Refusal(image.file, reason)
            elif before is not None or image.captions or first == image.file:
                rows.append(row)
                self._digests[image.image_id] = digest
            elif image.moment is None or image.image_id < self.files:
                self.copies.append(Copy(image.file, first))
        if clips:
            shown = {self._collection.file_id(encoded.images[row].image_id) for row in rows}
            self.clips.note({clip: clips[clip] for clip in shown & clips.keys()})
        return rows, list(left_out.values())

    def _fill(self) -> None:
        """Encodes everything; runs in its own thread, and a failure becomes part of `progress`."""
        passed = self._passed.get("pictures", 0)
        began: dict[Stage, tuple[float, int]] = {"pictures": (time.monotonic(), passed)}

        def tell(progress: Progress) -> None:
            now = time.monotonic()
            start, done = began.setdefault(progress.stage, (now, progress.done))
            if now - start >= _TELLING:
                progress = replace(progress, rate=(progress.done - done) / (now - start))
            self.progress = progress
            if self._watch is not None:
                self._watch(progress)

        images = self._collection.images
        try:
            if not self._ready and not self._take_prepared():
                self._fill_images(lambda *step: tell(Progress(*step)))
            if not self._stopped.is_set():
                self.complete = True
                self.first_done.set()
                self.images_done.set()
            self._fill_captions(lambda done, total: tell(Progress("captions", done, total)))
            if not self._stopped.is_set():
                self.encoder.prune(images)
                self._settle(lambda done, total: tell(Progress("clusters", done, total)))
            if self._stopped.is_set():
                tell(Progress("stopped", detail=_stopped_at(self.progress)))
            else:
                tell(Progress("ready", len(self), len(self)))
        except Exception as error:  # whatever it was, the app goes on and says so
            _log.exception("the gallery could not be filled")
            tell(Progress("failed", detail=f"the gallery could not be read: {reason(error)}"))
        finally:
            self.encoder.close()
            self.first_done.set()
            self.images_done.set()
            self.captions_done.set()

    def _fill_images(self, progress: Callable[[Stage, int, int], None]) -> None:
        images = self._collection.images
        self._fill_stage("pictures", images, [self.first], progress)
        if self._stopped.is_set():
            return
        self.first_done.set()
        if others := [name for name in self.images if name != self.first]:
            shown = [image for image in images if image.image_id in self._digests]
            self._fill_stage("views", shown, others, progress)

    def _fill_stage(
        self,
        stage: Stage,
        images: Sequence[CollectionImage],
        methods: Sequence[str],
        progress: Callable[[Stage, int, int], None],
    ) -> None:
        """Adds the pictures that the stage was not yet done with when it was stopped."""
        before = self._passed.get(stage, 0)

        def note(done: int, _: int) -> None:
            self._passed[stage] = before + done
            progress(stage, before + done, len(images))

        self.add(images[before:], note, self._stopped, methods)

    def _settle(self, progress: Callable[[int, int], None]) -> None:
        """Makes the galleries fast, once they are filled."""
        for gallery in (*self._own.values(), *self.captions.values()):
            gallery.seal()
        large = [name for name, gallery in self._own.items() if gallery.is_large()]
        for done, name in enumerate(large):
            progress(done, len(large))
            if self._stopped.is_set():
                return
            probes = self._runtime.text_views(self._sentences(), name).embeddings  # (Q, W, D)
            probing = [Views(probe[None]) for probe in probes]
            self._own[name].settle(probing, self._saved_clusters(name))

    def _saved_clusters(self, name: str) -> SavedClusters | None:
        """Where clusters of a method's pictures are kept; nowhere if they did not come of files."""
        ids = self._own[name].ids().tolist()
        if not all(image_id in self._digests for image_id in ids):
            return None
        contents = hashlib.sha256(b"".join(self._digests[image_id] for image_id in ids))
        return SavedClusters(*self.encoder.clusters(name), contents.hexdigest())

    def _sentences(self) -> list[str]:
        """Like those that visitors will ask: captions from all over, or else the pack's words."""
        captions = [text for text, _ in self._collection.captions]
        known = captions or self._runtime.reader.words()
        return known[:: max(1, len(known) // _PROBES)][:_PROBES]

    def _take_prepared(self) -> bool:
        """Fills the pictures' galleries at once with what comes with the app, where it does."""
        info, images = self._runtime.info, self._collection
        if images.folder != (info.folder / FOLDER).resolve():  # they are not the pack's own
            return False
        found = prepared.load(info, images)
        if found is None:
            return False
        if len(self):  # they are there, and the filling was stopped after that
            return True
        if found.clips:
            self.clips.note(found.clips)
            self.encoder.prepared = found.features
        for name, views in found.views.items():
            self._own[name].add(found.ids, views)
        return True

    def _fill_captions(self, progress: Callable[[int, int], None]) -> None:
        texts = [text for text, _ in self._collection.captions]
        done = sum(len(gallery) for gallery in self.captions.values())
        for name, gallery in self.captions.items():
            for start in range(len(gallery), len(texts), _CAPTIONS_AT_ONCE):
                if self._stopped.is_set():
                    return
                chunk = texts[start : start + _CAPTIONS_AT_ONCE]
                views = self.encoder.encode_captions(chunk, name)
                gallery.add(range(start, start + len(chunk)), views)
                done += len(chunk)
                progress(done, len(texts) * len(self.captions))


def _chunks(images: Sequence[CollectionImage]) -> list[list[CollectionImage]]:
    """Images to encode together: so many, or fewer where clips bring many frames each."""
    chunks: list[list[CollectionImage]] = []
    room = 0
    for image in images:
        takes = _CLIP_TAKES if image.is_video or image.file.lower().endswith(".gif") else 1
        if takes > room:
            chunks.append([])
            room = IMAGES_AT_ONCE
        chunks[-1].append(image)
        room -= takes
    return chunks


def _stopped_at(progress: Progress) -> str:
    """How far a gallery was when somebody stopped it, in words."""
    how_far = f"{progress.done:,} of {progress.total:,}"
    if progress.stage == "views":
        return f"stopped with the other methods' views of {how_far} pictures"
    if progress.stage == "clusters":
        return f"stopped with clusters for {how_far} methods"
    return f"stopped after {how_far} {progress.stage}"
