"""Runs long computations over a gallery in background threads, and stores their results."""

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from polyview.app.access import client_name
from polyview.app.gallery.indexing import Index

_MAX_STORED = 32  # stored computations of each gallery
_MAX_UNFINISHED = 32  # unfinished computations in the process
_running_lock = threading.Lock()  # held by the running computation
_unfinished_lock = threading.Lock()  # held while `_unfinished` is checked and extended
_unfinished: list[str] = []  # the client of each unfinished computation, see `client_name`
_log = logging.getLogger(__name__)


@dataclass
class Computation:
    """The state of a long computation."""

    result: Any = None  # None until the computation has succeeded
    progress: str = "measuring"
    problem: str = ""  # the error message of a failed computation


class Computations(dict[Hashable, Computation]):
    """The long computations over one gallery, by key; the process runs one at a time."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._index, self._lock = index, threading.RLock()

    def compute(
        self, key: Hashable, function: Callable[[Computation], Any], failure: str
    ) -> Computation:
        """Starts the computation of a key, unless it has started, and returns its state.

        `function` returns the result and may set `progress`. Error messages start with `failure`.
        Nothing starts while the gallery is being read, while the client of a public app has another
        unfinished computation, or while `_MAX_UNFINISHED` computations are unfinished. In these
        cases, the caller must call again later.
        """
        progress = self._index.progress
        if not progress.finished:
            return Computation(progress=f"waits for the gallery ({progress})")

        def run(computation: Computation) -> None:  # in a thread
            try:
                with _running_lock:
                    computation.result = function(computation)
            except Exception as error:  # the page shows the message
                _log.exception(failure)
                computation.problem = f"{failure}: {error}"
            finally:
                _unfinished.remove(client)

        client = client_name.get()
        with self._lock, _unfinished_lock:
            if key not in self:
                if (client and client in _unfinished) or len(_unfinished) >= _MAX_UNFINISHED:
                    return Computation(progress="waits for other computations")
                _unfinished.append(client)
                computation = self.store(key, Computation())
                try:
                    threading.Thread(target=run, args=(computation,), daemon=True).start()
                except RuntimeError:  # the system has no more threads
                    _unfinished.remove(client)
                    del self[key]
                    raise
            return self[key]

    def store(self, key: Hashable, computation: Computation) -> Computation:
        """Stores a computation; removes the oldest finished ones beyond `_MAX_STORED`."""
        with self._lock:
            self[key] = computation
            finished_keys = [k for k, c in self.items() if c.problem or c.result is not None]
            for oldest_key in finished_keys[: max(0, len(self) - _MAX_STORED)]:
                self.pop(oldest_key, None)
        return computation
