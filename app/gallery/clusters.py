"""Rows in clusters, of which a search looks into the nearest few: candidates without a proof.

They lie on the disk too, so that the next start need not find them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from app.gallery.rows import Snapshot
from models import Views
from models.files import sha256_of

_VERSION = 1  # counts up when clusters are found or written in another way
WANTED_RECALL = 0.97  # of the ten best, over the probes; others will find somewhat less or more
_ROWS_FOR_TRAINING = 40  # for each cluster
_ITERATIONS = 8
_LISTED, _MOST_LISTED = 8, 128  # rows, for each of the k * V that may be the best
_FEWEST_LISTED = 512

_log = logging.getLogger(__name__)


class Clusters:
    """An inverted file over rows in 8 bits (FAISS IVF, scalar quantiser).

    Rows go to the nearest of about 2 sqrt(R) centres, found by k-means over inner products; a
    search scans the rows of the centres nearest to each row of the query. What it lists are
    candidates: their products are rounded, and rows of other clusters are missed. `tune` decides
    how much is looked at, so that enough is found.

    Args:
        there: the items that are clustered.
        index: their rows in clusters, see `find`.

    Attributes:
        items: how many items are in the clusters.
        clusters: how many clusters there are.
        looked_into: how many of them a search looks into.
        listed_rows: how many rows are listed for each of the k * V that may be the best.
    """

    def __init__(self, there: Snapshot, index: faiss.IndexIVFScalarQuantizer) -> None:
        self.items, self._there = len(there), there
        self._index = index
        self._index.parallel_mode = 1  # one needle's clusters are shared by the threads
        self.clusters: int = index.nlist
        self.looked_into, self.listed_rows = 1, _LISTED

    @classmethod
    def find(cls, there: Snapshot, seed: int = 0) -> Clusters:
        """Clusters items; takes minutes for millions of rows.

        Args:
            there: the items.
            seed: of the sample that centres are found with.
        """
        rows, row_dim = len(there) * there.rows_of_item, there.row_dim
        count = 2 ** round(math.log2(2 * math.sqrt(rows)))
        clusters = max(1, min(count, rows // _ROWS_FOR_TRAINING))
        centres = faiss.IndexFlatIP(row_dim)
        index = faiss.IndexIVFScalarQuantizer(
            centres,
            row_dim,
            clusters,
            faiss.ScalarQuantizer.QT_8bit,
            faiss.METRIC_INNER_PRODUCT,
            False,  # rows themselves, not what is left of them beside their centre
        )
        index.cp.niter = _ITERATIONS
        index.cp.spherical = True
        index.cp.seed = seed
        index.train(_sample(there, clusters, seed))
        for part in there.chunks():
            index.add(part.reshape(-1, row_dim).numpy())
        return cls(there, index)

    @classmethod
    def load(cls, path: Path, there: Snapshot) -> Clusters:
        """Reads what `save` wrote of these items.

        Raises:
            RuntimeError: the file cannot be read.
            ValueError: it holds clusters of something else.
        """
        index = faiss.read_index(str(path))
        wanted = (len(there) * there.rows_of_item, there.row_dim)
        if isinstance(index, faiss.IndexIVFScalarQuantizer) and (index.ntotal, index.d) == wanted:
            return cls(there, index)
        raise ValueError(f"{path.name} does not hold clusters of {wanted[0]} rows")

    def save(self, path: Path) -> None:
        """Writes a file of FAISS.

        Raises:
            RuntimeError: it cannot be written.
        """
        faiss.write_index(self._index, str(path))

    @property
    def bytes(self) -> int:
        """Memory of the clustered rows, their numbers and the centres."""
        rows, dim = self.items * self._there.rows_of_item, self._there.row_dim
        return rows * (dim + 8) + self.clusters * dim * 4

    def listed(self, query: Views, k: int) -> Tensor | None:
        """Items that own rows with large inner products.

        Args:
            query: (1, W, D).
            k: how many of them are wanted.

        Returns:
            Items, ascending, each once, at least k; None where so many cannot be listed.
        """
        needles, each = self._there.needles(query), self._there.rows_of_item
        count = max(self.listed_rows * k * each, _FEWEST_LISTED)
        chosen = faiss.SearchParametersIVF()
        chosen.nprobe = self.looked_into
        _, rows = self._index.search(needles, count, params=chosen)  # -1 where there are too few
        items = np.unique(rows[rows >= 0] // each)
        return torch.from_numpy(items) if len(items) >= k else None

    def tune(self, found: Callable[[], float]) -> float:
        """Chooses how much is looked at: as little as gives `WANTED_RECALL`, if anything does.

        Step by step, either twice as many clusters are looked into or twice as many rows listed,
        whichever finds more.

        Args:
            found: measures which share of the best is found as things are, 0 to 1.

        Returns:
            The share that is found then.
        """
        share = found()
        while share < WANTED_RECALL:
            now = self.looked_into, self.listed_rows
            ways = (min(2 * now[0], self.clusters), now[1]), (now[0], min(2 * now[1], _MOST_LISTED))
            tried = {}
            for way in ways:
                self.looked_into, self.listed_rows = way
                tried[way] = found()
            best = max(tried, key=lambda way: tried[way])
            self.looked_into, self.listed_rows = best
            if best == now:
                break
            share = tried[best]
        return share


@dataclass(frozen=True)
class SavedClusters:
    """The place of one method's clusters: a file of FAISS, and a JSON file about it, written last.

    What fails here costs only time: clusters that are not there, were made of something else, or
    are not as they were written, are found again.

    Args:
        folder: made when it is first used.
        space: whose views are clustered, see `app.gallery.embedding_cache`.
        contents: stands for the items, in the order of the gallery.
    """

    folder: Path
    space: str
    contents: str

    def load(self, there: Snapshot) -> tuple[Clusters, float] | None:
        """The clusters of these items, and the recall that was measured with them."""
        try:
            about = json.loads(self._file("json").read_text())
            if (about["version"], about["contents"]) != (_VERSION, self.contents):
                return None
            if sha256_of(self._file("faiss")) != about["sha256"]:
                _log.warning("%s is damaged: clusters are found again", self._file("faiss"))
                return None
            clusters = Clusters.load(self._file("faiss"), there)
            clusters.looked_into = int(about["looked_into"])
            clusters.listed_rows = int(about["listed_rows"])
            return clusters, float(about["recall"])
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            _log.warning("clusters cannot be read from %s: %s", self.folder, error)
            return None

    def save(self, clusters: Clusters, recall: float) -> None:
        """Keeps clusters in the place of those that were kept before.

        What a process left that was killed meanwhile has no file about it: clusters are found and
        kept again, over what it left.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._file("lock"), timeout=0):
                self._file("json").unlink(missing_ok=True)
                self._write("faiss", clusters.save)
                about = {
                    "version": _VERSION,
                    "contents": self.contents,
                    "sha256": sha256_of(self._file("faiss")),
                    "looked_into": clusters.looked_into,
                    "listed_rows": clusters.listed_rows,
                    "recall": recall,
                }
                text = json.dumps(about, indent=1) + "\n"
                self._write("json", lambda path: path.write_text(text))
        except Timeout:
            _log.info("another process keeps clusters in %s", self.folder)
        except (OSError, RuntimeError) as error:
            _log.warning("clusters cannot be kept in %s: %s", self.folder, error)

    def _write(self, suffix: str, write: Callable[[Path], object]) -> None:
        partial = self._file("partial")
        try:
            write(partial)
            partial.replace(self._file(suffix))
        finally:
            partial.unlink(missing_ok=True)

    def _file(self, suffix: str) -> Path:
        name = hashlib.sha256(self.space.encode()).hexdigest()[:24]
        return self.folder / f"{name}.{suffix}"


def _sample(there: Snapshot, clusters: int, seed: int) -> np.ndarray:
    """Rows of items from everywhere, enough to find the centres."""
    wanted = math.ceil(clusters * _ROWS_FOR_TRAINING / there.rows_of_item)
    items = np.random.default_rng(seed).permutation(len(there))[:wanted]
    views = there.take(torch.from_numpy(np.sort(items)))
    return views.reshape(-1, there.row_dim).numpy()
