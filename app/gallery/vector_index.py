"""The searchable store: view embeddings of pictures or captions, and a top-k over them."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from app.gallery.clusters import Clusters, SavedClusters
from app.gallery.rows import SEGMENT, Snapshot, Store
from models import Method, Views

EXHAUSTIVE_UP_TO = 4096  # items; below, scoring all is faster than a shortlist
COPIED_FROM = 24 * 2**20  # bytes in float32, of rows that are scanned; fewer take a millisecond
HALF_FROM = 256 * 2**20  # bytes in float32, of rows that are scanned
CLUSTERED_FROM = 2**30  # bytes as they are kept; below, all rows can be scanned for each query
_CHUNK = 4096  # items scored in one call
_READ = 512  # items that others read at once; what is made of them takes as much again
_FEWEST_ROWS = 64  # listed at once: more cost nothing, and spare a second scan
_BEST = 10  # what recall is measured by


class Match(NamedTuple):
    """One found item: its id, its score, and the image view that won (0 with one view)."""

    id: int
    score: float
    view: int


class Gallery:
    """View embeddings of one method, for pictures or for captions.

    There are three ways to search, by size:

    - Up to `exhaustive_up_to` items, and where no single pair of rows decides the score
      (`Method.row_search`), every item is scored: exact.
    - Above that, all rows are scanned for the largest inner products, and the items that own them
      are scored: exact, see below. From `HALF_FROM` on views are kept in float16 only, and it is
      those that are searched.
    - From `CLUSTERED_FROM` on, once `settle` was called, rows are looked for in the nearest
      clusters only (`app.gallery.clusters`), and the items that own them are scored: approximate,
      and `recall` says how much of the best is found.

    **Why the shortlist is exact.** Let items own V rows each, and let the query have W rows. An
    item's *product* is the largest inner product of one of its rows with one of the query's; scores
    rise with it. For each query row w, the T rows with the largest inner products are listed,
    T = kV + 1; let b be the largest, over w, of the last products listed, and let C be the items
    that own a listed row.

    1. *C holds more than k items*, or all: the T rows of one list belong to at least
       ceil((kV + 1) / V) = k + 1 items, since no item owns more than V of them.
    2. *What is not listed is at most b*: a row that is not listed for w has a product with w of at
       most the last one listed for w. So an item whose product is above b has it listed.
    3. Let s be the k-th largest product of the items in C, as far as listed. *s >= b always*: the
       list of the w that attains b names k + 1 items with products of at least b. *If s > b*, all
       items whose product is at least s are in C by 2, so the k best of C are the k best of all,
       and ties at the k-th place are broken as an exhaustive search breaks them. *If s = b* (ties),
       T is doubled and the step repeated; at the latest it ends when T covers all rows.

    Products are listed from rows rounded to float16, and added up in another order than scores are.
    *s <= b + slack* therefore counts as a tie, where the slack is twice what that can change
    (`Snapshot.slack`).

    Args:
        side: what the items are; the query is of the other kind or, for images, may be an image.
        method: the one that makes the embeddings, and scores them.
        device: where embeddings are kept and scored; rows are scanned on the CPU only.
        expected: about how many items will come, which decides on float16 when the first ones come.
        exhaustive_up_to: galleries of up to this many items are scored one by one.
        copied_from: bytes of float32 from which what is scanned is a copy in float16.
        half_from: bytes of float32 from which rows are kept in float16 only.
        clustered_from: bytes of rows from which `settle` makes clusters.
        segment: items that are kept, and scanned by one thread, together.

    Attributes:
        method: as given.
        recall: the share of the ten best that a search finds, measured by `settle`; None where
            searches are exact.
    """

    def __init__(
        self,
        side: Literal["images", "texts"],
        method: Method,
        device: torch.device | str = "cpu",
        expected: int = 0,
        exhaustive_up_to: int = EXHAUSTIVE_UP_TO,
        copied_from: int = COPIED_FROM,
        half_from: int = HALF_FROM,
        clustered_from: int = CLUSTERED_FROM,
        segment: int = SEGMENT,
    ) -> None:
        self.method = method
        self.recall: float | None = None
        self._side = side
        self._device = torch.device(device)
        self._exhaustive_up_to = exhaustive_up_to
        self._clustered_from = clustered_from
        self._clusters: Clusters | None = None
        scanned = self._device.type == "cpu" and method.row_search
        if not scanned:
            half_from = max(half_from, 2 * clustered_from)  # to score float16 takes longer
        self._store = Store(
            self._device,
            method.row_dim,
            lambda size: size >= half_from,
            lambda size: scanned and size >= copied_from,
            expected,
            segment,
        )

    def __len__(self) -> int:
        return len(self._store)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Views of an item and dimensions of a view, (V, D); None while there is no item."""
        return self._store.shape

    @property
    def bytes(self) -> int:
        """Memory of the embeddings and of their clusters."""
        return self._store.bytes + (0 if self._clusters is None else self._clusters.bytes)

    @property
    def kept_as(self) -> str:
        """How rows are kept and searched, in words."""
        if self._clusters is not None:
            return f"float16, in {self._clusters.clusters:,} clusters of 8 bits"
        return "float16" if self._store.half else "float32"

    def add(self, ids: Sequence[int], views: Views) -> None:
        """Appends items; searches already under way do not see them.

        Args:
            ids: what `search` calls each item.
            views: (B, V, D) with B = len(ids); V and D as in what was added before.

        Raises:
            ValueError: the shapes do not fit.
        """
        self._store.add(ids, views.embeddings)

    def seal(self) -> None:
        """Makes ready for searches what was added last; worth its while once no more comes."""
        if len(self) > self._exhaustive_up_to:
            self._store.seal()

    def is_large(self) -> bool:
        """Whether `settle` would make clusters."""
        return self._store.half and self._store.bytes >= self._clustered_from

    def settle(self, probes: Sequence[Views], saved: SavedClusters | None = None) -> None:
        """Makes a large gallery fast once it is filled: by clusters, whose recall is measured.

        Takes minutes for millions of rows; searches go on meanwhile. A small one is only sealed.

        Args:
            probes: queries (1, W, D) like those that will come; at least one if `is_large`.
            saved: where clusters, with their recall, are taken from and kept; None for nowhere.
        """
        self.seal()
        if not self.is_large():
            return
        there = self._store.now()
        if saved is not None and (known := saved.load(there)) is not None:
            clusters, self.recall = known
            self._clusters = clusters
            return
        clusters = Clusters.find(there)
        best = [{hit.id for hit in self._find(probe, _BEST, None)} for probe in probes]

        def found() -> float:
            again = [self._find(probe, _BEST, clusters) for probe in probes]
            shares = [
                len(wanted & {hit.id for hit in hits}) / len(wanted)
                for wanted, hits in zip(best, again, strict=True)
            ]
            return sum(shares) / len(shares)

        self.recall = clusters.tune(found)
        self._clusters = clusters
        if saved is not None:
            saved.save(clusters, self.recall)

    def search(self, query: Views, k: int, only: AbstractSet[int] | None = None) -> list[Match]:
        """The k best items, best first; ties in the order of adding.

        Args:
            query: (1, W, D) the views of one text or picture.
            k: at least 1; more than there are items returns them all.
            only: ids of the items to rank, each of which is then scored; None ranks all.
        """
        return self._find(query, k, self._clusters, only)

    def caveat(self, only: AbstractSet[int] | None = None) -> str:
        """In what way such a search is not exact, in a sentence; empty where it is."""
        if self._clusters is None or only is not None:
            return ""
        return f"Approximate: finds {self.recall:.0%} of the ten best."

    def ids(self) -> np.ndarray:
        """The ids (N,) of everything added so far, in the order of adding."""
        return self._store.now().ids

    def chunks(self) -> Iterator[tuple[np.ndarray, Views]]:
        """Everything added so far, a few hundred items at a time: ids (n,), and views (n, V, D).

        Raises:
            ValueError: nothing was added yet.
        """
        there, start = self._there(), 0
        for rows in there.chunks():
            for part in rows.split(_READ):
                yield there.ids[start : start + len(part)], Views(part)
                start += len(part)

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """The views (n, V, D) of some items, in the order of `ids`; each was added before."""
        there = self._store.now()
        wanted = np.asarray(ids, np.int64)
        places = np.minimum(np.searchsorted(there.ids, wanted), len(there) - 1)
        if (there.ids[places] != wanted).any():  # ids did not come in ascending order
            order = np.argsort(there.ids, kind="stable")
            places = order[np.searchsorted(there.ids, wanted, sorter=order)]
        return Views(there.take(torch.from_numpy(places)))

    @torch.inference_mode()
    def scores(self, query: Views) -> tuple[np.ndarray, np.ndarray]:
        """Exact scores of everything added so far.

        Args:
            query: (1, W, D) the views of one text or image.

        Returns:
            Ids (N,) in the order of adding, and their scores (N,) float32.

        Raises:
            ValueError: nothing was added yet.
        """
        there = self._there()
        return there.ids, self._score_all(there, query.to(self._device)).float().cpu().numpy()

    def _there(self) -> Snapshot:
        there = self._store.now()
        if not len(there):
            raise ValueError("nothing is searchable yet; try again in a moment")
        return there

    @torch.inference_mode()
    def _find(
        self, query: Views, k: int, clusters: Clusters | None, only: AbstractSet[int] | None = None
    ) -> list[Match]:
        there = self._store.now()
        if not len(there):
            return []
        query, k = query.to(self._device), min(k, len(there))
        if only is not None:
            chosen = np.fromiter(only, np.int64, len(only))
            items = torch.from_numpy(np.flatnonzero(np.isin(there.ids, chosen)))
            if not len(items):
                return []
            scores = self._score(there, items, query)
        elif clusters is not None and (listed := clusters.listed(query, k)) is not None:
            items = torch.cat([listed, torch.arange(clusters.items, len(there))])
            scores = self._score(there, items, query)
        elif self._must_score_all(len(there)):
            items, scores = torch.arange(len(there)), self._score_all(there, query)
        else:
            items = _shortlist(there, query, k)
            scores = self._score(there, items, query)
        best = _best(scores, k)
        items, scores = items[best.cpu()], scores[best]
        views = self._view_scores(there.take(items), query).argmax(dim=0)
        found = there.ids[items.numpy()]
        triples = zip(found.tolist(), scores.tolist(), views.tolist(), strict=True)
        return [Match(*triple) for triple in triples]

    def _must_score_all(self, count: int) -> bool:
        if not self.method.row_search or self._device.type != "cpu":
            return True
        return count <= self._exhaustive_up_to

    def _score_all(self, there: Snapshot, query: Views) -> Tensor:
        """Exact scores (N,)."""
        return torch.cat([self._score_rows(part, query) for part in there.chunks()])

    def _score(self, there: Snapshot, items: Tensor, query: Views) -> Tensor:
        """Exact scores of items (n,): (n,)."""
        parts = [self._score_rows(there.take(i), query) for i in items.split(_CHUNK)]
        return torch.cat(parts)

    def _score_rows(self, rows: Tensor, query: Views) -> Tensor:
        """Exact scores of items (n, V, D): (n,)."""
        if self._side == "images":
            return self.method.score(Views(rows), query)[:, 0]
        return self.method.score(query, Views(rows))[0]

    def _view_scores(self, rows: Tensor, query: Views) -> Tensor:
        """Scores of each image view for items (n, V, D): (V, n)."""
        if self._side == "images":
            return self.method.view_scores(Views(rows), query)[..., 0]
        return self.method.view_scores(query, Views(rows))[:, 0]


def _best(scores: Tensor, k: int) -> Tensor:
    """Places of the k largest of (N,), falling; ties in their order."""
    kth = scores.topk(min(k, len(scores))).values[-1]
    some = (scores >= kth).nonzero()[:, 0]
    return some[scores[some].sort(descending=True, stable=True).indices[:k]]


def _shortlist(there: Snapshot, query: Views, k: int) -> Tensor:
    """Items among which the k best are, ascending; see `Gallery` for why."""
    each, needles = there.rows_of_item, there.needles(query)
    total, slack = each * len(there), there.slack(needles)
    take = max(k * each + 1, _FEWEST_ROWS)
    while True:
        take = min(take, total)
        products, rows = there.nearest(needles, take)  # (W, T)
        items, owner = np.unique(rows // each, return_inverse=True)
        best = np.full(len(items), -np.inf, np.float32)
        np.maximum.at(best, owner.ravel(), products.ravel())
        kth = float(np.partition(best, -k)[-k])
        bound = float(products[:, -1].max())
        if take == total or kth > bound + slack:
            return torch.from_numpy(items)
        take *= 2
