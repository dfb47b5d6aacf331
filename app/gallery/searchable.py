"""What a gallery must offer to be searched, wherever its embeddings lie.

`app.gallery.vector_index.Gallery` keeps them in this process,
`app.gallery.qdrant.gallery.QdrantGallery` in a server.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import numpy as np

from app.gallery.vector_index import Match
from models import Method, Views


class Searchable(Protocol):
    """View embeddings of one method that can be searched; `vector_index.Gallery` is one."""

    @property
    def method(self) -> Method:
        """The one that makes the embeddings, and scores them."""
        ...

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

    def search(self, query: Views, k: int, only: AbstractSet[int] | None = None) -> list[Match]:
        """The k best items for a query (1, W, D), best first; ties in the order of the ids."""
        ...

    def caveat(self, only: AbstractSet[int] | None = None) -> str:
        """In what way such a search is not exact, in a sentence; empty where it is."""
        ...

    def ids(self) -> np.ndarray:
        """Every id (N,)."""
        ...

    def chunks(self) -> Iterator[tuple[np.ndarray, Views]]:
        """Every id and its views, some at a time: ids (n,), views (n, V, D)."""
        ...

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """The views (n, V, D) of n ids."""
        ...

    def scores(self, query: Views) -> tuple[np.ndarray, np.ndarray]:
        """Every id (N,), and exact scores (N,) float32."""
        ...
