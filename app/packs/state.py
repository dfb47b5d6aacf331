"""The open packs and collections, which requests name by key.

A `Retriever` searches a collection with a pack. The first request for a pack on this machine opens
it. Folders are closed if too many are open. Uploads are closed if they are unused for long, or if
uploads take too much room. Requests for closed folders and uploads are refused with status 410.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from polyview.app.gallery.images import to_image_error
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import Collection, from_pack, from_uploads, open_images
from polyview.app.packs.downloads import Downloads, pack_folder, remove_paths
from polyview.app.packs.uploads import Uploads
from polyview.app.refusal import Refusal
from polyview.app.search.computations import Computation
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED, PHOTOGRAPHS, SCENES, Settings, bundled_packs
from polyview.export.pack.reading import read_info
from polyview.export.pack.schema import PackInfo
from polyview.export.runtime import Runtime

MAX_FOLDERS = 8  # open folders and archives
MAX_RETRIEVERS = 6  # retrievers over collections other than uploads
_OPENING_SECONDS = 2.0  # time that a request waits until a folder or archive is open
_STOP_SECONDS = 1.0  # time that a request waits until reading stops
_EXIT_SECONDS = 10.0  # time to wait at exit until reading stops


class _Opening(NamedTuple):
    """A folder or archive that is being opened, or could not be opened."""

    images: Future[Collection]
    stopped: threading.Event  # ends the opening when set


class AppState:
    """Opens packs and collections, and keeps a limited number open; safe to use in threads.

    Attributes:
        private: True if only this machine can reach the app.
        runtimes: the packs in memory, by key.
        first_pack: the key of the pack that the app starts with.
        first: the retriever that the app starts with; its images are not read yet.

    Raises:
        FileNotFoundError: the pack or its images are missing.
        ValueError: the pack, the device or the gallery cannot be used.
    """

    def __init__(self, settings: Settings, cache: Path) -> None:
        self.settings, self.cache, self.private = settings, cache, settings.private
        self._lock = threading.RLock()  # guards the attributes below
        self._loading = threading.Lock()  # held while a pack is loaded: one at a time saves memory
        self._folders: dict[str, Path] = {}  # folders of the packs from `add_pack`, by key
        self.runtimes: WeakValueDictionary[str, Runtime] = WeakValueDictionary()
        self._retrievers: OrderedDict[tuple[str, str], Retriever] = OrderedDict()
        self._collections: OrderedDict[str, Collection] = OrderedDict()  # folders or Qdrant by key
        self._openings: dict[str, _Opening] = {}  # by key, until `_finish_opening`
        self._galleries: Callable[[Runtime], Any] | None = None  # makes the galleries in Qdrant
        self._start_key = ""  # the key of --gallery; empty without it
        self.uploads = Uploads()
        self.downloads = Downloads(settings, cache, self.add_pack, self.public_message)
        self.first_pack = self.add_pack(pack_folder(settings.first_pack, cache))
        if isinstance(settings.gallery, str):
            from polyview.app.gallery.qdrant import Points, open_points  # needs an optional package

            self._start_key = "qdrant"
            self._collections["qdrant"], self._galleries = open_points(Points(settings.gallery))
        elif settings.gallery is not None:
            self._start_key, opening = self._open(settings.gallery)
            opening.images.result()  # waits; raises the error of a failure
        runtime = self._runtime(self.first_pack)  # this reference keeps it in `runtimes`
        if self._start_key:
            runtime.require_images()
        self._first_keys = self.first_pack, self._default_collection(self.first_pack)
        self.first = self._retrievers[self._first_keys] = self._make(*self._first_keys)

    def retriever(self, pack: str = "", collection: str = "") -> Retriever:
        """Returns the retriever of a pack and a collection; makes it and starts reading if needed.

        For empty keys, see `resolve`. Raises `Refusal` or ValueError if the pack or collection is
        not open, or the pack cannot or may not search the collection.
        """
        keys = pack, collection = self.resolve(pack, collection)
        with self._lock:
            if collection in self.uploads:
                self.uploads.renew(collection)
            if retriever := self._retrievers.get(keys):
                self._retrievers.move_to_end(keys)
                return retriever
        with self._loading:
            if retriever := self._retrievers.get(keys):  # made by another request
                return retriever
            retriever = self._make(pack, collection)
            retriever.index.start()
            with self._lock:
                self._retrievers[keys] = retriever
                uploads, first_keys = self.uploads, self._first_keys
                others = [k for k in self._retrievers if k[1] not in uploads and k != first_keys]
                for oldest in others[: 1 - MAX_RETRIEVERS]:  # one place is for `first`
                    self._retrievers.pop(oldest).index.stop()
        return retriever

    def resolve(self, pack: str, collection: str) -> tuple[str, str]:
        """Replaces empty keys of a pack and a collection by the defaults.

        A pack's own images are searched with that pack. Folders and uploads are searched with the
        bundled pack for photographs if the first pack is for scenes or regions; this does not apply
        to folders of a public app. The default collection is described at `_default_collection`.
        """
        if not pack:
            pack, info = self.first_pack, self.first.info
            is_public_folder = collection in self._collections and not self.private
            if collection.startswith(("folder-", "upload-")) and not is_public_folder:
                pack = PHOTOGRAPHS if info.name == SCENES or info.has_regions else pack
            elif collection and collection in self.packs():
                pack = collection
        return pack, collection or self._default_collection(pack)

    def peers(self, retriever: Retriever) -> dict[str, Retriever]:
        """Returns the retrievers of other open packs over the same images, by key of the pack."""
        with self._lock:
            return {
                pack: other
                for (pack, _), other in self._retrievers.items()
                if other.collection is retriever.collection and other is not retriever
            }

    def packs(self) -> dict[str, PackInfo]:
        """Returns the packs that this app may use, by key; a public app uses no cached packs."""
        folders = [*self._folders.values(), *(BUNDLED / name for name in bundled_packs())]
        if self.private:
            folders += sorted(self.cache.glob("packs/*"))
        infos: dict[str, PackInfo] = {}
        for folder in folders:
            with suppress(ValueError, OSError):
                info = read_info(folder)
                infos[_pack_key(info)] = info
        return infos

    def add_pack(self, folder: Path) -> str:
        """Makes the pack in a folder available; returns its key."""
        key = _pack_key(read_info(folder))
        with self._lock:
            self._folders[key] = folder
        return key

    def collections(self) -> list[dict[str, Any]]:
        """Lists key, kind, title and number of images of each collection except uploads."""
        folders = list(self._collections.items())
        packs = [(key, info.title, info.gallery) for key, info in self.packs().items()]
        rows = [(key, "folder", images.title, len(images.images)) for key, images in folders]
        rows += [(key, "pack", title, gallery.images) for key, title, gallery in packs if gallery]
        return [dict(zip(("key", "kind", "title", "pictures"), row, strict=True)) for row in rows]

    def sends_files(self, collection: str) -> bool:
        """Returns True if a collection's files may be sent; visitors get none of the owner's."""
        return self.private or collection not in self._collections

    def open_collection(self, place: str) -> str:
        """Starts opening a folder or ZIP archive on this machine; returns the collection's key.

        Raises `Refusal` if the app is public, and the error if opening fails within 2 seconds.
        """
        self.refuse_public("only the app's owner chooses images, with --gallery")
        if not place.strip():
            raise ValueError("place is empty; name a folder of images, or a ZIP archive of them")
        try:
            key, opening = self._open(Path(place).expanduser())
        except (OSError, RuntimeError) as error:
            raise to_image_error(f'"{place[:200]}"', error) from error
        wait([opening.images], _OPENING_SECONDS)
        self._finish_opening(key)
        return key

    def _open(self, path: Path) -> tuple[str, _Opening]:
        """Returns the key of a folder or archive; starts opening it unless it is being opened."""
        key = f"folder-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
        with self._lock:
            opening = self._openings.get(key)
            if opening is None or opening.images.done():
                opening = self._openings[key] = _Opening(Future(), threading.Event())
                for oldest in list(self._openings)[:-MAX_FOLDERS]:
                    self._openings.pop(oldest).stopped.set()
                threading.Thread(target=self._load, args=(key, path, opening), daemon=True).start()
        return key, opening

    def _load(self, key: str, path: Path, opening: _Opening) -> None:
        """Opens a folder or archive in a thread; sets the result or the error of `opening`."""
        future, stopped = opening
        try:
            images = open_images(path, self.cache, stopped)
            with self._lock:
                self._close(key)  # if it was opened before: its files may have changed
                self._collections[key] = images
                for oldest in [k for k in self._collections if k != self._start_key][:-MAX_FOLDERS]:
                    self._close(oldest)
            future.set_result(images)
        except Exception as error:
            if stopped.is_set():
                future.set_exception(Refusal(410, "opening was stopped; open it again"))
            elif isinstance(error, ValueError | FileNotFoundError):
                future.set_exception(error)
            else:
                future.set_exception(to_image_error(f'"{str(path)[:200]}"', error))

    def _finish_opening(self, key: str) -> bool:
        """Returns True unless a key is being opened; raises the error of a failed opening once."""
        with self._lock:
            opening = self._openings.get(key)
            if opening is not None and not opening.images.done():
                return False
            self._openings.pop(key, None)
        if opening is not None:
            opening.images.result()
        return True

    def pending_stage(self, collection: str) -> tuple[str, int] | None:
        """Returns the stage and file count of a collection before reading starts; later None."""
        if not self._finish_opening(collection):
            return "opening", 0
        if not collection.startswith("upload-"):
            return None
        upload = self.uploads.renew(collection)
        return None if upload.images else ("uploading", len(upload.files))

    def stop_opening(self, key: str) -> None:
        """Cancels the opening of a folder or archive."""
        if opening := self._openings.get(key):
            opening.stopped.set()

    def new_upload(self) -> str:
        """Creates an upload and returns its key; raises `Refusal` if there are too many."""
        with self._lock:
            self.sweep(making_room=True)
            return self.uploads.create()

    def start_upload(self, key: str, pack: str) -> Retriever:
        """Starts or resumes reading the files uploaded so far; starts again after a failure.

        Raises `Refusal` if the upload no longer exists or an earlier start is still reading a file,
        and ValueError if no file is an image.
        """
        upload = self.uploads.renew(key)
        images = from_uploads(upload.folder, list(upload.files))
        indexes = self._indexes(key)
        if images != upload.images or any(i.progress.stage == "failed" for i in indexes):
            for index in indexes:
                index.stop()
            for index in indexes:
                index.join(_STOP_SECONDS)  # a longer wait would hold up other requests
                if index.stopping:
                    raise _still_reading_refusal()
            with self._loading, self._lock:
                for index in indexes:
                    index.stop()  # another request may have resumed reading
                if self._indexes(key) != indexes or any(i.stopping for i in indexes):
                    raise _still_reading_refusal()
                upload.images = images
                self._close_retrievers(key)
        return self.resume(pack, key)

    def resume(self, pack: str, collection: str) -> Retriever:
        """Resumes reading a collection and returns its retriever.

        Raises `Refusal` if reading was stopped and its last step does not end within a second.
        """
        retriever = self.retriever(pack, collection)
        retriever.index.start()
        if retriever.index.stopping:
            raise _still_reading_refusal()
        return retriever

    def sweep(self, making_room: bool = False) -> None:
        """Deletes expired uploads, see `Uploads.expired_keys`; marks open archives as used."""
        with self._lock:
            for key in self.uploads.expired_keys(making_room):
                for index in (indexes := self._indexes(key)):
                    index.stop()
                if not any(index.stopping for index in indexes):  # else the next sweep deletes it
                    self._close(key)
            for folder in (images.folder for images in self._collections.values()):
                if folder.parent == (self.cache / "archives").resolve() and folder.is_dir():
                    with suppress(OSError):  # the cache cannot be written, or the folder is gone
                        os.utime(folder)

    def close(self) -> None:
        """Stops opening and reading, waits for the last steps of reading, and deletes uploads."""
        with self._lock:
            for opening in self._openings.values():
                opening.stopped.set()
            indexes = [retriever.index for retriever in self._retrievers.values()]
            for index in indexes:
                index.stop()
        deadline = time.monotonic() + _EXIT_SECONDS
        for index in indexes:
            index.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for key in list(self.uploads):
                self._close(key)

    def refuse_public(self, message: str) -> None:
        """Raises `Refusal` with this message if the app is public."""
        if not self.private:
            raise Refusal(403, message)

    def public_message(self, error: object) -> str:
        """Returns the message of an error; in a public app, without paths of this machine."""
        return str(error) if self.private else remove_paths(str(error))

    def status(self, computation: Computation) -> dict[str, Any]:
        """Returns the fields `state` and `progress` of an answer that is not ready."""
        progress = self.public_message(computation.problem or computation.progress)
        return {"state": "failed" if computation.problem else "running", "progress": progress}

    def _close(self, collection: str) -> None:
        """Closes a collection and its retrievers; deletes an upload."""
        self._collections.pop(collection, None)
        self._close_retrievers(collection)
        self.uploads.delete(collection)

    def _indexes(self, collection: str) -> list[Index]:
        with self._lock:
            return [r.index for (_, key), r in self._retrievers.items() if key == collection]

    def _close_retrievers(self, collection: str) -> None:
        for keys in [keys for keys in self._retrievers if keys[1] == collection]:
            self._retrievers.pop(keys).index.stop()

    def _make(self, pack: str, collection: str) -> Retriever:
        """Makes the retriever of a pack and a collection, without starting to read images."""
        images = self._images(collection)
        if collection in self._collections and pack not in self._folders:
            # otherwise visitors could make every bundled pack encode all of the owner's images
            self.refuse_public(f"only the packs {', '.join(self._folders)} may search these images")
        runtime = self._runtime(pack)
        if collection != pack:
            runtime.require_images()
        galleries = self._galleries(runtime) if self._galleries and collection == "qdrant" else None
        upload = self.uploads.get(collection)
        cache = upload.folder / "encoded" if upload else self.cache
        return Retriever(runtime, images, cache, galleries)

    def _images(self, collection: str) -> Collection:
        """Returns the images of a collection; raises `Refusal` or ValueError if it is not open."""
        with self._lock:
            if images := self._collections.get(collection):
                self._collections.move_to_end(collection)
                return images
        if not self._finish_opening(collection):
            raise ValueError("this collection is still being opened; try again in a moment")
        if collection.startswith("folder-"):
            raise Refusal(410, "this collection is no longer open; open the folder again")
        if collection.startswith("upload-"):
            if (images := self.uploads.renew(collection).images) is None:
                raise ValueError("this upload has not been read yet; start reading it first")
            return images
        info = self.packs().get(collection)
        if info is None or info.gallery is None:
            raise Refusal(410, f'there is no collection "{collection[:80]}" here; choose another')
        with self._lock:  # reuse the open object: `Retriever.peers` compares by identity
            open_retrievers = [r for (_, key), r in self._retrievers.items() if key == collection]
        return open_retrievers[0].collection if open_retrievers else from_pack(info.folder)

    def _info(self, pack: str) -> PackInfo:
        """Returns the `PackInfo` of a pack; raises `Refusal` for an unknown key."""
        if runtime := self.runtimes.get(pack):  # avoids reading the pack.json of every pack
            return runtime.info
        if info := self.packs().get(pack):
            return info
        raise Refusal(410, f'the pack "{pack[:80]}" is not on this machine; load it again')

    def _runtime(self, pack: str) -> Runtime:
        """Returns the runtime of a pack; loads the pack if necessary."""
        if runtime := self.runtimes.get(pack):
            return runtime
        folder = self._info(pack).folder
        runtime = Runtime.load(folder, self.settings.device)
        if runtime.regions is None and folder.parent != BUNDLED:  # bundled packs are known to work
            runtime.start_image_encoder()  # raises now, not later, if the encoder does not work
        self.runtimes[pack] = runtime
        return runtime

    def _default_collection(self, pack: str) -> str:
        """Returns the key of --gallery if the pack can encode it, or of a pack that has images."""
        if self._start_key and self._info(pack).image_encoder.file is not None:
            return self._start_key
        return next((key for key in (pack, self.first_pack) if self._info(key).gallery), SCENES)


def _still_reading_refusal() -> Refusal:
    return Refusal(503, "a file is still being read; try again in a moment", 2)


def _pack_key(info: PackInfo) -> str:
    """Returns a bundled pack's folder name, or another pack's name and 8 digits of its identity."""
    if info.folder.parent == BUNDLED:
        return info.folder.name
    return f"{info.name}@{info.identity[:8]}"
