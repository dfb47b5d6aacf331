"""Finds packs by name, folder or Hub id, and downloads them in the background."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from huggingface_hub import constants
from pydantic import BaseModel, PrivateAttr, computed_field
from tqdm import tqdm

from polyview.app.refusal import Refusal
from polyview.app.settings import Settings, bundled_pack, bundled_packs
from polyview.export.hub.client import CancelledError, UnreachableError, is_hub_id, parse_hub_id
from polyview.export.hub.packs import find_cached, resolve
from polyview.export.obtain import CLIP, PACK, Offer, find_offer, obtain
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import MANIFEST

_MAX_JOBS = 8  # latest downloads whose state can be requested
_MAX_MESSAGE = 1000  # characters of a message
# an absolute path, but not the path of a URL or the slash in owner/name; the group is the file name
_ABSOLUTE_PATH = re.compile(r"(?<![\w:/.-])(?:[A-Za-z]:)?/(?:[^\s\"'/]+/)*([^\s\"'/]*)")
# published weights of CLIP and SigLIP by their names for `--pack`; the file explains the fields
_PRESETS_FILE = Path(__file__).with_name("presets.toml")
PRESETS: dict[str, dict[str, Any]] = tomllib.loads(_PRESETS_FILE.read_text("utf-8"))


def converted_folder(cache: Path, kind: str, address: str) -> Path:
    """Returns the folder of the pack that is converted from the published weights at an address."""
    readable_name = re.sub(r"[^A-Za-z0-9.-]+", "-", address).strip("-.")[:80]
    digest = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:8]
    return cache / "packs" / f"{kind}-{readable_name}-{digest}"


def converted_pack(cache: Path, kind: str, address: str) -> Path | None:
    """Returns the folder of the pack converted from a preset or address; None if it is missing."""
    with suppress(ValueError, OSError):
        return load_info(converted_folder(cache, kind, _hub_id(address)), verify=False).folder
    return None


def _hub_id(address: str) -> str:
    """Returns the Hub id of a preset; returns any other address unchanged."""
    return PRESETS[address]["published"] if address in PRESETS else address


def pack_folder(pack: str, cache: Path) -> Path:
    """Returns the folder of a pack, given as a name, folder or Hub id `owner/name[@revision]`.

    Fetches a Hub pack or preset that is not on this machine. Raises FileNotFoundError for an
    unknown name, and ValueError if the pack cannot be fetched.
    """
    if folder := bundled_pack(pack):
        return folder
    if pack not in PRESETS or Path(pack).is_dir():
        try:
            return resolve(pack)
        except FileNotFoundError as error:
            names = ", ".join([*bundled_packs(), *PRESETS])
            raise FileNotFoundError(f"{error}; or name one of {names}") from error
    if folder := converted_pack(cache, CLIP, pack):
        return folder
    title = PRESETS[pack]["title"]
    try:
        offer = find_offer(CLIP, PRESETS[pack]["published"])
    except UnreachableError as error:
        hint = f"{title} is not on this machine yet; connect to the network to fetch it once"
        raise UnreachableError(f"{error}. {hint}") from error
    repo, size = offer.repo, offer.repo.missing_bytes
    source = f"{title} from {repo.repo_id}@{repo.commit[:8]}: {size / 1e6:,.0f} MB"
    details = f"licence {repo.licence or 'not stated'}; {PRESETS[pack]['time']}"
    print(f"polyview: fetching {source}, {details}", file=sys.stderr, flush=True)
    with tqdm(total=size, unit="B", unit_scale=True, mininterval=0.5) as bar:

        def report(done: int, total: int, step: str) -> None:
            bar.set_description(step)
            bar.update(done - bar.n if total else 0)

        out = converted_folder(cache, CLIP, offer.repo.address)
        return obtain(offer, out, report, threading.Event())


class Job(BaseModel):
    """The state of a download; any client that knows the key may cancel the download."""

    job: str  # the key of the download
    state: str  # "running", "ready", "cancelled" or "failed"
    done: int  # fetched bytes
    total: int  # bytes to fetch; 0 during a conversion
    doing: str  # the current step, shown to users
    pack: str  # the key of the pack in `AppState.packs`; empty until the download is ready
    error: str  # the error message of a failed or cancelled download
    _start_time: float = PrivateAttr(default_factory=time.monotonic)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def seconds(self) -> float:
        """Seconds since the start of the download."""
        return time.monotonic() - self._start_time


class Downloads:
    """Finds packs by their addresses, and downloads one pack at a time.

    `add_pack` makes the pack in a folder available and returns its key. `message_of` returns the
    message of an error. Raises ValueError if an entry of `settings.allow_packs` is not a Hub id.
    """

    def __init__(
        self,
        settings: Settings,
        cache: Path,
        add_pack: Callable[[Path], str],
        message_of: Callable[[Exception], str],
    ) -> None:
        self._private, self._allowed = settings.private, settings.allow_packs
        self._cache, self._add_pack, self._message_of = cache, add_pack, message_of
        for address in self._allowed:
            try:
                parse_hub_id(address)
            except ValueError as error:
                raise ValueError(f"--allow-pack: {error}") from error
        self._lock, self._jobs = threading.Lock(), dict[str, Job]()
        self._thread, self._cancelled = threading.Thread(), threading.Event()

    @property
    def allowed_addresses(self) -> str:
        """The addresses of packs that may be loaded, as a phrase for messages."""
        if self._private:
            return "a Hub id such as owner/name or a folder on this machine"
        return f"one of {', '.join([*bundled_packs(), *self._allowed])}"

    def find(self, address: str, kind: str) -> Offer | Path:
        """Returns the folder of a pack on this machine, or the files that a download would fetch.

        `kind` "pack" accepts bundled names, Hub ids and folders; a public app accepts only bundled
        names and allowed Hub ids. `kind` "clip" accepts published weights, see `find_offer`.
        Both accept names of presets. Raises `Refusal` or ValueError if the address is not allowed
        or not valid, or the Hub refuses, and UnreachableError without a connection.
        """
        kind, is_private = CLIP if address in PRESETS else kind, self._private
        if kind != PACK and not is_private:  # conversion takes minutes and much memory
            advice = "convert them in a private app or with --pack, and name the pack"
            raise Refusal(403, f"a public app does not convert published weights; {advice}")
        folder = bundled_pack(address) or (Path(address) if is_private and address else None)
        if kind != PACK:
            folder = converted_pack(self._cache, kind, address)
        if folder is not None and folder.is_dir():
            return folder
        if kind == PACK and not (is_hub_id(address) and (is_private or address in self._allowed)):
            message = f'"{address[:200]}" is not a pack that may be loaded here'
            raise ValueError(f"{message}; name {self.allowed_addresses}")
        try:  # a public app does not use the owner's token
            offer = find_offer(kind, _hub_id(address), None if is_private else False)
        except UnreachableError as error:
            if kind == PACK:
                return find_cached(address, error)
            hint = "packs in folders on this machine load without the network"
            raise UnreachableError(f"{error}; {hint}") from error
        repo = offer.repo
        if kind == PACK and MANIFEST not in repo.missing_files:
            with suppress(ValueError):  # the cached files are incomplete
                return find_cached(f"{repo.repo_id}@{repo.commit}")
        return offer

    def start(self, address: str, kind: str) -> Job:
        """Starts a download; raises the errors of `find`, and `Refusal` while another one runs."""
        source = self.find(address, kind)
        with self._lock:
            if self._thread.is_alive():
                raise Refusal(503, "another download is running; try again when it ends", 60)
            key, step = token_hex(8), "Starting"
            job = Job(job=key, state="running", done=0, total=0, doing=step, pack="", error="")
            self._jobs[key] = job
            for oldest in list(self._jobs)[:-_MAX_JOBS]:
                del self._jobs[oldest]
            if isinstance(source, Path):
                job.pack, job.state = self._add_pack(source), "ready"
                return job
            self._cancelled = threading.Event()
            arguments = job, source, self._cancelled
            self._thread = threading.Thread(target=self._fetch, args=arguments, daemon=True)
            self._thread.start()
        return job

    def get(self, key: str) -> Job:
        """Returns the state of a download by key; raises `Refusal` if the key is not known."""
        if job := self._jobs.get(key):
            return job
        raise Refusal(410, "this download is no longer known; fetch the pack again")

    def cancel(self, key: str) -> Job:
        """Cancels a download; incomplete files, and the result of a conversion, are deleted."""
        job = self.get(key)
        if job.state == "running":
            self._cancelled.set()
            job.state, job.error = "cancelled", f"Cancelled after {job.seconds:.0f} s"
        return job

    def _fetch(self, job: Job, offer: Offer, cancelled: threading.Event) -> None:
        """Downloads the files of an offer, and updates the job."""

        def report(done: int, total: int, step: str) -> None:
            job.done, job.total, job.doing = done, total, step

        out = converted_folder(self._cache, offer.kind, offer.repo.address)
        try:
            folder = obtain(offer, out, report, cancelled, for_visitor=not self._private)
            job.pack, job.state = self._add_pack(folder), "ready"
        except CancelledError:
            job.state = "cancelled"
        except Exception as error:  # failures are reported in the job's state
            job.state, job.error = "failed", self._message_of(error)


def remove_paths(message: str) -> str:
    """Shortens absolute paths in a message to file names, and the message to 1,000 characters.

    >>> remove_paths('/home/me/hub/pack.json has 2 bytes; see http://host/owner/name')
    'pack.json has 2 bytes; see http://host/owner/name'
    """
    roots = (Path(constants.HF_HUB_CACHE), Path(tempfile.gettempdir()), Path.home(), Path.cwd())
    paths = {str(path) for root in roots for path in (root, root.resolve())}
    for root in sorted(paths, key=len, reverse=True):  # roots may be nested, or have spaces
        message = message.replace(f"{root}/", "/")
    message = _ABSOLUTE_PATH.sub(r"\1", message)
    return message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} …"
