"""Fills the galleries of a pack with a collection, in a background thread."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

from torch import Tensor

from polyview.app.gallery import prepared
from polyview.app.gallery.encode import Encoder
from polyview.app.gallery.images import RefusedFile, reason
from polyview.app.gallery.index import Clips, Gallery
from polyview.app.gallery.scan import Collection, CollectionImage, StoppedError
from polyview.app.gallery.store import Content
from polyview.export.runtime import Runtime
from polyview.models import Views

_REGION_SETS_AT_ONCE, _CAPTIONS_AT_ONCE = 64, 512  # items of one step
_START_SECONDS = 1.0  # time that `start` waits until the last step ends
_LINE_INTERVAL = 0.5  # seconds between updates of a progress line
_RATE_SECONDS = 2.0  # duration of a stage from which its rate is reported
_PROBES = 64  # queries with which recall is measured
_ACTIVITIES = {
    "pictures": "reading images",
    "captions": "reading captions",
    "views": "computing views",
    "clusters": "finding clusters",
}

_log = logging.getLogger(__name__)
Stage = Literal["pictures", "views", "captions", "clusters", "stopped", "ready", "failed"]


@dataclass(frozen=True)
class Progress:
    """The progress of filling a gallery.

    >>> print(Progress("pictures", 1_000, 5_000, rate=20.0))
    reading images: 1,000 of 5,000, 20 a second, 3 min left
    >>> print(Progress("captions", 1_000, 1_500, rate=20.0))
    reading captions: 1,000 of 1,500, 20 a second, 25 s left
    """

    stage: Stage
    done: int = 0  # completed items of the stage
    total: int = 0  # all items of the stage
    detail: str = ""  # the message of the stages "stopped" and "failed"
    rate: float = 0.0  # items per second; 0 until the rate is known

    @property
    def finished(self) -> bool:
        """True if filling has ended and cannot be resumed."""
        return self.stage in ("ready", "failed")

    def __str__(self) -> str:
        if self.stage == "ready":
            return f"{self.total:,} images ready"
        if self.stage in ("failed", "stopped"):
            return self.detail
        message = f"{_ACTIVITIES[self.stage]}: {self.done:,} of {self.total:,}"
        if self.rate:
            seconds_left = round((self.total - self.done) / self.rate)
            time_left = f"{seconds_left // 60} min" if seconds_left >= 120 else f"{seconds_left} s"
            message += f", {self.rate:,.0f} a second, {time_left} left"
        return message


class ProgressLine:
    """Shows progress on a line of stderr, if it is a terminal; prints the last step to `out`."""

    def __init__(self, out: TextIO | None = None) -> None:  # None: stdout
        self._out, self._next_time = out, 0.0

    def __call__(self, progress: Progress) -> None:
        """Rewrites the line at most twice a second, or prints the last step."""
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
    """The galleries of all methods of a pack; nothing is read before `start`.

    Args:
        cache: the user's cache folder.
        galleries: galleries by method that already contain the images; None to encode the images.

    Attributes:
        images: the gallery of images of each method.
        captions: the gallery of captions of each method; ids are indices of `Collection.captions`.
        file_count: the number of files in the collection.
        encoder: computes and stores features and views.
        progress: the progress of filling.
        clips: the moments of each clip's frames; the galleries contain their windows.
        images_done: set when all images are added, or filling has stopped or failed.
        captions_done: set when all captions are added, or filling has stopped or failed.
        complete: True if all readable images are added.
        refused: the files left out so far, with reasons.
        copies: the files left out because another file has the same bytes. Copies with captions
            are not left out: captions and metrics refer to each of them.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        cache: Path,
        galleries: Mapping[str, Gallery] | None = None,
    ) -> None:
        self._runtime, self._collection = runtime, collection
        methods, device = runtime.methods.items(), runtime.device
        self.file_count, count = len(collection.images), len(collection.captions)
        self.images: Mapping[str, Gallery] = galleries or {
            name: Gallery("images", method, device, self.file_count) for name, method in methods
        }
        self.captions = {name: Gallery("texts", method, device, count) for name, method in methods}
        self.clips = Clips(collection, runtime.info.image_encoder.frames)
        self.encoder = Encoder(runtime, collection, cache)
        # precomputed features (n, d) by image encoder and image id, see `prepared.load`
        self._prepared_features: dict[str, dict[int, Tensor]] = {}
        self.images_done, self.captions_done = threading.Event(), threading.Event()
        self.complete = galleries is not None
        self.refused, self.copies = list(collection.left_out), list[Copy]()
        self._first_files: dict[bytes, str] = {}  # the first file with each content, by SHA-256
        self._files_read = 0
        self.progress = Progress("pictures", 0, self.file_count)
        self._stage_start = ("", 0.0, 0)  # stage, its start time, and items done at the start
        self._watch: Callable[[Progress], None] | None = None
        self._stopped, self._start_lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Returns the number of images that every method can find; a clip counts as one."""
        return min(int((gallery.ids() < self.file_count).sum()) for gallery in self.images.values())

    def start(self, watch: Callable[[Progress], None] | None = None) -> None:
        """Starts filling the galleries, or resumes after `stop`.

        `watch` is called after every step; None keeps the current function. After `stop`, waits at
        most a second for the last step to end, and does nothing if it goes on, see `stopping`.
        """
        if self._stopped.is_set():
            self.join(_START_SECONDS)
        with self._start_lock:
            if self._thread is not None and (
                not self._stopped.is_set() or self.progress.finished or self._thread.is_alive()
            ):
                return
            self._watch = watch or self._watch
            for event in (self._stopped, self.images_done, self.captions_done):
                event.clear()
            self._stage_start = ("", 0.0, 0)
            if self.progress.stage == "stopped":  # the thread reports only after its first step
                done = self.file_count if self.complete else max(self._files_read, len(self))
                self.progress = Progress("pictures", done, self.file_count)
            thread = threading.Thread(target=self._fill, name="index", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads; `start` may be called again
                self._stopped.set()
                raise
            self._thread = thread  # set last: `join` fails for threads that are not started

    def stop(self) -> None:
        """Stops filling after the current step; images read so far can be searched."""
        self._stopped.set()

    @property
    def stopping(self) -> bool:
        """True while the last step runs after `stop`."""
        return self._stopped.is_set() and self._thread is not None and self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Waits at most `seconds` until filling ends."""
        if self._thread is not None:
            self._thread.join(seconds)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for images and captions, up to `seconds` for each; returns False on timeout."""
        return self.images_done.wait(seconds) and self.captions_done.wait(seconds)

    def features(
        self, image_ids: Iterable[int], method: str, *, cached_only: bool = False
    ) -> dict[int, Tensor]:
        """Returns the features (n, d) that a method reads, by id of the image or clip frame.

        See `Encoder.features` for `cached_only`; features stored with the pack are always returned.
        Raises ValueError for an unknown id, and ImageError if an image cannot be read.
        """
        images = {image_id: self.clips.image(image_id).require_file() for image_id in image_ids}
        if self._runtime.regions is not None:
            return dict(zip(images, self._runtime.regions.features(list(images)), strict=True))
        if self._prepared_features:
            by_id = self._prepared_features[str(self._runtime.image_encoder_of(method))]
            return {image_id: by_id[image_id].float() for image_id in images}
        return self.encoder.features(list(images.values()), method, cached_only=cached_only)

    def _fill(self) -> None:
        """Fills all galleries; reports a failure in `progress`."""
        try:
            if not self.complete:
                self._fill_images()
                self.complete = True
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
            self.images_done.set()
            self.captions_done.set()

    def _report(self, stage: Stage, done: int = 0, total: int = 0, detail: str = "") -> None:
        """Updates `progress` and calls `watch`."""
        now = time.monotonic()
        if self._stage_start[0] != stage:
            self._stage_start = stage, now, done
        _, start, done_at_start = self._stage_start
        rate = (done - done_at_start) / (now - start) if now - start >= _RATE_SECONDS else 0.0
        self.progress = Progress(stage, done, total, detail, rate)
        if self._watch is not None:
            self._watch(self.progress)

    def _steps(self, stage: Stage, begin: int, total: int, size: int) -> Iterator[range]:
        """Yields ranges of at most `size` items from `begin` on; calls `_step` after each range."""
        for start in range(begin, total, size):
            items = range(start, min(start + size, total))
            yield items
            self._step(stage, items.stop, total)

    def _step(self, stage: Stage, done: int, total: int) -> None:
        """Reports a step; raises StoppedError if `stop` was called."""
        self._report(stage, done, total)
        if self._stopped.is_set():
            raise StoppedError

    def _fill_images(self) -> None:
        """Fills the image galleries from region features, precomputed views, or the files."""
        info, images = self._runtime.info, self._collection
        if (regions := self._runtime.regions) is not None:
            for part in self._steps("views", len(self), self.file_count, _REGION_SETS_AT_ONCE):
                features = regions.features(part)
                for name, gallery in self.images.items():
                    gallery.add(part, self._runtime.image_views(features, name).embeddings)
        elif images.comes_with(info.folder) and (loaded := prepared.load(info, images)):
            windows = loaded.clips.windows()
            self._prepared_features = {  # set before `clips`: queries look up its frames here
                encoder: dict(zip(chain(*windows), features, strict=True))
                for encoder, features in loaded.features.items()
            }
            self.clips = loaded.clips
            for name, views in loaded.views.items():
                self.images[name].add([window[0] for window in windows], views)
        else:
            self._read_files()

    def _read_files(self) -> None:
        """Reads the files, and adds their images to the galleries of all methods."""
        images = self._collection.images
        with closing(self.encoder.read(images[self._files_read :], self._stopped)) as chunks:
            for chunk in chunks:
                windows = [ids for file_content in chunk for ids in self._record(*file_content)]
                frame_sets = [[self.clips.image(image_id) for image_id in ids] for ids in windows]
                for name, views in self.encoder.views(frame_sets).items() if windows else ():
                    self.images[name].add([ids[0] for ids in windows], views)
                self._files_read += len(chunk)
                self._step("pictures", self._files_read, len(images))

    def _record(self, image: CollectionImage, content: Content) -> list[list[int]]:
        """Records the result of reading a file; returns its windows, or [] if it is left out."""
        if content.refusal:
            self.refused.append(RefusedFile(image.file, image.file + content.refusal))
            return []
        first_file = self._first_files.setdefault(content.digest, image.file)
        if first_file != image.file and not image.captions:
            self.copies.append(Copy(image.file, first_file))
            return []
        if content.moments:
            self.clips[image.image_id] = content.moments
        return self.clips.windows(image.image_id)

    def _fill_captions(self) -> None:
        """Adds the captions to the galleries of all methods."""
        texts = [text for text, _ in self._collection.captions]
        begin = min(map(len, self.captions.values()))
        for part in self._steps("captions", begin, len(texts), _CAPTIONS_AT_ONCE):
            chunk = texts[part.start : part.stop]
            for name, gallery in self.captions.items():
                gallery.add(part, self.encoder.encode_captions(chunk, name))

    def _build_clusters(self) -> None:
        """Builds the search indexes of large galleries."""
        names = [name for name, gallery in self.images.items() if gallery.is_large()]
        for done, name in enumerate(names):
            self._step("clusters", done, len(names))
            captions = [text for text, _ in self._collection.captions]
            texts = captions or sorted(self._runtime.reader.words)  # similar to users' queries
            sentences = texts[:: max(1, len(texts) // _PROBES)][:_PROBES]
            probes = self._runtime.text_views(sentences, name).embeddings  # (Q, W, D)
            self.images[name].build_search_index([Views(probe[None]) for probe in probes])
