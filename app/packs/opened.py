"""The open packs and collections, which requests name by key.

A request names a pack and a collection, for which there is a `Retriever`. Packs on this machine
open at the first request. Opened folders and uploads are kept until others need their place; a
request for a closed one raises `GoneError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from polyview.app.gallery.images import unreadable
from polyview.app.gallery.scan import Collection, from_pack, open_images
from polyview.app.packs import fit
from polyview.app.packs.errors import ForbiddenError, GoneError, without_paths
from polyview.app.packs.presets import pack_folder
from polyview.app.packs.uploads import Uploads
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED, PHOTOGRAPHS, SCENES, Settings, bundled_packs
from polyview.export.pack.reading import read_info
from polyview.export.pack.schema import PackInfo
from polyview.export.runtime import Runtime

MAX_FOLDERS = 8
MAX_RETRIEVERS = 6  # over collections other than uploads
_OPENING_SECONDS = 2.0  # until the answer is that a place is still being opened
_LAST_STEP = 10.0  # seconds to wait at the end for reading to stop


class Opened:
    """Opens packs over collections and keeps a limited number; safe to use from threads.

    Args:
        settings: the app's settings; their pack is opened at once.
        cache: the user's cache folder.

    Attributes:
        settings: as given.
        cache: as given.
        private: whether only this machine reaches the app.
        first_pack: the key of the pack the app was started with.
        first: the retriever of that pack and the initial images; reading is not started yet.

    Raises:
        FileNotFoundError: the pack or its images are missing.
        ValueError: the pack, the device or the gallery cannot be used.
    """

    def __init__(self, settings: Settings, cache: Path) -> None:
        self.settings, self.cache, self.private = settings, cache, settings.private
        self._lock = threading.RLock()  # guards everything below
        self._loading = threading.Lock()  # load one pack at a time, to save memory
        self._folders: dict[str, Path] = {}  # of loaded packs, by key
        self._runtimes: WeakValueDictionary[str, Runtime] = WeakValueDictionary()  # in use
        self._retrievers: OrderedDict[tuple[str, str], Retriever] = OrderedDict()
        self._collections: OrderedDict[str, Collection] = OrderedDict()
        self._uploads = Uploads()
        self._openings: dict[str, tuple[threading.Event, Future[None]]] = {}  # to stop; its end
        self._ready: Callable[[Runtime], Any] | None = None  # makes galleries of images in Qdrant
        self._start = ""  # the key of --gallery
        self.first_pack = self.add_pack(pack_folder(settings.first_pack, cache))
        if isinstance(settings.gallery, str):
            from polyview.app.gallery.qdrant import Points, open_points  # needs an optional package

            self._start = "qdrant"
            self._collections["qdrant"], self._ready = open_points(Points(settings.gallery))
        elif settings.gallery is not None:
            self._start = _folder_key(settings.gallery)
            images = open_images(settings.gallery, cache, settings.follow_links)
            self._collections[self._start] = images
        runtime = self._runtime(self.first_pack)  # held until its retriever is made
        if self._start:
            runtime.require_images()
        self._first_collection = self._default_collection(self.first_pack)
        self.first = self._make(self.first_pack, self._first_collection)
        self._retrievers[self.first_pack, self._first_collection] = self.first

    def retriever(self, pack: str = "", collection: str = "") -> Retriever:
        """The retriever of a pack and a collection; opens it and starts reading if necessary.

        Args:
            pack: a key of `packs`; empty for the pack that suits the collection.
            collection: a key of `collections` or of an upload; empty for --gallery or else the
                pack's own images.

        Raises:
            GoneError: the pack or collection is no longer open.
            ValueError: the pack cannot search these images.
        """
        names = pack, collection = self.resolve(pack, collection)
        with self._lock:
            if collection in self._uploads:
                self._uploads.use(collection)
            if retriever := self._retrievers.get(names):
                self._retrievers.move_to_end(names)
                return retriever
        with self._loading:
            if retriever := self._retrievers.get(names):
                return retriever
            retriever = self._make(pack, collection)
            retriever.index.start()
            with self._lock:
                self._retrievers[names] = retriever
                self._make_room()
        return retriever

    def resolve(self, pack: str, collection: str) -> tuple[str, str]:
        """Replaces empty keys of a pack and a collection by the defaults."""
        if not pack:
            pack = self.first_pack
            owned = collection in self._collections and not self.private
            if collection.startswith(("folder-", "upload-")) and not owned:
                pack = self._for_photographs()
            elif collection and collection in self.packs():
                pack = collection
        if not collection and pack == self.first_pack:
            return pack, self._first_collection
        return pack, collection or self._default_collection(pack)

    def beside(self, retriever: Retriever) -> list[Retriever]:
        """Other open retrievers for comparisons, without those over uploads."""
        with self._lock:
            return [
                other
                for (_, collection), other in self._retrievers.items()
                if other is not retriever and collection not in self._uploads
            ]

    def packs(self) -> dict[str, PackInfo]:
        """The packs on this machine that may be used here, by key."""
        folders = [*self._folders.values(), *(BUNDLED / name for name in bundled_packs())]
        if self.private:
            folders += sorted(self.cache.glob("packs/*"))
        infos: dict[str, PackInfo] = {}
        for folder in folders:
            with contextlib.suppress(ValueError, OSError):
                info = read_info(folder)
                infos[_pack_key(info)] = info
        return infos

    def add_pack(self, folder: Path) -> str:
        """Makes the pack in a folder available; returns its key."""
        key = _pack_key(read_info(folder))
        with self._lock:
            self._folders[key] = folder
        return key

    def is_open(self, pack: str) -> bool:
        """Whether a pack is in memory."""
        return pack in self._runtimes

    def collections(self) -> dict[str, dict[str, Any]]:
        """Kind, title and number of pictures of each collection, by key; without uploads."""
        with self._lock:
            known = {
                key: {"kind": "folder", "title": images.title, "pictures": len(images.images)}
                for key, images in self._collections.items()
            }
        for key, info in self.packs().items():
            if info.gallery is not None:
                pictures = info.gallery.images
                known[key] = {"kind": "pack", "title": info.title, "pictures": pictures}
        return known

    def sends_files(self, collection: str) -> bool:
        """Whether original files of a collection may be sent, including their metadata.

        Files of the owner are sent only to the owner; those of a pack or an upload to anyone with
        the key.
        """
        return self.private or collection not in self._collections

    def open_place(self, place: str) -> str:
        """Starts opening a folder or ZIP archive of this machine; returns its key.

        Raises:
            ForbiddenError: the app is public.
            FileNotFoundError: the place does not exist or holds no image.
            ValueError: the archive cannot be used.
        """
        self.require_owner("only the app's owner chooses images, with --gallery")
        if not place.strip():
            raise ValueError("place is empty; name a folder of images, or a ZIP archive of them")
        try:
            path = Path(place).expanduser()
            key = _folder_key(path)
        except (OSError, RuntimeError) as error:
            raise unreadable(f'"{place[:200]}"', error) from error
        with self._lock:
            if key not in self._openings:
                self._openings[key] = threading.Event(), Future()
                arguments = key, path, *self._openings[key]
                threading.Thread(target=self._open, args=arguments, daemon=True).start()
            _, opened = self._openings[key]
        wait([opened], _OPENING_SECONDS)
        self._check_opened(key)
        return key

    def _check_opened(self, key: str) -> bool:
        """Whether a place is open; raises the error of opening it, once."""
        with self._lock:
            _, opened = self._openings.get(key, (None, None))
            if opened is not None and not opened.done():
                return False
            self._openings.pop(key, None)
        if opened is not None:
            opened.result()
        return True

    def waiting(self, collection: str) -> tuple[str, int] | None:
        """The stage and number of files of a collection that is not being read yet; else None."""
        if collection.startswith("folder-") and not self._check_opened(collection):
            return "opening", 0
        if collection.startswith("upload-"):
            upload = self._uploads.use(collection)
            return None if upload.images else ("uploading", len(upload.files))
        return None

    def stop_opening(self, key: str) -> None:
        """Cancels the opening of a place."""
        if key in self._openings:
            self._openings[key][0].set()

    def _open(self, key: str, path: Path, stopped: threading.Event, opened: Future[None]) -> None:
        try:
            images = open_images(path, self.cache, self.settings.follow_links, stopped)
            with self._lock:
                self._forget(key)  # the files may have changed
                self._collections[key] = images
                own = [k for k in self._collections if k != self._start]
                for oldest in own[:-MAX_FOLDERS]:
                    self._forget(oldest)
            opened.set_result(None)
        except Exception as error:
            if stopped.is_set():
                opened.set_exception(GoneError("opening was stopped; open it again"))
            elif isinstance(error, ValueError | FileNotFoundError):
                opened.set_exception(error)
            else:
                opened.set_exception(unreadable(f'"{str(path)[:200]}"', error))

    def new_upload(self) -> str:
        """Creates a collection for uploads; returns its secret key.

        Raises:
            FullError: the maximum number is reached.
        """
        with self._lock:
            for key in self._uploads.unused(making_room=True):
                self._forget(key)
            return self._uploads.begin()

    def add_file(self, key: str, name: str, content: bytes) -> None:
        """Adds a file to an upload; see `Uploads.add`."""
        self._uploads.add(key, name, content)

    def start_upload(self, key: str, pack: str) -> Retriever:
        """Starts reading the files uploaded so far; files are not read twice.

        Raises:
            GoneError: the upload no longer exists.
            ValueError: none of the files is an image.
        """
        with self._lock:
            self._uploads.collect(key)
            self._close_over(key)
        return self.retriever(pack, key)

    def sweep(self) -> None:
        """Deletes uploads that have not been used for long."""
        with self._lock:
            for key in self._uploads.unused():
                self._forget(key)

    def close(self) -> None:
        """Stops all reading, waits for it to end, and deletes all uploads."""
        with self._lock:
            for key in list(self._uploads):
                self._forget(key)
            indexes = [retriever.index for retriever in self._retrievers.values()]
            for index in indexes:
                index.stop()
        for index in indexes:
            index.join(_LAST_STEP)

    def require_owner(self, sentence: str) -> None:
        """Raises ForbiddenError with this message if the app is public."""
        if not self.private:
            raise ForbiddenError(sentence)

    def sentence(self, error: Exception) -> str:
        """The message of an error; in a public app without paths of this machine."""
        return str(error) if self.private else without_paths(str(error))

    def _forget(self, key: str) -> None:
        """Closes a collection and its retrievers."""
        self._collections.pop(key, None)
        self._close_over(key)
        self._uploads.delete(key)

    def _close_over(self, collection: str) -> None:
        """Closes the retrievers over a collection."""
        for names in [names for names in self._retrievers if names[1] == collection]:
            self._retrievers.pop(names).index.stop()

    def _make_room(self) -> None:
        """Closes the least recently used retrievers."""
        first = (self.first_pack, self._first_collection)
        others = [n for n in self._retrievers if n[1] not in self._uploads and n != first]
        for names in others[: 1 - MAX_RETRIEVERS]:
            self._retrievers.pop(names).index.stop()

    def _make(self, pack: str, collection: str) -> Retriever:
        """Makes a retriever, without starting to read."""
        images = self._images(collection)
        if collection in self._collections and pack not in self._folders:
            # otherwise a visitor could make every bundled pack read all of the owner's images
            self.require_owner(f"only {', '.join(self._folders)} may read these images")
        runtime = self._runtime(pack)
        if collection != pack:
            runtime.require_images()
        if collection == "qdrant" and self._ready is not None:
            return Retriever(runtime, images, self.cache, self._ready(runtime))
        upload = self._uploads.get(collection)
        encoded = upload.folder / "encoded" if upload else None
        return Retriever(runtime, images, self.cache, encoded=encoded)

    def _images(self, collection: str) -> Collection:
        if collection.startswith("folder-") and not self._check_opened(collection):
            raise ValueError("this collection is still being opened; ask again in a moment")
        if images := self._collections.get(collection):
            self._collections.move_to_end(collection)
            return images
        if collection.startswith("folder-"):
            raise GoneError("this collection is no longer open; open the folder again")
        if collection.startswith("upload-"):
            if (images := self._uploads.use(collection).images) is None:
                raise ValueError("nothing of this upload is read yet; start it first")
            return images
        info = self.packs().get(collection)
        if info is None or info.gallery is None:
            raise GoneError(f'there is no collection "{collection[:80]}" here; choose another one')
        with self._lock:  # a single object, so that packs over the same images can be recognised
            alike = [other for (_, key), other in self._retrievers.items() if key == collection]
        return alike[0].collection if alike else from_pack(info.folder)

    def _info(self, pack: str) -> PackInfo:
        if runtime := self._runtimes.get(pack):  # without reading a file
            return runtime.info
        if pack in self._folders:
            return read_info(self._folders[pack])
        if info := self.packs().get(pack):
            return info
        raise GoneError(f'the pack "{pack[:80]}" is not on this machine; load it again')

    def _runtime(self, pack: str) -> Runtime:
        """The runtime of a pack; loads it if necessary."""
        if runtime := self._runtimes.get(pack):
            return runtime
        folder = self._info(pack).folder
        runtime = Runtime.load(folder, self.settings.device)
        if runtime.regions is None and folder.parent != BUNDLED:  # bundled packs are known to work
            runtime.start_image_encoder()
        self._runtimes[pack] = runtime
        return runtime

    def _default_collection(self, pack: str) -> str:
        if self._start and not self._info(pack).has_regions:
            return self._start
        return next((key for key in (pack, self.first_pack) if self._info(key).gallery), SCENES)

    def _for_photographs(self) -> str:
        """The first pack if it can search photographs, else the bundled one that can."""
        info = self.first.info
        return PHOTOGRAPHS if fit.knows_scenes(info) or info.has_regions else self.first_pack


def _pack_key(info: PackInfo) -> str:
    """The key of a pack: a bundled name, or a name extended by a part of its checksum."""
    if info.folder.parent == BUNDLED:
        return info.folder.name
    return f"{info.name}@{info.identity[:8]}"


def _folder_key(place: Path) -> str:
    return f"folder-{hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:16]}"
