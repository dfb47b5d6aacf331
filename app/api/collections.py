"""Questions about images, collections, packs and recorded numbers."""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex

from app.api import answers
from app.api.parameters import (
    Address,
    Collection,
    Content,
    Count,
    FileName,
    ImageId,
    Job,
    Kind,
    Large,
    Pack,
    Place,
    Start,
    Upload,
)
from app.api.search import listed
from app.packs import candidates, curves, fit, presets
from app.packs.description import describe, describe_gallery
from app.packs.jobs import CancelledError, Step
from app.packs.measured import as_json
from app.packs.opened import FullError, GoneError, Opened
from app.search.filters import offered
from export.build.offer import Offer

_JOBS = 8  # that are remembered
_LONGEST = 500  # characters of a pack's description


class CollectionQuestions:
    """The questions, over whatever is open."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def image(
        self, image_id: ImageId, large: Large = False, pack: Pack = "", collection: Collection = ""
    ) -> answers.Blob:
        """Shows an image of the collection, as a WebP without metadata."""
        retriever = self._opened.retriever(pack, collection)
        if not large:
            data = retriever.thumbnail(image_id).read_bytes()
            return answers.Blob(media_type="image/webp", data=data)
        file = io.BytesIO()
        retriever.open(image_id).save(file, "WEBP", quality=90, method=2)
        return answers.Blob(media_type="image/webp", data=file.getvalue())

    def images(
        self, start: Start = 0, count: Count = 60, pack: Pack = "", collection: Collection = ""
    ) -> answers.Hits:
        """Lists the images of the collection, without copies and files that cannot be read."""
        retriever = self._opened.retriever(pack, collection)
        shown = retriever.shown_images()
        ids = [one.image_id for one in shown[start : start + count]]
        return answers.Hits(total=len(shown), hits=listed(retriever, ids))

    def info(self, pack: Pack = "", collection: Collection = "") -> answers.Info:
        """Says what is searched: pack, methods, device, gallery, facts to filter by."""
        retriever = self._opened.retriever(pack, collection)
        return answers.Info(**describe(retriever), facts=offered(retriever.collection))

    def health(self) -> answers.Health:
        """Says that the app answers, and how many images can be searched by now."""
        index = self._opened.first.index
        pictures = len(self._opened.first.collection.images)
        return answers.Health(searchable=len(index), pictures=pictures, complete=index.complete)

    def results(self, pack: Pack = "") -> answers.Results:
        """Gives what was measured of a pack: results, speed, trainings, ablations."""
        key, _ = self._opened.resolve(pack, "")
        retriever = self._opened.retriever(key, "")
        scaling = candidates.recorded(retriever.info)
        return answers.Results(
            **as_json(retriever),
            candidates=None if scaling is None else asdict(scaling),
            curves=[asdict(training) for training in curves.load(retriever.info)],
        )

    def collections(self) -> answers.Collections:
        """Lists the collections that may be named: packs' own images, and opened folders."""
        found = self._opened.collections().items()
        return answers.Collections(
            collections=[
                answers.Listed(key=key, kind=kind, title=title, pictures=count)
                for key, (kind, title, count) in found
            ]
        )

    def open_collection(self, place: Place) -> answers.Progress:
        """Opens a folder of images, or a ZIP archive of them, of the app's own machine."""
        return self.progress("", self._opened.open_place(place))

    def new_collection(self) -> answers.Progress:
        """Begins a collection of uploaded files, whose key is secret."""
        return self.progress("", self._opened.new_upload())

    def add_file(self, collection: Upload, name: FileName, content: Content) -> answers.Progress:
        """Adds a file to an upload; it is read once the collection is started."""
        self._opened.add_file(collection, name, content)
        return self.progress("", collection)

    def start_collection(self, collection: Upload, pack: Pack = "") -> answers.Progress:
        """Begins to read the files that were uploaded so far; again after more of them."""
        self._opened.start_upload(collection, pack)
        return self.progress(pack, collection)

    def progress(self, pack: Pack = "", collection: Collection = "") -> answers.Progress:
        """Says how much of a collection a pack has read, and which files are left out."""
        key, collection = self._opened.resolve(pack, collection)
        waiting = self._opened.waiting(collection)
        if waiting is not None:
            stage, count = waiting
            return answers.Progress(
                collection=collection, pack=key, title="", pictures=count, searchable=0,
                stage=stage, progress=f"{stage}: {count:,} files" if count else stage, done=0,
                total=0, complete=False, refused_count=0, refused=[], copies_count=0, copies=[],
                mismatch=None,
            )  # fmt: skip
        retriever = self._opened.retriever(key, collection)
        index, about = retriever.index, describe_gallery(retriever)
        wrong = fit.mismatch(retriever)
        names = ("title", "pictures", "searchable", "progress")
        left = ("refused_count", "refused", "copies_count", "copies")
        return answers.Progress(
            collection=collection,
            pack=key,
            stage=index.progress.stage,
            done=index.progress.done,
            total=index.progress.total,
            complete=index.complete,
            mismatch=None if wrong is None else wrong._asdict(),
            **{name: about[name] for name in names + left},
        )

    def stop_reading(self, pack: Pack = "", collection: Collection = "") -> answers.Progress:
        """Stops the reading of a collection; what was read can be searched."""
        self._require_own(collection)
        self._opened.stop_opening(collection)
        if self._opened.waiting(collection) is None:
            self._opened.retriever(pack, collection).index.stop()
        return self.progress(pack, collection)

    def resume_reading(self, pack: Pack = "", collection: Collection = "") -> answers.Progress:
        """Goes on reading a collection where it was stopped."""
        self._require_own(collection)
        self._opened.retriever(pack, collection).index.start()
        return self.progress(pack, collection)

    def _require_own(self, collection: str) -> None:
        if not collection.startswith("upload-"):
            self._opened.require_owner("reading is stopped by the app's owner; upload own files")


@dataclass
class _Work:
    """A download, and how far it is."""

    key: str
    state: str = "running"
    step: Step = field(default_factory=lambda: Step(0, 0, "Starting", 0.0))
    pack: str = ""
    error: str = ""


class PackQuestions:
    """The questions about packs, and the downloads, of which one runs at a time."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._jobs: OrderedDict[str, _Work] = OrderedDict()

    def packs(self) -> answers.Packs:
        """Lists the packs on this machine, and those that can be fetched by a name."""
        opened = self._opened
        return answers.Packs(
            packs=[
                answers.Pack(
                    key=key,
                    title=info.title,
                    description=info.description[:_LONGEST],
                    licence=info.licence,
                    bytes=sum(file.bytes for file in info.files.values()),
                    methods=list(info.methods),
                    own_images=info.gallery is not None,
                    open=opened.is_open(key),
                )
                for key, info in opened.packs().items()
            ],
            offers=[
                answers.Offer(
                    name=one.name, title=one.title, about=one.about, facts=one.facts, installed=here
                )
                for one, here in (
                    presets.offered(opened.sources.obtainer) if opened.private else ()
                )
            ],
            accepts=opened.sources.accepts,
        )

    def look_pack(self, address: Address, kind: Kind = "pack") -> answers.Look:
        """Says what an address would fetch; nothing is fetched."""
        found = self._look(address, kind)
        if isinstance(found, Path):
            key = self._opened.add_pack(found)
            return answers.Look(pack=key, missing_bytes=0, unknown_sizes=0, parts=[])
        parts = [
            {
                "repository": part.repo_id,
                "commit": part.commit,
                "licence": part.licence,
                "files": len(part.files),
                "bytes": sum(size or 0 for size in part.missing.values()),
            }
            for part in found.parts
        ]
        missing, unknown = found.missing_bytes, found.unknown
        return answers.Look(pack="", missing_bytes=missing, unknown_sizes=unknown, parts=parts)

    def fetch_pack(self, address: Address, kind: Kind = "pack") -> answers.Job:
        """Fetches what an address holds, in the background; one at a time."""
        if any(work.state == "running" for work in self._jobs.values()):
            raise FullError("something is being fetched already; try again when it has ended")
        found = self._look(address, kind)
        work = _Work(token_hex(8))
        self._jobs[work.key] = work
        while len(self._jobs) > _JOBS:
            self._jobs.popitem(last=False)
        if isinstance(found, Path):
            work.pack, work.state = self._opened.add_pack(found), "ready"
        else:
            threading.Thread(target=self._fetch, args=(work, found), daemon=True).start()
        return self.pack_job(work.key)

    def pack_job(self, job: Job) -> answers.Job:
        """Says how far a download is; `pack` is its key once it is ready."""
        work = self._jobs.get(job)
        if work is None:
            raise GoneError("this download is not known any more; fetch the pack again")
        step = work.step
        return answers.Job(
            job=work.key,
            state=work.state,
            doing=step.doing,
            done=step.done,
            total=step.total,
            seconds=round(step.seconds, 1),
            pack=work.pack,
            error=work.error,
        )

    def cancel_pack(self, job: Job) -> answers.Job:
        """Ends a download; nothing half done is left."""
        self._opened.sources.obtainer.cancel(job)
        return self.pack_job(job)

    def _look(self, address: str, kind: str) -> Offer | Path:
        sources = self._opened.sources
        if preset := presets.PRESETS.get(address):
            self._opened.require_owner(f"{preset.title} is fetched where the app runs, by --pack")
            return preset.find(sources.obtainer) or preset.offer()
        return sources.find(kind, address) or sources.look(kind, address)

    def _fetch(self, work: _Work, offer: Offer) -> None:
        began = time.monotonic()
        try:
            for step in self._opened.sources.obtain(offer, work.key):
                if isinstance(step, Path):
                    work.pack = self._opened.add_pack(step)
                    with suppress(ValueError):
                        self._opened.retriever(work.pack)
                else:
                    work.step = step
            work.state = "ready"
        except CancelledError as error:
            work.state, work.error = "cancelled", str(error)
        except Exception as error:  # whatever it was, whoever asks is told
            work.state, work.error = "failed", self._opened.sentence(error)
        finally:
            seconds = time.monotonic() - began
            work.step = Step(work.step.done, work.step.total, work.step.doing, seconds)
