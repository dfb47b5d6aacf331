"""Downloads a pack from the Hub into its client's cache.

What is fetched is known file by file before it is: pack.json first, then `gallery.json`, then
exactly what the two name. The sizes that the Hub states are compared with pack.json, and with what
may be fetched; while a file comes, its bytes are counted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from huggingface_hub import HfApi, ModelInfo, constants
from huggingface_hub.utils import tqdm

from export.hub.blobs import forget
from export.hub.client import HubError, is_cached, refuse_damaged
from export.hub.resume import take_up
from export.pack.gallery import parse_gallery
from export.pack.schema import (
    CARD,
    FOLDER,
    INDEX,
    MANIFEST,
    MAX_MANIFEST,
    GallerySummary,
    PackInfo,
    parse_info,
)
from export.pack.validation import MAX_JSON, PackError, read_json

MAX_CARD = 10**6  # bytes of README.md, which is left out where it has more
_EVERY = 0.3  # seconds between two signs of life
_SMALL = 10**6  # bytes of a file that is fetched beside others
_RESUMED = 10**7  # bytes of a file that is worth going on with
_AT_ONCE = 8

Tell = Callable[[int, int, str], None]  # done, total (bytes), doing what


class TooLargeError(HubError):
    """More would be fetched than may be, or more came than was stated."""


@dataclass(frozen=True)
class Limits:
    """What may be fetched of one pack.

    Attributes:
        file: bytes of one file.
        gallery: bytes of everything in `gallery/`.
        total: bytes of all files.
        files: how many there may be.
        spare: bytes that must stay free on the disk.
    """

    file: int
    gallery: int
    total: int
    files: int
    spare: int

    def check(self, name: str, sizes: Mapping[str, int | None], place: Path) -> None:
        """Refuses what is more.

        Args:
            name: of the repository, for messages.
            sizes: the bytes of each file; None where the Hub states none.
            place: a folder on the disk that would hold them.

        Raises:
            TooLargeError: names what is too large, and the limit.
        """
        unknown = next((file for file, size in sizes.items() if size is None), None)
        if unknown is not None:
            raise TooLargeError(f"{name}: the Hub states no size of {unknown}; nothing is fetched")
        known = {file: size or 0 for file, size in sizes.items()}
        largest = max(known, key=lambda file: known[file])
        gallery = sum(size for file, size in known.items() if file.startswith(f"{FOLDER}/"))
        total = sum(known.values())
        for what, size, most in (
            (f"{largest} has", known[largest], self.file),
            ("its gallery has", gallery, self.gallery),
            ("it has", total, self.total),
        ):
            if size > most:
                raise TooLargeError(
                    f"{name}: {what} {size:,} bytes, more than the {most:,} that visitors may have "
                    "fetched; nothing is kept"
                )
        if len(known) > self.files:
            raise TooLargeError(
                f"{name} has {len(known):,} files, more than the {self.files:,} that visitors may "
                "have fetched; nothing is kept"
            )
        if shutil.disk_usage(place).free < total + self.spare:
            raise TooLargeError(f"{name}: there is no room for its {total:,} bytes on the disk")


VISITORS = Limits(
    file=10**9, gallery=5 * 10**8, total=2 * 10**9, files=20_000, spare=10**9
)  # of an app that others reach


class Count:
    """How much of all was fetched, told now and then. Safe to use from threads."""

    def __init__(self, total: int, tell: Tell | None) -> None:
        self.quiet = tell is not None
        self._total, self._tell = total, tell
        self._done, self._last = 0, 0.0
        self._lock = Lock()

    def add(self, more: int, name: str) -> None:
        """Says that so many bytes of a file have come; or begins with it, if `more` is 0."""
        with self._lock:
            self._done += more
            now = time.monotonic()
            if self._tell is not None and (now - self._last >= _EVERY or not more):
                self._last = now
                self._tell(min(self._done, self._total), self._total, name)


def fetch_file(
    api: HfApi,
    repo_id: str,
    commit: str,
    name: str,
    most: int | None,
    count: Count,
    cache_dir: Path | None = None,
    resumed: bool = False,
) -> Path:
    """Downloads a file into the Hub client's cache, whole or not at all.

    Args:
        api: the client to ask with.
        repo_id: `owner/name`.
        commit: 40 hexadecimal digits.
        name: of the file in the repository.
        most: bytes, after which it is broken off; None where nobody states how many there are.
        count: is told what comes.
        cache_dir: where downloads are kept; None for the client's own folder.
        resumed: what comes of a large file is kept where the connection or the program is cut, and
            another try goes on from there.

    Returns:
        The folder of the commit.

    Raises:
        TooLargeError: more came.
        HubError: it came damaged.
    """
    bar = _bar(name, most, count)
    if most is None or most > _SMALL:
        count.add(0, name)  # before its first bytes: they come 10 MB at a time
    if resumed and (most or 0) >= _RESUMED and not is_cached(repo_id, name, commit, cache_dir):
        take_up(api, repo_id, commit, name, bar, cache_dir)
    path = api.hf_hub_download(repo_id, name, revision=commit, cache_dir=cache_dir, tqdm_class=bar)
    folder = Path(path).parents[name.count("/")]
    refuse_damaged(repo_id, folder, [name])
    return folder


class Download:
    """One pack, as one commit of a repository holds it.

    Args:
        api: the client to ask with.
        repo_id: `owner/name`.
        found: what the Hub says the commit holds, sizes included.
        cache_dir: where downloads are kept; None for the client's own folder.
        limits: of what may be fetched; None for whatever pack.json says.
        tell: is told how far it is; None draws bars of large files.
    """

    def __init__(
        self,
        api: HfApi,
        repo_id: str,
        found: ModelInfo,
        cache_dir: Path | None = None,
        limits: Limits | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._api = api
        self._repo_id = repo_id
        self._commit = str(found.sha)
        self._stated = {file.rfilename: file.size for file in found.siblings or []}
        self._cache_dir = cache_dir
        self._limits = limits
        self._tell = tell
        self._fetched: list[str] = []
        self._folder: Path | None = None

    def run(self) -> Path:
        """Fetches what is not here.

        Returns:
            The folder of the commit.

        Raises:
            PackError: what the Hub states is not the pack that pack.json describes.
            TooLargeError: it is more than may be fetched, or more came than was stated.
            HubError: a file came damaged.
        """
        info = self.describe()
        wanted = self.plan(info)
        if self._limits is not None:
            stated = {name: self._stated[name] for name in wanted}
            place = Path(self._cache_dir or constants.HF_HUB_CACHE)
            self._limits.check(self._repo_id, stated, place)
        missing = {name: most for name, most in wanted.items() if not self._is_here(name)}
        count = Count(sum(missing.values()), self._tell)

        def fetch(name: str) -> None:
            self._fetch(name, missing[name], count)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, [name for name, most in missing.items() if most <= _SMALL]))
        for name in (name for name, most in missing.items() if most > _SMALL):
            fetch(name)
        return info.folder

    def describe(self) -> PackInfo:
        """Fetches pack.json and reads it.

        Raises:
            PackError: it is none, or too large.
            HubError: there is none, or it came damaged.
        """
        if MANIFEST not in self._stated:
            raise HubError(f"{self._repo_id} is not a pack: it has no {MANIFEST}")
        folder = self._described(MANIFEST, MAX_MANIFEST)
        return parse_info(read_json(folder / MANIFEST, MAX_MANIFEST), folder)

    def plan(self, info: PackInfo) -> dict[str, int]:
        """The files of the pack, and the bytes that each may have; fetches gallery.json.

        Raises:
            PackError: the Hub lacks one, or states another size than pack.json.
        """
        wanted = {name: file.bytes for name, file in info.files.items()}
        for name, said in wanted.items():
            if (stated := self._size(name)) not in (None, said):
                raise PackError(
                    f"{name} has {stated:,} bytes on the Hub, but pack.json says {said:,}"
                )
        if (size := self._stated.get(CARD, 0)) is None or 0 < size <= MAX_CARD:
            wanted[CARD] = MAX_CARD
        if info.gallery is not None:
            wanted |= self._images(info.gallery)
        return {MANIFEST: MAX_MANIFEST, **wanted}

    def forget(self) -> None:
        """Removes what was fetched; what was here before stays."""
        if self._folder is not None:
            forget(self._folder, self._fetched)

    def _images(self, gallery: GallerySummary) -> dict[str, int]:
        """The images and masks that gallery.json names, and the bytes that each may have."""
        folder = self._described(f"{FOLDER}/{INDEX}", MAX_JSON)
        images = [f"{FOLDER}/{name}" for name in parse_gallery(folder / FOLDER).files]
        stated = {name: self._size(name) for name in images}
        known, claimed = sum(size or 0 for size in stated.values()), gallery.images_bytes
        if known > claimed or (known < claimed and None not in stated.values()):
            raise PackError(
                f"the images of its gallery have {known:,} bytes on the Hub, but pack.json says "
                f"{claimed:,}"
            )
        return {name: claimed if size is None else size for name, size in stated.items()}

    def _size(self, name: str) -> int | None:
        if name not in self._stated:
            raise PackError(f"it lacks {name}")
        return self._stated[name]

    def _described(self, name: str, most: int) -> Path:
        """Fetches a file that says what else there is; returns the folder of the commit."""
        size = self._size(name)
        if size is not None and size > most:
            raise PackError(f"{name} has {size:,} bytes, more than the {most:,} that are read")
        return self._fetch(name, most if size is None else size, Count(size or 0, self._tell))

    def _is_here(self, name: str) -> bool:
        return is_cached(self._repo_id, name, self._commit, self._cache_dir)

    def _fetch(self, name: str, most: int, count: Count) -> Path:
        here = self._is_here(name)
        folder = fetch_file(
            self._api,
            self._repo_id,
            self._commit,
            name,
            most,
            count,
            self._cache_dir,
            resumed=self._limits is None,
        )
        self._folder = folder
        if not here:
            self._fetched.append(name)
        return folder


def _bar(name: str, most: int | None, count: Count) -> type[Any]:
    """A bar that counts, and breaks off what has more bytes; the client makes one for each file."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            if count.quiet or (most is not None and most <= _SMALL):
                options["disable"] = True
            super().__init__(*args, **options)
            self._came = int(options.get("initial") or 0)
            if self._came:
                count.add(self._came, name)

        def update(self, n: float | None = 1) -> bool | None:
            self._came += int(n or 0)
            if most is not None and self._came > most:
                raise TooLargeError(
                    f"{name} has more bytes than the {most:,} that were stated; it is not kept"
                )
            count.add(int(n or 0), name)
            return super().update(n)

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the wire, which may be compressed, do not count."""

    return Bar
