"""View embeddings of one method that lie in Qdrant, searched as `app.gallery.vector_index` does."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from app.gallery.qdrant.server import PACK, QdrantError, Server, api, foreign, only_points
from app.gallery.vector_index import Match
from models import Method, Views

EXHAUSTIVE_UP_TO = 4096  # pictures that are all scored where candidates prove nothing
READ_UP_TO = 20_000  # pictures whose views are read for one answer
_HELD = 1 << 26  # bytes of views that are kept once they have been read
_NUMBERS = 1 << 20  # of one answer
_PAGE = 256  # points of one answer
_SPARE = 8  # candidates beyond k, so that one round is mostly enough
_RERANKED = 8  # candidates for each of k where the candidates' order is not the method's
_MOST = 1 << 14  # candidates; a search that has so many is content, whatever is tied with the last
_SLACK = {False: 1e-5, True: 2e-3}  # float32, float16: by what two sums of products may differ


@dataclass(frozen=True)
class Contents:
    """The points of a collection that are known: `ids[i]` is the picture i."""

    ids: Sequence[str]

    @cached_property
    def places(self) -> dict[str, int]:
        """The picture of each point."""
        return {point: place for place, point in enumerate(self.ids)}


class QdrantGallery:
    """A `Searchable` over one named vector of a collection.

    **What is exact.** Qdrant is asked for the points of the largest MaxSim with the query, exactly
    (`exact=True`); every score that is returned is computed anew, from the vectors that Qdrant
    holds, by the method. Where one pair of rows decides (`Method.row_search`), each row of the
    query is asked by itself and its MaxSim is, but for a factor, the score it could give, so the
    reasoning of `app.gallery.vector_index` holds, with points in the place of rows: nothing
    outside the lists scores more than the last one listed. More is asked for until the k-th best
    scores more than anything not listed can; the ids decide between equals, unless more than
    `_MOST` are equal to the k-th.

    **What is not.** Where blocks are matched, MaxSim of the blocks is not yet the score: its best
    are ranked by the method, and others might have scored more. Up to `EXHAUSTIVE_UP_TO` pictures
    everything is scored instead. With `graph`, Qdrant's HNSW graph proposes, and may miss some.

    Args:
        server: the collection.
        contents: its points.
        name: the named vector, a method's.
        method: the one of this name.
        shape: (V, D) of the views.
        checksum: of the pack whose views they must be.
        half: whether Qdrant holds float16.
        graph: whether to search approximately.
        device: where scores are computed.
    """

    def __init__(
        self,
        server: Server,
        contents: Contents,
        name: str,
        method: Method,
        shape: tuple[int, int],
        checksum: str,
        half: bool = False,
        graph: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self._server = server
        self._contents = contents
        self._name = name
        self.method = method
        self._shape = shape
        self._checksum = checksum
        self._half, self._graph = half, graph
        self._device = torch.device(device)
        self._lock = threading.Lock()
        self._held: Tensor | None = None  # (N, V, D)

    def __len__(self) -> int:
        return len(self._contents.ids)

    @property
    def shape(self) -> tuple[int, int] | None:
        """See `Searchable`."""
        return self._shape if len(self) else None

    @property
    def kept_as(self) -> str:
        """See `Searchable`."""
        return f"{'float16' if self._half else 'float32'} in Qdrant"

    @property
    def bytes(self) -> int:
        """See `Searchable`."""
        return 0 if self._held is None else self._held.nbytes

    def ids(self) -> np.ndarray:
        """See `Searchable`."""
        return np.arange(len(self))

    def caveat(self, only: AbstractSet[int] | None = None) -> str:
        """See `Searchable`."""
        count = len(self) if only is None else len(only)
        if self._graph:
            return "Approximate: Qdrant's graph may miss pictures; the scores shown are exact."
        if count > EXHAUSTIVE_UP_TO and not self.method.row_search:
            return (
                "Approximate: the best by MaxSim are ranked by the method; others may have scored "
                "more. The scores shown are exact."
            )
        return ""

    @torch.inference_mode()
    def search(self, query: Views, k: int, only: AbstractSet[int] | None = None) -> list[Match]:
        """See `Searchable`."""
        chosen = None if only is None else sorted(i for i in only if 0 <= i < len(self))
        count = len(self) if chosen is None else len(chosen)
        if not count:
            return []
        query, best = query.to(self._device), _Best(min(k, count))
        if not self.method.row_search and count <= EXHAUSTIVE_UP_TO:
            everything = range(len(self)) if chosen is None else chosen
            self._consider(everything, query, best)
        else:
            self._approach(query, chosen, best)
        return best.matches(query, self.method)

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """See `Searchable`."""
        parts = [rows for _, rows in self._rows([int(i) for i in ids])]
        return Views(torch.cat(parts) if parts else torch.empty(0, *self._shape))

    @torch.inference_mode()
    def scores(self, query: Views) -> tuple[np.ndarray, np.ndarray]:
        """See `Searchable` and `chunks`."""
        query = query.to(self._device)
        parts = [self.method.score(views, query)[:, 0] for _, views in self.chunks()]
        return self.ids(), torch.cat(parts).float().cpu().numpy()

    def _approach(self, query: Views, chosen: Sequence[int] | None, best: _Best) -> None:
        """Asks for candidates until nothing that was not listed can be among the k best."""
        needles = self._needles(query)
        only = self._filter(chosen)
        alone = len(needles) == 1  # one list, whose order is that of the scores
        once = self._graph or not self.method.row_search
        take = best.k * (_RERANKED if once else 1) + _SPARE
        while True:
            lists = self._server.nearest(self._name, needles, take, only, self._graph)
            known = self._contents.places
            places = [[known[point] for point, _ in part if point in known] for part in lists]
            new = sorted({place for part in places for place in part} - best.scores.keys())
            self._consider(new, query, best)
            # A list that is not full holds all there are; what follows a full one scores less.
            last = [
                min((best.scores[p] for p in part if p in best.scores), default=torch.inf)
                if alone
                else listed[-1][1]
                for part, listed in zip(places, lists, strict=True)
                if len(listed) >= take
            ]
            slack = _SLACK[self._half] * max(1.0, abs(best.kth))
            if not last or once or take >= _MOST or best.kth > max(last) + slack:
                return
            take *= 4

    def _needles(self, query: Views) -> np.ndarray:
        """What Qdrant is asked: (Q, R, E), Q queries of R rows each."""
        rows = query.embeddings[0].float().cpu()  # (W, D)
        rows = rows.reshape(-1, self.method.row_dim(*self._shape))
        return (rows[:, None] if self.method.row_search else rows[None]).numpy()

    def _filter(self, chosen: Sequence[int] | None) -> api.Filter | None:
        """The points of some pictures, or, where that is shorter, all but the others'."""
        if chosen is None or len(chosen) == len(self):
            return None
        ids = self._contents.ids
        if 2 * len(chosen) <= len(ids):
            return only_points([ids[place] for place in chosen])
        left = set(range(len(ids))).difference(chosen)
        return only_points([ids[place] for place in sorted(left)], others=True)

    def _consider(self, places: Iterable[int], query: Views, best: _Best) -> None:
        """Scores pictures and keeps the best."""
        for part, rows in self._rows(list(places), strict=False):
            best.add(part, rows, self.method.score(Views(rows), query)[:, 0].float())

    def chunks(self) -> Iterator[tuple[np.ndarray, Views]]:
        """See `Searchable`; views are read a page at a time.

        Raises:
            QdrantError: there are more than are read for one answer.
        """
        if len(self) > READ_UP_TO:
            raise QdrantError(
                f"this needs the views of all {len(self):,} pictures, which are read from Qdrant "
                f"for up to {READ_UP_TO:,}; ask one method for one sentence or one picture"
            )
        if not len(self):
            raise QdrantError(f"the collection {self._server.address.name} is empty")
        for part, rows in self._rows(range(len(self))):
            yield np.array(part), Views(rows)

    def _rows(
        self, places: Sequence[int], strict: bool = True
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Pictures and their views (n, V, D), a page at a time.

        Args:
            places: which pictures.
            strict: refuse where one has been deleted meanwhile; otherwise it is left out.
        """
        views, dim = self._shape
        with self._lock:
            if self._held is None and len(places) == len(self) and self._small:
                pages = [rows for _, rows in self._pages(range(len(self)), strict=True)]
                self._held = torch.cat(pages)
            held = self._held
        step = max(1, min(_PAGE, _NUMBERS // (views * dim)))
        if held is None:
            yield from self._pages(places, strict)
            return
        for start in range(0, len(places), step):
            part = places[start : start + step]
            yield part, held[torch.tensor(part)]

    @property
    def _small(self) -> bool:
        return len(self) * self._shape[0] * self._shape[1] * 4 <= _HELD

    def _pages(self, places: Sequence[int], strict: bool) -> Iterator[tuple[Sequence[int], Tensor]]:
        views, dim = self._shape
        step = max(1, min(_PAGE, _NUMBERS // (views * dim)))
        ids = self._contents.ids
        for start in range(0, len(places), step):
            part = places[start : start + step]
            read = self._server.read([ids[place] for place in part], [PACK], self._name)
            for fields, _ in read.values():
                if fields.get(PACK) != self._checksum:
                    raise foreign(self._server.address.name, fields.get(PACK), self._checksum)
            there = [p for p in part if ids[p] in read and read[ids[p]][1].size == views * dim]
            if strict and len(there) < len(part):
                raise QdrantError(
                    f"pictures were deleted from {self._server.address.name} meanwhile, or their "
                    "views are damaged; start again, or migrate them anew"
                )
            if there:
                rows = np.stack([read[ids[place]][1].reshape(views, dim) for place in there])
                yield there, torch.from_numpy(rows).to(self._device)


class _Best:
    """The k best of what was considered so far, and the scores of all of it.

    Attributes:
        k: how many are kept.
        scores: of everything that was considered, by picture.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.scores: dict[int, float] = {}
        self._places: list[int] = []
        self._rows: Tensor | None = None  # (k, V, D)

    @property
    def kth(self) -> float:
        """The score of the last that is kept; minus infinity while there are fewer than k."""
        full = len(self._places) == self.k
        return self.scores[self._places[-1]] if full else -torch.inf

    def add(self, places: Sequence[int], rows: Tensor, scores: Tensor) -> None:
        """Considers pictures: their views (n, V, D) and scores (n,)."""
        self.scores |= dict(zip(places, scores.tolist(), strict=True))
        known = [*self._places, *places]
        rows = rows if self._rows is None else torch.cat([self._rows, rows])
        order = sorted(range(len(known)), key=lambda i: (-self.scores[known[i]], known[i]))
        order = order[: self.k]
        self._places, self._rows = [known[i] for i in order], rows[torch.tensor(order)]

    def matches(self, query: Views, method: Method) -> list[Match]:
        """What is kept, best first."""
        if self._rows is None:
            return []
        won = method.view_scores(Views(self._rows), query)[..., 0].argmax(dim=0)  # (V, k) -> (k,)
        pairs = zip(self._places, won.tolist(), strict=True)
        return [Match(place, self.scores[place], view) for place, view in pairs]
