"""Questions about images, collections, packs and recorded numbers."""

from __future__ import annotations

import io
from pathlib import Path

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.packs import fit
from polyview.app.packs.description import describe, describe_gallery
from polyview.app.packs.downloads import Download, Downloads
from polyview.app.packs.opened import Opened
from polyview.app.packs.presets import PRESETS
from polyview.app.packs.results import results

_LONGEST = 500  # characters of a pack's description


class CollectionQuestions:
    """The questions, over whatever is open."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def image(
        self,
        image_id: p.ImageId,
        large: p.Large = False,
        pack: p.Pack = "",
        collection: p.Collection = "",
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
        self,
        start: p.Start = 0,
        count: p.Count = 60,
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.Hits:
        """Lists the images of the collection, without copies and files that cannot be read."""
        retriever = self._opened.retriever(pack, collection)
        readable = retriever.shown_images()
        hits = [retriever.hit(one.image_id) for one in readable[start : start + count]]
        return answers.Hits(total=len(readable), hits=hits)

    def info(self, pack: p.Pack = "", collection: p.Collection = "") -> answers.Info:
        """Says what is searched: pack, methods, device, gallery, facts to filter by."""
        retriever = self._opened.retriever(pack, collection)
        about = describe(retriever)
        about["gallery"]["key"] = self._opened.resolve(pack, collection)[1]
        about["gallery"]["first"] = retriever.index.first  # searchable while images are read
        known = retriever.collection.facts.items()
        facts = {fact: {v: len(ids) for v, ids in values.items()} for fact, values in known}
        return answers.Info(**about, facts=facts)

    def health(self) -> answers.Health:
        """Says that the app answers, and how many images can be searched by now."""
        index = self._opened.first.index
        pictures = len(self._opened.first.collection.images)
        return answers.Health(searchable=len(index), pictures=pictures, complete=index.complete)

    def results(self, pack: p.Pack = "") -> answers.Results:
        """Gives what was measured of a pack: results, speed, trainings, ablations."""
        key, _ = self._opened.resolve(pack, "")
        return answers.Results(**results(self._opened.retriever(key, "")))

    def collections(self) -> answers.Collections:
        """Lists the collections that may be named: packs' own images, and opened folders."""
        known = self._opened.collections().items()
        names = ("key", "kind", "title", "pictures")
        listed = [dict(zip(names, (key, *about), strict=True)) for key, about in known]
        return answers.Collections(collections=listed)

    def open_collection(self, place: p.Place) -> answers.Progress:
        """Opens a folder of images, or a ZIP archive of them, of the app's own machine."""
        return self.progress("", self._opened.open_place(place))

    def new_collection(self) -> answers.Progress:
        """Begins a collection of uploaded files, whose key is secret."""
        return self.progress("", self._opened.new_upload())

    def add_file(
        self, collection: p.Upload, name: p.FileName, content: p.Content
    ) -> answers.Progress:
        """Adds a file to an upload; it is read once the collection is started."""
        self._opened.add_file(collection, name, content)
        return self.progress("", collection)

    def start_collection(self, collection: p.Upload, pack: p.Pack = "") -> answers.Progress:
        """Begins to read the files that were uploaded so far; again after more of them."""
        self._opened.start_upload(collection, pack)
        return self.progress(pack, collection)

    def progress(self, pack: p.Pack = "", collection: p.Collection = "") -> answers.Progress:
        """Says how much of a collection a pack has read, and which files are left out."""
        key, collection = self._opened.resolve(pack, collection)
        waiting = self._opened.waiting(collection)
        if waiting is not None:
            stage, count = waiting
            return answers.Progress(collection=collection, pack=key, stage=stage, pictures=count)
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

    def stop_reading(self, pack: p.Pack = "", collection: p.Collection = "") -> answers.Progress:
        """Stops the reading of a collection; what was read can be searched."""
        self._require_own(collection)
        self._opened.stop_opening(collection)
        if self._opened.waiting(collection) is None:
            self._opened.retriever(pack, collection).index.stop()
        return self.progress(pack, collection)

    def resume_reading(self, pack: p.Pack = "", collection: p.Collection = "") -> answers.Progress:
        """Goes on reading a collection where it was stopped."""
        self._require_own(collection)
        self._opened.retriever(pack, collection).index.start()
        return self.progress(pack, collection)

    def _require_own(self, collection: str) -> None:
        if not collection.startswith("upload-"):
            self._opened.require_owner("reading is stopped by the app's owner; upload own files")


class PackQuestions:
    """The questions about packs, and their downloads."""

    def __init__(self, opened: Opened) -> None:
        self._opened, self._downloads = opened, Downloads(opened, opened.settings.allow_packs)

    def packs(self) -> answers.Packs:
        """Lists the packs on this machine, and those that can be fetched by a name."""
        opened = self._opened
        packs = [
            {
                "key": key,
                "title": info.title,
                "description": info.description[:_LONGEST],
                "licence": info.licence,
                "bytes": sum(file.bytes for file in info.files.values()),
                "methods": list(info.methods),
                "own_images": info.gallery is not None,
                "open": opened.is_open(key),
            }
            for key, info in opened.packs().items()
        ]
        names = ("name", "title", "about", "facts")
        offers = [
            {name: getattr(preset, name) for name in names}
            | {"installed": preset.find(opened.cache) is not None}
            for preset in (PRESETS.values() if opened.private else ())
        ]
        accepts = self._downloads.accepts
        return answers.Packs(packs=packs, offers=offers, accepts=accepts, private=opened.private)

    def look_pack(self, address: p.Address, kind: p.Kind = "pack") -> answers.Look:
        """Says what an address would fetch; nothing is fetched."""
        offer = self._downloads.look(address, kind)
        if isinstance(offer, Path):
            key = self._opened.add_pack(offer)
            return answers.Look(pack=key, missing_bytes=0, unknown_sizes=0, parts=[])
        parts = [
            {
                "repository": part.repo_id,
                "commit": part.commit,
                "licence": part.licence,
                "files": len(part.files),
                "bytes": sum(size or 0 for size in part.missing.values()),
            }
            for part in offer.parts
        ]
        missing, unknown = offer.missing_bytes, offer.unknown
        return answers.Look(pack="", missing_bytes=missing, unknown_sizes=unknown, parts=parts)

    def fetch_pack(self, address: p.Address, kind: p.Kind = "pack") -> answers.Job:
        """Fetches what an address holds, in the background; one at a time."""
        return _job(self._downloads.start(address, kind))

    def pack_job(self, job: p.Job) -> answers.Job:
        """Says how far a download is; `pack` is its key once it is ready."""
        return _job(self._downloads.get(job))

    def cancel_pack(self, job: p.Job) -> answers.Job:
        """Ends a download; nothing half done is left."""
        return _job(self._downloads.cancel(job))


def _job(download: Download) -> answers.Job:
    names = ("state", "done", "total", "doing", "seconds", "pack", "error")
    return answers.Job(job=download.key, **{name: getattr(download, name) for name in names})
