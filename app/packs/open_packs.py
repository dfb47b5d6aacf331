"""The packs that are open: the one the app started with, and those its visitors loaded."""

import contextlib
import hashlib
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from app.blocks.server import uploads
from app.gallery.archive import open_images
from app.gallery.collection import Collection, from_pack, from_uploads
from app.gallery.image_files import StoppedError
from app.gallery.qdrant.address import Address
from app.packs import fit
from app.packs.jobs import CancelledError
from app.packs.paths import without_paths
from app.packs.presets import pack_folder
from app.packs.sources import Sources
from app.search.retriever import Retriever
from app.settings import BUNDLED, PHOTOGRAPHS, SCENES, Settings, bundled_pack, bundled_packs
from export.hub.client import remove_commit
from export.pack.reading import read_info
from export.pack.schema import PackInfo
from export.runtime import Runtime

if TYPE_CHECKING:
    from app.gallery.qdrant.store import QdrantStore

MOST_FILES = 1000  # that one visitor may send to search them
_GUESTS = 3  # packs kept open beside the first
_UPLOADED = 16  # galleries of files that visitors sent, kept open
_OWN = "uploaded "  # begins the keys of these, which nobody can guess


class OpenPacks:
    """Opens packs and keeps them; each session says by key which one it uses.

    Args:
        settings: how the app was asked to run; its pack is opened at once.
        cache: the user's cache folder.

    Attributes:
        first: the pack the app was started with; its index is for the caller to start.
        sources: where others come from.

    Raises:
        FileNotFoundError: the pack or its pictures are missing.
        ValueError: the pack, the device or the gallery cannot be used.
    """

    def __init__(self, settings: Settings, cache: Path) -> None:
        self.sources = Sources(settings, cache)
        self._settings = settings
        self._cache = cache
        self._lock = threading.Lock()  # of the guests
        self._loading = threading.Lock()  # one pack at a time: each takes memory while it loads
        self._guests: OrderedDict[str, Retriever] = OrderedDict()
        self._opening: dict[str, threading.Event] = {}  # by who may cancel it
        self._distant: QdrantStore | None = None  # the gallery, where it is in Qdrant
        self._runtimes: weakref.WeakValueDictionary[str, Runtime] = weakref.WeakValueDictionary()
        runtime = self._load(pack_folder(settings.first_pack, cache))
        given = settings.gallery
        if isinstance(given, Address):
            from app.gallery.qdrant.store import open_store  # needs a package that few have

            self._distant = open_store(given, cache)
            images: Collection | None = self._distant.collection
        else:
            images = None if given is None else self._images_at(given)
        self.first = self._over(runtime, images)
        self._first_key = _key(runtime.info, images)

    @property
    def private(self) -> bool:
        """Whether only this machine reaches the app, so that its visitor may stop its work."""
        return self._settings.private

    def get(self, key: str) -> Retriever:
        """The pack a session uses; the empty key means the first.

        Raises:
            ValueError: the pack was closed to make room for others.
        """
        if not key:
            return self.first
        with self._lock:
            if key not in self._guests:
                raise ValueError("this pack was closed to make room; load it again in Models")
            self._guests.move_to_end(key)
            return self._guests[key]

    def packs(self) -> dict[str, Retriever]:
        """Every open pack by its key for `get`, the first one first; not over what was uploaded."""
        with self._lock:
            shared = {k: pack for k, pack in self._guests.items() if not k.startswith(_OWN)}
            return {"": self.first, **shared}

    @property
    def offers_choice(self) -> bool:
        """Whether visitors begin with a choice: who started the app named no pack and no images."""
        return self._settings.pack is None and self._settings.gallery is None

    def here(self) -> dict[str, PackInfo]:
        """The packs on this machine that a visitor may use, by what `use` takes."""
        folders = [BUNDLED / name for name in bundled_packs()]
        if self.private:
            folders += sorted(self._cache.glob("packs/*"))
        infos = [pack.info for pack in self.packs().values()]
        for folder in folders:
            with contextlib.suppress(ValueError, OSError):
                infos.append(read_info(folder))
        return {_key(info): info for info in infos}

    def use(self, name: str, key: str) -> str:
        """Opens a pack that is `here`, or a bundled one by its name; see `open`."""
        info, folder = self.here().get(name), bundled_pack(name)
        folder = info.folder if info else folder
        if folder is None:
            raise ValueError("this pack is not here any more; choose another one in Models")
        return self.open(folder, key=key)

    def name(self, key: str) -> str:
        """What `use` calls the pack behind a key."""
        return _key(self.get(key).info)

    def sends_files(self, key: str) -> bool:
        """Whether files of the gallery may be sent as they are; they may say where they were taken.

        The owner's go to the owner alone; what came with a pack, or of a visitor, to its visitors.
        """
        return self.private or key.startswith(_OWN) or self._images_of(key) is None

    def keeps_images(self, key: str) -> bool:
        """Whether a visitor's images are no pack's, so that another pack would search them, too."""
        return self._images_of(key) is not None

    def open(self, folder: Path, obtained: bool = False, key: str = "") -> str:
        """Opens the pack in a folder; those already open stay as they are.

        Args:
            folder: of the pack.
            obtained: it was fetched for this; where it cannot be used by a visitor, it goes again.
            key: of the pack that the visitor used; images that are no pack's stay. Others make
                room for the pack's own, and stay where it has none.

        Returns:
            Its key for `get`.

        Raises:
            ValueError: it cannot be used.
        """
        with self._loading:
            try:
                runtime = self._load(folder)
            except ValueError:
                if obtained and not self.private:
                    remove_commit(folder)
                raise
            # ready-made features are of the pack's own images alone
            images = self._images_of(key) if runtime.regions is None else None
            if images is None and runtime.info.gallery is None:
                images = self.first.collection
            return self._keep(runtime, images, key.startswith(_OWN))

    def scenes(self) -> str:
        """Opens the rendered scenes with the pack that knows them; see `open`."""
        with self._loading:
            return self._keep(self._load(BUNDLED / SCENES), None)

    def sentence(self, error: Exception) -> str:
        """What visitors are told: where things lie on this machine is nobody else's business."""
        return str(error) if self.private else without_paths(str(error))

    def show(self, key: str, place: str, owner: str = "") -> str:
        """Opens other pictures with a pack that is open.

        Args:
            key: of the pack for `get`.
            place: a folder of pictures on this machine, or a ZIP archive of them.
            owner: who may cancel it.

        Returns:
            The key for `get` of the pack with these pictures.

        Raises:
            CancelledError: it was cancelled.
            FileNotFoundError: there is no such place, or it holds no picture.
            ValueError: the archive cannot be used, or places may not be named here.
        """
        if not self.private:
            raise ValueError("pictures are chosen where the app runs, by --gallery")
        if not place:
            raise ValueError("name a folder of pictures on this machine, or a ZIP archive of them")
        stopped = self._opening.setdefault(owner, threading.Event())
        with self._loading:
            try:
                collection = self._images_at(Path(place).expanduser(), stopped)
            except StoppedError as error:
                raise CancelledError("Cancelled") from error
            finally:
                self._opening.pop(owner, None)
            return self._keep(self._for_photographs(key), collection)

    def upload(self, key: str, files: Sequence[tuple[Path, str]]) -> str:
        """Opens images that a visitor sent; nobody else finds them.

        Args:
            key: as `show`.
            files: as `app.blocks.server.uploads.named` gives them.

        Returns:
            As `show`.

        Raises:
            ValueError: there are too many, or none is a picture.
        """
        if len(files) > MOST_FILES:
            raise ValueError(f"these are {len(files):,} files; send at most {MOST_FILES:,}")
        collection = from_uploads(uploads.folder(), list(dict(files).items()))
        with self._loading:
            return self._keep(self._for_photographs(key), collection, uploaded=True)

    def cancel(self, owner: str) -> None:
        """Ends what `owner` has fetched or opened."""
        self.sources.obtainer.cancel(owner)
        if stopped := self._opening.get(owner):
            stopped.set()

    def _keep(self, runtime: Runtime, images: Collection | None, uploaded: bool = False) -> str:
        """Takes a guest in, unless it is there; the oldest of its kind makes room."""
        key = f"{_OWN}{token_hex(16)}" if uploaded else _key(runtime.info, images)
        if key == self._first_key:
            return ""
        with self._lock:
            if key not in self._guests:
                self._guests[key] = self._over(runtime, images, uploaded)
                self._guests[key].index.start()
            alike = [other for other in self._guests if other.startswith(_OWN) == uploaded]
            for oldest in alike[: -(_UPLOADED if uploaded else _GUESTS)]:
                self._guests.pop(oldest).index.stop()
        return key

    def _over(
        self, runtime: Runtime, images: Collection | None, uploaded: bool = False
    ) -> Retriever:
        """A pack over images; None takes its own."""
        if images is None:
            if runtime.info.gallery is None:
                raise ValueError(
                    f"the pack {runtime.info.name} comes without pictures; "
                    "give your own with --gallery DIR"
                )
            images = from_pack(runtime.info.folder)
        else:
            runtime.require_images()
        if self._distant is not None and images is self._distant.collection:
            return Retriever(runtime, images, self._cache, self._distant.galleries(runtime))
        if not uploaded:
            return Retriever(runtime, images, self._cache)
        scratch = Path(tempfile.mkdtemp(prefix="polyview-"))  # what was sent goes, and this with it
        retriever = Retriever(runtime, images, self._cache, encoded=scratch)
        weakref.finalize(retriever.index, shutil.rmtree, scratch, ignore_errors=True)
        return retriever

    def _images_at(self, place: Path, stopped: threading.Event | None = None) -> Collection:
        return open_images(place, self._cache, self._settings.follow_links, stopped)

    def _images_of(self, key: str) -> Collection | None:
        """The images behind a key, where they are no pack's."""
        images = self.get(key).collection
        own = key.startswith(_OWN) or "@" in (key or self._first_key)
        borrowed = "@" not in self._first_key and images is self.first.collection
        return images if own and not borrowed else None

    def _load(self, folder: Path) -> Runtime:
        """The pack in a folder, which is in memory once."""
        key = _key(read_info(folder))
        runtime = self._runtimes.get(key)
        if runtime is None:
            runtime = Runtime.load(folder, self._settings.device)
            own = folder.parent == BUNDLED  # is known to work: its encoder starts at its first use
            if runtime.regions is None and not own:
                runtime.image_encoder()
            self._runtimes[key] = runtime
        return runtime

    def _for_photographs(self, key: str) -> Runtime:
        """The pack behind a key, unless it knows rendered scenes alone, or reads no images."""
        runtime = self.get(key).runtime
        unfit = fit.knows_scenes(runtime.info) or runtime.regions is not None
        return self._load(BUNDLED / PHOTOGRAPHS) if unfit else runtime


def _key(info: PackInfo, images: Collection | None = None) -> str:
    """What tells an open pack from others: where it lies, every word and byte of it, its images.

    The same weights may come with other texts and numbers; nobody is shown those of another.
    """
    key = hashlib.sha256(f"{info.identity} {info.folder.resolve()}".encode()).hexdigest()
    if images is None:
        return key
    return f"{key}@{hashlib.sha256(str(images.folder).encode()).hexdigest()[:16]}"
