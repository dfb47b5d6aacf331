"""What was computed once and need not be computed again: tensors under text keys, on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.checkpoint import load_tensors, save_tensors

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where this user's caches lie: POLYVIEW_CACHE, or the platform's usual place.

    Where that cannot be written, a folder for this run alone takes its place.
    """
    folder = _usual_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        _log.warning("the cache %s cannot be written, nothing is kept: %s", folder, error)
        return Path(tempfile.mkdtemp(prefix="polyview-"))


def _usual_folder() -> Path:
    if chosen := os.environ.get("POLYVIEW_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "polyview"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/polyview"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyview"


class Store:
    """Tensors of one shape under text keys, in files that are each written whole or not at all.

    Each `save` makes one file (a shard), named after the keys it holds. Several processes may share
    a folder. A damaged shard is dropped, and a folder that cannot be written costs only time: what
    it should have kept is computed again.

    Args:
        folder: belongs to this store alone; made when something is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._places: dict[str, tuple[Path, int]] = {}
        for shard in sorted(folder.glob("*.safetensors")):
            keys = _read_keys(shard)
            self._places.update({key: (shard, row) for row, key in enumerate(keys)})

    def load(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """The tensors of those keys that are known; the others are left out."""
        with self._lock:
            wanted: dict[Path, list[tuple[str, int]]] = defaultdict(list)
            for key in keys:
                if key in self._places:
                    shard, row = self._places[key]
                    wanted[shard].append((key, row))
        found: dict[str, Tensor] = {}
        for shard, rows in wanted.items():
            try:
                tensors, _ = load_tensors(shard)
                found.update({key: tensors["rows"][row] for key, row in rows})
            except (OSError, ValueError, KeyError, IndexError) as error:
                _log.warning("the cache file %s is dropped: %s", shard, error)
                self._forget(shard)
        return found

    def save(self, keys: Sequence[str], rows: Tensor) -> None:
        """Keeps rows[i] under keys[i]; (B, ...) with B = len(keys)."""
        if not keys:
            return
        name = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]
        shard = self._folder / f"{name}.safetensors"
        try:
            save_tensors(shard, {"rows": rows}, {"keys": list(keys)})
        except OSError as error:
            _log.warning("the cache %s cannot be written and is not used: %s", self._folder, error)
            return
        with self._lock:
            self._places.update({key: (shard, row) for row, key in enumerate(keys)})

    def prune(self, keep: Iterable[str]) -> None:
        """Deletes the shards that hold none of the keys to keep."""
        kept = set(keep)
        with self._lock:
            shards = {shard for shard, _ in self._places.values()}
            needed = {shard for key, (shard, _) in self._places.items() if key in kept}
        for shard in shards - needed:
            self._forget(shard)

    def _forget(self, shard: Path) -> None:
        with self._lock:
            self._places = {k: place for k, place in self._places.items() if place[0] != shard}
        _delete(shard)


def _read_keys(shard: Path) -> list[str]:
    """The keys of a shard, or none where it is damaged, in which case it is deleted."""
    try:
        with safe_open(shard, framework="pt") as file:
            keys = json.loads((file.metadata() or {})["about"])["keys"]
            count = file.get_slice("rows").get_shape()[0]
        if len(keys) == count and all(isinstance(key, str) for key in keys):
            return keys
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the cache file %s is damaged and is dropped: %s", shard, error)
    _delete(shard)
    return []


def _delete(shard: Path) -> None:
    try:
        shard.unlink(missing_ok=True)
    except OSError as error:  # read-only, or open in another process on Windows
        _log.warning("the cache file %s cannot be deleted: %s", shard, error)


def stack(found: dict[str, Tensor], keys: Sequence[str]) -> Tensor:
    """The tensors of `keys`, in their order, as (B, ...)."""
    return torch.stack([found[key] for key in keys])
