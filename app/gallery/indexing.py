"""Fills the galleries of a pack over a collection in the background."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

from torch import Tensor

from polyview.app.gallery import prepared
from polyview.app.gallery.encode import Encoder
from polyview.app.gallery.images import Refusal, reason
from polyview.app.gallery.index import Clips, Gallery
from polyview.app.gallery.scan import Collection, CollectionImage, StoppedError
from polyview.app.gallery.store import Content
from polyview.export.runtime import Runtime
from polyview.models import Views

_AT_ONCE, _CAPTIONS_AT_ONCE = 64, 512
_MOMENT = 1.0  # seconds that `start` waits until the last step ends
_LINE_INTERVAL = 0.5  # seconds between updates of a line
_SURE = 2.0  # seconds until the rate of a stage is reported
_PROBES = 64  # queries with which recall is measured
_DOING = {
    "pictures": "reading images",
    "captions": "reading captions",
    "views": "making the other methods' views",
    "clusters": "finding clusters",
}

_log = logging.getLogger(__name__)
Stage = Literal["pictures", "views", "captions", "clusters", "stopped", "ready", "failed"]


@dataclass(frozen=True)
class Progress:
    """The progress of filling a gallery.

    >>> print(Progress("pictures", 1_000, 5_000, rate=20.0))
    reading images: 1,000 of 5,000, 20 a second, 3 min left
    >>> print(Progress("views", 1_000, 1_500, rate=20.0))
    making the other methods' views: 1,000 of 1,500, 20 a second, 25 s left
    """

    stage: Stage
    done: int = 0  # completed items of the stage
    total: int = 0  # all items of the stage
    detail: str = ""  # where filling stopped, or why it failed
    rate: float = 0.0  # items per second; 0 if not known yet

    @property
    def finished(self) -> bool:
        """Whether filling has ended and cannot be resumed."""
        return self.stage in ("ready", "failed")

    def __str__(self) -> str:
        if self.stage == "ready":
            return f"{self.total:,} images ready"
        if self.stage in ("failed", "stopped"):
            return self.detail
        how_far = f"{self.done:,} of {self.total:,}"
        if self.rate:
            seconds_left = round((self.total - self.done) / self.rate)
            time_left = f"{seconds_left // 60} min" if seconds_left >= 120 else f"{seconds_left} s"
            how_far += f", {self.rate:,.0f} a second, {time_left} left"
        return f"{_DOING[self.stage]}: {how_far}"


class ProgressLine:
    """Shows progress on one line of a terminal at stderr; the last step goes to `out` or stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out, self._next_time = out, 0.0

    def __call__(self, progress: Progress) -> None:
        """Rewrites the line, at most twice a second."""
        is_last, now = progress.finished or progress.stage == "stopped", time.monotonic()
        if sys.stderr.isatty() and (is_last or now >= self._next_time):
            self._next_time = now + _LINE_INTERVAL
            # a longer line would wrap, and could not be rewritten
            line = "" if is_last else str(progress)[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        if is_last:
            print(f"polyview: {progress}", file=self._out or sys.stdout, flush=True)


@dataclass(frozen=True)
class Copy:
    """A file that is left out because the file `same_as` has the same bytes."""

    file: str
    same_as: str


class Index:
    """The galleries of every method of a pack; nothing is read before `start`.

    The gallery of one method is filled first, so that searches can start as soon as the images are
    encoded; the views of the other methods are computed from the same features afterwards.

    Args:
        cache: the user's cache folder.
        first: the method whose gallery is filled first; None for the pack's first.
        ready: galleries by method that already contain the images; None to encode the images.

    Attributes:
        first: the method whose gallery is filled first.
        images: the gallery of images of each method.
        captions: the gallery of captions of each method; ids are indices of `collection.captions`.
        files: the number of files in the collection.
        encoder: computes and stores features and views.
        progress: the progress of filling.
        clips: the moments of each clip's frames; the galleries contain their windows.
        first_done: set when all images of `first` are added.
        images_done: set when all images of all methods are added.
        captions_done: set when all captions are added.
        complete: whether every method can find all readable images.
        refused: the files left out so far, and why.
        copies: the files left out because another file has the same bytes. Copies with captions
            are not left out: captions and metrics refer to each of them.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        cache: Path,
        first: str | None = None,
        ready: Mapping[str, Gallery] | None = None,
    ) -> None:
        self._runtime, self._collection = runtime, collection
        methods, device = runtime.methods.items(), runtime.device
        self.files, count = len(collection.images), len(collection.captions)
        self.first = first or next(iter(runtime.methods))
        self.images: Mapping[str, Gallery] = ready or {
            name: Gallery("images", method, device, self.files) for name, method in methods
        }
        self.captions = {name: Gallery("texts", method, device, count) for name, method in methods}
        self.clips = Clips(collection, runtime.info.image_encoder.frames)
        self.encoder = Encoder(runtime, collection, cache)
        # precomputed features (n, d) by image encoder and image id, see `prepared.load`
        self._features: dict[str, dict[int, Tensor]] = {}
        self.first_done = threading.Event()
        self.images_done = threading.Event()
        self.captions_done = threading.Event()
        self.complete = ready is not None
        self.refused, self.copies = list(collection.left_out), list[Copy]()
        self._first_files: dict[bytes, str] = {}  # the first file of each content
        self._passed = 0  # number of files read
        self.progress = Progress("pictures", 0, self.files)
        self._began = ("", 0.0, 0)  # stage, its start time, and items done at the start
        self._watch: Callable[[Progress], None] | None = None
        self._stopped, self._starting = threading.Event(), threading.Lock()
        self._filling: threading.Thread | None = None

    def __len__(self) -> int:
        """The number of images that every method can find; a clip counts as one."""
        return min(int((gallery.ids() < self.files).sum()) for gallery in self.images.values())

    def start(self, watch: Callable[[Progress], None] | None = None) -> None:
        """Starts filling the galleries, or resumes after `stop`.

        `watch` is called after every step; None keeps the present function. Does nothing while the
        last step before `stop` still runs after a second, see `stopping`.
        """
        if self._stopped.is_set():
            self.join(_MOMENT)
        with self._starting:
            if self._filling is not None and (
                not self._stopped.is_set() or self.progress.finished or self._filling.is_alive()
            ):
                return
            self._watch = watch or self._watch
            for event in (self._stopped, self.first_done, self.images_done, self.captions_done):
                event.clear()
            self._began = ("", 0.0, 0)
            if self.progress.stage == "stopped":  # the thread reports only after its first step
                done = self.files if self.complete else max(self._passed, len(self))
                self.progress = Progress("pictures", done, self.files)
            filling = threading.Thread(target=self._fill, name="index", daemon=True)
            try:
                filling.start()
            except RuntimeError:  # the system has no more threads; `start` may be called again
                self._stopped.set()
                raise
            self._filling = filling  # only now: `join` refuses threads that are not started

    def stop(self) -> None:
        """Stops after the present step; images read so far can be searched."""
        self._stopped.set()

    @property
    def stopping(self) -> bool:
        """Whether filling was told to stop and its last step is still running."""
        return self._stopped.is_set() and self._filling is not None and self._filling.is_alive()

    def join(self, seconds: float) -> None:
        """Waits at most `seconds` until filling ends."""
        if self._filling is not None:
            self._filling.join(seconds)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until images and captions are ready; returns False on timeout."""
        return self.images_done.wait(seconds) and self.captions_done.wait(seconds)

    def features(
        self, image_ids: Iterable[int], method: str, *, cached_only: bool = False
    ) -> dict[int, Tensor]:
        """The features (n, d) of images or clip frames by id; see `Encoder.features`.

        Returns precomputed features if the pack has them. Raises ValueError for an unknown id, and
        ImageError if an image cannot be read.
        """
        images = {image_id: self.clips.image(image_id).require_file() for image_id in image_ids}
        if self._runtime.regions is not None:
            return dict(zip(images, self._runtime.regions.features(list(images)), strict=True))
        if self._features:
            rows = self._features[str(self._runtime.image_encoder_of(method))]
            return {image_id: rows[image_id].float() for image_id in images}
        return self.encoder.features(list(images.values()), method, cached_only=cached_only)

    def _fill(self) -> None:
        """Fills all galleries in a background thread; reports a failure in `progress`."""
        try:
            if not self.complete:
                self._fill_images()
                self.complete = True
            self.first_done.set()
            self.images_done.set()
            self._fill_captions()
            files = [image.file for image in self._collection.images]
            self.encoder.store.prune(self._collection.folder, files)
            self._build_clusters()
            self._report("ready", len(self), len(self))
        except StoppedError:
            done = f"{self.progress.done:,} of {self.progress.total:,}"
            unit = "images" if self.progress.stage == "pictures" else self.progress.stage
            self._report("stopped", detail=f"stopped after {done} {unit}")
        except Exception as error:  # the app continues and reports the failure
            _log.exception("the gallery could not be filled")
            self._report("failed", detail=f"the gallery could not be read: {reason(error)}")
        finally:
            self.encoder.store.close()
            for event in (self.first_done, self.images_done, self.captions_done):
                event.set()

    def _report(self, stage: Stage, done: int = 0, total: int = 0, detail: str = "") -> None:
        now = time.monotonic()
        if self._began[0] != stage:
            self._began = stage, now, done
        _, begin, done_before = self._began
        rate = (done - done_before) / (now - begin) if now - begin >= _SURE else 0.0
        self.progress = Progress(stage, done, total, detail, rate)
        if self._watch is not None:
            self._watch(self.progress)

    def _steps(self, stage: Stage, begin: int, total: int, size: int) -> Iterator[range]:
        """Yields ranges of `size` items, each followed by `_step`."""
        for start in range(begin, total, size):
            yield range(start, min(start + size, total))
            self._step(stage, min(start + size, total), total)

    def _step(self, stage: Stage, done: int, total: int) -> None:
        """Reports a step; raises StoppedError after `stop`."""
        self._report(stage, done, total)
        if self._stopped.is_set():
            raise StoppedError

    def _fill_images(self) -> None:
        """Adds the views of precomputed features, loads precomputed views, or reads the files."""
        info, images = self._runtime.info, self._collection
        if (regions := self._runtime.regions) is not None:
            for part in self._steps("views", len(self), self.files, _AT_ONCE):
                features = regions.features(part)
                for name, gallery in self.images.items():
                    gallery.add(part, self._runtime.image_views(features, name).embeddings)
        elif images.comes_with(info.folder) and (loaded := prepared.load(info, images)):
            windows = loaded.clips.windows()
            self._features = {  # before `clips`, whose frames queries look up in it
                file: dict(zip(chain(*windows), features, strict=True))
                for file, features in loaded.features.items()
            }
            self.clips = loaded.clips
            for name, views in loaded.views.items():
                self.images[name].add([window[0] for window in windows], views)
        else:
            self._read_files()

    def _read_files(self) -> None:
        images = self._collection.images
        with closing(self.encoder.read(images[self._passed :], self._stopped)) as chunks:
            for chunk in chunks:
                rows = [row for reading in chunk for row in self._accept(*reading)]
                self._add(rows, [self.first])
                self._passed += len(chunk)
                self._step("pictures", self._passed, len(images))
        self.first_done.set()
        ids = self.images[self.first].ids().tolist()
        others = [name for name in self.images if name != self.first]
        begin = max((len(self.images[name]) for name in others), default=len(ids))
        for part in self._steps("views", begin, len(ids), _AT_ONCE):
            self._add([self.clips.window_of(ids[i]) for i in part], others)

    def _add(self, rows: Sequence[Sequence[int]], methods: Sequence[str]) -> None:
        """Adds rows, each an image or a window of frames, to the galleries of methods."""
        images = [[self.clips.image(image_id) for image_id in row] for row in rows]
        for name, views in self.encoder.views(images, methods).items() if rows else ():
            self.images[name].add([row[0] for row in rows], views)

    def _accept(self, image: CollectionImage, content: Content) -> list[list[int]]:
        """The rows of a file; none if it is left out or a copy."""
        if content.refusal:
            self.refused.append(Refusal(image.file, image.file + content.refusal))
            return []
        first_file = self._first_files.setdefault(content.digest, image.file)
        if first_file != image.file and not image.captions:
            self.copies.append(Copy(image.file, first_file))
            return []
        if content.moments:
            self.clips[image.image_id] = content.moments
        return self.clips.windows(image.image_id)

    def _fill_captions(self) -> None:
        texts = [text for text, _ in self._collection.captions]
        begin = len(self.captions[self.first])
        for part in self._steps("captions", begin, len(texts), _CAPTIONS_AT_ONCE):
            for name, gallery in self.captions.items():
                chunk = texts[part.start : part.stop]
                gallery.add(part, self.encoder.encode_captions(chunk, name))

    def _build_clusters(self) -> None:
        names = [name for name, gallery in self.images.items() if gallery.is_large()]
        for done, name in enumerate(names):
            self._step("clusters", done, len(names))
            captions = [text for text, _ in self._collection.captions]
            texts = captions or sorted(self._runtime.reader.known)  # similar to users' queries
            sentences = texts[:: max(1, len(texts) // _PROBES)][:_PROBES]
            probes = self._runtime.text_views(sentences, name).embeddings  # (Q, W, D)
            self.images[name].build_search_index([Views(probe[None]) for probe in probes])
