"""One pack's galleries over one collection, filled in the background."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app import prepared
from app.collection import Collection, Picture
from app.encoder import Encoded, Encoder, Refusal
from app.gallery import Gallery
from app.pictures import reason
from app.searchable import Searchable
from export.runtime import Runtime
from models import Views

PICTURES_AT_ONCE = 64
_CAPTIONS_AT_ONCE = 512
_TELLING = 2.0  # seconds of a stage, before which its rate says little
_PROBES = 64  # queries that recall is measured with

_log = logging.getLogger(__name__)
Stage = Literal["pictures", "views", "captions", "clusters", "ready", "failed"]


@dataclass(frozen=True)
class Progress:
    """How far a gallery is: `done` of `total` items of a stage, in `seconds`."""

    stage: Stage
    done: int = 0
    total: int = 0
    problem: str = ""
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether nothing more will be added."""
        return self.stage in ("ready", "failed")

    def __str__(self) -> str:
        if self.stage == "ready":
            return f"{self.total:,} pictures ready"
        if self.stage == "failed":
            return self.problem
        how_far = f"{self.done:,} of {self.total:,}"
        if self.done and self.seconds >= _TELLING:
            rate = self.done / self.seconds
            left = round((self.total - self.done) / rate)
            time_left = f"{left // 60} min" if left >= 120 else f"{left} s"
            how_far += f", {rate:,.0f} a second, {time_left} left"
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

    Attributes:
        first: as given.
        images: the pictures' gallery of each method.
        captions: the captions' gallery of each method; ids count `collection.captions`.
        first_done: set once no more pictures will come for `first`.
        images_done: set once no more pictures will come for any method.
        captions_done: set once no more captions will come.
        encoder: the runtime with its cache.
        refused: the files that were skipped so far, and why.
        copies: the files that are not shown because another one is the same. Pictures that come
            with captions are all shown: captions and measurements mean each of them.
        progress: how far the galleries are.
    """

    def __init__(
        self, runtime: Runtime, collection: Collection, cache: Path, first: str | None = None
    ) -> None:
        self.first = first or next(iter(runtime.methods))
        methods, count = runtime.methods.items(), len(collection.pictures)
        self._own = {n: Gallery("images", runtime.device, m, count) for n, m in methods}
        store = collection.store
        self.images: Mapping[str, Searchable] = store.galleries(runtime) if store else self._own
        count = len(collection.captions)
        self.captions = {n: Gallery("texts", runtime.device, m, count) for n, m in methods}
        self.first_done, self.images_done = threading.Event(), threading.Event()
        self.captions_done = threading.Event()
        self.encoder = Encoder(runtime, collection, cache)
        self.refused: list[Refusal] = []
        self.copies: list[Copy] = []
        self._shown: dict[bytes, str] = {}  # the file in the place of all that are the same
        self._digests: dict[int, bytes] = {}  # what was in the pictures that are shown, by id
        self.progress = Progress("pictures", 0, len(collection.pictures))
        self._collection = collection
        self._runtime = runtime
        self._stopped = threading.Event()

    def __len__(self) -> int:
        """How many pictures every method can find."""
        return min(len(gallery) for gallery in self.images.values())

    def done(self, methods: Iterable[str]) -> threading.Event:
        """Set once no more pictures will come for any of some methods."""
        return self.first_done if set(methods) == {self.first} else self.images_done

    def start(self, watch: Callable[[Progress], None] | None = None) -> None:
        """Begins to fill the galleries; `watch` is told of every step."""
        threading.Thread(target=self._fill, args=(watch,), name="index", daemon=True).start()

    def stop(self) -> None:
        """Ends the filling after its present step."""
        self._stopped.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until pictures and captions are ready; False where that took too long."""
        return self.images_done.wait(seconds) and self.captions_done.wait(seconds)

    def add(
        self,
        pictures: Sequence[Picture],
        progress: Callable[[int, int], None],
        cancel: threading.Event,
        methods: Sequence[str] | None = None,
    ) -> Report:
        """Encodes pictures and makes them searchable; files that cannot be used are skipped.

        Args:
            pictures: of the collection.
            progress: called with how many are done, and of how many.
            cancel: when set, ends the work after the present step.
            methods: those that can find them then; None for all.
        """
        report = Report(0, [])
        starts = range(0, len(pictures), PICTURES_AT_ONCE)
        chunks = [pictures[start : start + PICTURES_AT_ONCE] for start in starts]
        done = 0
        with contextlib.closing(self.encoder.encode_each(chunks, methods)) as encoding:
            for chunk in chunks:
                if cancel.is_set():
                    break
                encoded = next(encoding)
                rows, changed = self._to_show(encoded)
                ids = [encoded.pictures[row].image_id for row in rows]
                for name, views in encoded.views.items():
                    self._own[name].add(ids, Views(views.embeddings[rows]))
                refused = encoded.refused + changed
                self.refused.extend(refused)
                report = Report(report.added + len(ids), report.refused + refused)
                done += len(chunk)
                progress(done, len(pictures))
        return report

    def _to_show(self, encoded: Encoded) -> tuple[list[int], list[Refusal]]:
        """The rows to show: of files that are the same, the first; and those changed meanwhile."""
        rows, changed = [], []
        for row, (picture, digest) in enumerate(
            zip(encoded.pictures, encoded.digests, strict=True)
        ):
            before = self._digests.get(picture.image_id)
            first = self._shown.setdefault(digest, picture.file)
            if before is not None and before != digest:
                reason = f"{picture.file} changed while pictures were read; start again"
                changed.append(Refusal(picture.file, reason))
            elif before is not None or picture.captions or first == picture.file:
                rows.append(row)
                self._digests[picture.image_id] = digest
            else:
                self.copies.append(Copy(picture.file, first))
        return rows, changed

    def _fill(self, watch: Callable[[Progress], None] | None) -> None:
        """Encodes everything; runs in its own thread, and a failure becomes part of `progress`."""
        began: dict[Stage, float] = {"pictures": time.monotonic()}

        def tell(progress: Progress) -> None:
            now = time.monotonic()
            progress = replace(progress, seconds=now - began.setdefault(progress.stage, now))
            self.progress = progress
            if watch is not None:
                watch(progress)

        pictures = self._collection.pictures
        try:
            if self._collection.store is None and not self._take_prepared():
                self._fill_pictures(lambda *step: tell(Progress(*step)))
            self.first_done.set()
            self.images_done.set()
            self._fill_captions(lambda done, total: tell(Progress("captions", done, total)))
            self.encoder.prune(pictures)
            self._settle(lambda done, total: tell(Progress("clusters", done, total)))
            tell(Progress("ready", len(self), len(self)))
        except Exception as error:  # whatever it was, the app goes on and says so
            _log.exception("the gallery could not be filled")
            tell(Progress("failed", problem=f"the gallery could not be read: {reason(error)}"))
        finally:
            self.encoder.close()
            self.first_done.set()
            self.images_done.set()
            self.captions_done.set()

    def _fill_pictures(self, progress: Callable[[Stage, int, int], None]) -> None:
        pictures = self._collection.pictures
        self.add(
            pictures,
            lambda done, total: progress("pictures", done, total),
            self._stopped,
            [self.first],
        )
        self.first_done.set()
        if others := [name for name in self.images if name != self.first]:
            shown = [picture for picture in pictures if picture.image_id in self._digests]
            self.add(
                shown, lambda done, total: progress("views", done, total), self._stopped, others
            )

    def _settle(self, progress: Callable[[int, int], None]) -> None:
        """Makes the galleries fast, once they are filled."""
        for gallery in (*self._own.values(), *self.captions.values()):
            gallery.seal()
        large = [name for name, gallery in self._own.items() if gallery.is_large()]
        for done, name in enumerate(large):
            progress(done, len(large))
            if self._stopped.is_set():
                return
            method = self._runtime.methods[name]
            probes = self._runtime.text_views(self._sentences(), name).embeddings  # (Q, W, D)
            self._own[name].settle(method, [Views(probe[None]) for probe in probes])

    def _sentences(self) -> list[str]:
        """Like those that visitors will ask: captions from all over, or else the pack's words."""
        captions = [text for text, _ in self._collection.captions]
        known = captions or self._runtime.words()
        return known[:: max(1, len(known) // _PROBES)][:_PROBES]

    def _take_prepared(self) -> bool:
        """Fills the pictures' galleries at once with what comes with the app, where it does."""
        views = prepared.load(self._runtime.info, self._collection)
        if views is None:
            return False
        for name, rows in views.items():
            self._own[name].add(range(len(rows)), rows)
        return True

    def _fill_captions(self, progress: Callable[[int, int], None]) -> None:
        texts = [text for text, _ in self._collection.captions]
        done = 0
        for name, gallery in self.captions.items():
            for start in range(0, len(texts), _CAPTIONS_AT_ONCE):
                if self._stopped.is_set():
                    return
                chunk = texts[start : start + _CAPTIONS_AT_ONCE]
                views = self.encoder.encode_captions(chunk, name)
                gallery.add(range(start, start + len(chunk)), views)
                done += len(chunk)
                progress(done, len(texts) * len(self.captions))
