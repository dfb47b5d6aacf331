"""What a gallery must offer to be searched, wherever its embeddings lie.

`app.gallery.Gallery` keeps them in this process, `app.qdrant.gallery.QdrantGallery` in a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import numpy as np
from torch import Tensor

from app.gallery import Match
from export.runtime import Runtime
from models import Method, Views


class Searchable(Protocol):
    """View embeddings of one method that can be searched; see `app.gallery.Gallery`."""

    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int] | None:
        """Views of an item and dimensions of a view, (V, D); None while there is no item."""
        ...

    @property
    def kept_as(self) -> str:
        """How views are kept, in words."""
        ...

    @property
    def bytes(self) -> int:
        """What they take of this process's memory."""
        ...

    def search(
        self, query: Views, k: int, method: Method, only: AbstractSet[int] | None = None
    ) -> list[Match]:
        """The k best items for a query (1, W, D), best first; ties in the order of the ids."""
        ...

    def caveat(self, method: Method, only: AbstractSet[int] | None = None) -> str:
        """In what way such a search is not exact, in a sentence; empty where it is."""
        ...

    def ids(self) -> list[int]:
        """Every id."""
        ...

    def items(self) -> tuple[list[int], Views]:
        """Every id, and views (N, V, D)."""
        ...

    def scores(self, query: Views, method: Method) -> tuple[list[int], Tensor]:
        """Every id, and exact scores (N,) float32 on the CPU."""
        ...

    def view_scores(self, query: Views, method: Method) -> tuple[list[int], Tensor]:
        """As `scores`, for each image view by itself: (V, N)."""
        ...

    def winners(self, query: Views, method: Method, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Which image view scores best, counted from 0, for each of n ids: (n,) int64."""
        ...


class Store(Protocol):
    """Where the pictures of a collection, and their views, lie when it is not this machine."""

    def galleries(self, runtime: Runtime) -> Mapping[str, Searchable]:
        """The pictures' gallery of each method of a pack.

        Raises:
            ValueError: the views that lie there are not the pack's.
        """
        ...
