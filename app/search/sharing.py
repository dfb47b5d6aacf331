"""Questions that are answered at once share the processors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MANY = 10_000  # images; to score fewer takes less time than threads need to find one another
_MOST = torch.get_num_threads()
_lock = threading.Lock()
_asked = 0


@contextmanager
def shared_processors(images: int) -> Iterator[None]:
    """Meanwhile torch's operators take, in this thread, a question's share of the processors.

    An operator in several threads waits for the slowest of them: where others need the processors,
    too, that is most of its time.

    Args:
        images: how many are searched.
    """
    global _asked
    with _lock:
        _asked += 1
        share = max(1, _MOST // _asked) if images >= _MANY else 1
    torch.set_num_threads(share)
    try:
        yield
    finally:
        with _lock:
            _asked -= 1
        torch.set_num_threads(_MOST)
