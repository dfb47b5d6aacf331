"""Long computations over a gallery, in background threads, and their stored results."""

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from polyview.app.access import client_name
from polyview.app.gallery.indexing import Index

_MAX_READINGS = 32  # stored for each gallery
_MAX_UNFINISHED = 32  # in the process
_turn = threading.Lock()  # held by the running computation
_starting = threading.Lock()  # held while `_unfinished` is checked and extended
_unfinished: list[str] = []  # the client of each unfinished computation, see `client_name`
_log = logging.getLogger(__name__)


@dataclass
class Reading:
    """The state of a long computation."""

    result: Any = None  # None while the computation is unfinished
    progress: str = "measuring"
    problem: str = ""  # the error message of a failed computation


class Readings(dict[Hashable, Reading]):
    """The long computations over one gallery, by key; the process runs one at a time."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._index, self._lock = index, threading.RLock()

    def compute(self, key: Hashable, function: Callable[[Reading], Any], failure: str) -> Reading:
        """Starts a computation over the filled gallery, once for each key; returns its state.

        `function` returns the result and may set the reading's `progress`. An error message starts
        with `failure`. A client of a public app has at most one unfinished computation, so that no
        client fills the queue; its other computations start at a later call.
        """
        progress = self._index.progress
        if not progress.finished:
            return Reading(progress=f"waits for the gallery ({progress})")

        def run(reading: Reading) -> None:
            try:
                with _turn:
                    reading.result = function(reading)
            except Exception as error:  # the page shows the message
                _log.exception(failure)
                reading.problem = f"{failure}: {error}"
            finally:
                _unfinished.remove(client)

        client = client_name.get()
        with self._lock, _starting:
            if key not in self:
                if (client and client in _unfinished) or len(_unfinished) >= _MAX_UNFINISHED:
                    return Reading(progress="waits for other computations")
                _unfinished.append(client)
                reading = self.keep(key, Reading())
                try:
                    threading.Thread(target=run, args=(reading,), daemon=True).start()
                except RuntimeError:  # the system has no more threads
                    _unfinished.remove(client)
                    del self[key]
                    raise
            return self[key]

    def keep(self, key: Hashable, reading: Reading) -> Reading:
        """Stores a reading; removes the oldest finished readings above `_MAX_READINGS`."""
        with self._lock:
            self[key] = reading
            finished = [k for k, r in self.items() if r.problem or r.result is not None]
            for oldest in finished[: max(0, len(self) - _MAX_READINGS)]:
                self.pop(oldest, None)
        return reading
