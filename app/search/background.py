"""Results that take long: computed once, in a thread, while clients ask again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from polyview.app.search.retriever import Retriever

_KEPT = 32  # results for each retriever
_log = logging.getLogger(__name__)


@dataclass
class Reading:
    """The state of a computation: a result, or progress, or a problem."""

    result: Any = None
    progress: str = "measuring"
    problem: str = ""


class Background:
    """Computes results in the background, one at a time; safe to use from several threads.

    Args:
        failure: the beginning of the sentence if a computation fails.
    """

    def __init__(self, failure: str) -> None:
        self._failure = failure
        self._lock, self._turn = threading.Lock(), threading.Lock()  # readings; processors
        self._readings: WeakKeyDictionary[Retriever, OrderedDict[Hashable, Reading]]
        self._readings = WeakKeyDictionary()

    def read(
        self, retriever: Retriever, key: Hashable, compute: Callable[[Reading], Any]
    ) -> Reading:
        """The reading of a key; the first call starts `compute`; does not block.

        Args:
            retriever: a pack over its images, which must all be read.
            key: identifies the result.
            compute: returns the result, and may set the `progress` of the reading.
        """
        progress = retriever.index.progress
        if not progress.finished:
            return Reading(progress=f"waits for the gallery ({progress})")
        with self._lock:
            readings = self.readings(retriever)
            if key not in readings:
                readings[key] = Reading()
                work = (readings[key], compute)
                threading.Thread(target=self._run, args=work, daemon=True).start()
            return readings[key]

    def readings(self, retriever: Retriever) -> OrderedDict[Hashable, Reading]:
        """The newest readings of a retriever, by key."""
        readings = self._readings.setdefault(retriever, OrderedDict())
        while len(readings) > _KEPT:
            readings.popitem(last=False)
        return readings

    def _run(self, reading: Reading, compute: Callable[[Reading], Any]) -> None:
        try:
            with self._turn:
                reading.result = compute(reading)
        except Exception as error:  # the page shows the sentence
            _log.exception(self._failure)
            reading.problem = f"{self._failure}: {error}"
