"""Long computations over a gallery, in background threads; their results are stored."""

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from polyview.app.access import client_name
from polyview.app.gallery.indexing import Index

_MAX_READINGS = 32  # stored for each gallery
_MAX_UNFINISHED = 32  # in the process
_turn = threading.Lock()  # held by the computation that runs
_starting = threading.Lock()  # held while `_unfinished` is checked and extended
_unfinished: list[str] = []  # the client of each unfinished computation, see `client_name`
_log = logging.getLogger(__name__)


@dataclass
class Reading:
    """The state of a long computation: its result, progress or problem."""

    result: Any = None
    progress: str = "measuring"
    problem: str = ""


class Readings(dict[Hashable, Reading]):
    """The long computations over one gallery, by key; one runs at a time in the whole process."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._index, self._lock = index, threading.RLock()

    def compute(self, key: Hashable, function: Callable[[Reading], Any], failure: str) -> Reading:
        """Starts a computation over the filled gallery, once for each key; returns its state.

        `function` returns the result, and may set the `progress` of the reading; `failure` is the
        beginning of the error message. Each client of a public app has one unfinished computation
        at a time, so that nobody fills the queue; others start when it has ended and they are asked
        for again.
        """
        progress = self._index.progress
        if not progress.finished:
            return Reading(progress=f"waits for the gallery ({progress})")

        def run(reading: Reading) -> None:
            try:
                with _turn:
                    reading.result = function(reading)
            except Exception as error:  # the page shows the sentence
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
        """Adds a reading, and removes the oldest finished ones if there are many."""
        with self._lock:
            self[key] = reading
            finished = [k for k, r in self.items() if r.problem or r.result is not None]
            for oldest in finished[: max(0, len(self) - _MAX_READINGS)]:
                self.pop(oldest, None)
        return reading
