"""What several methods make of one query: aligned lists, how far they agree, who found what.

Everything is computed from scores; nothing here runs a model. In the shapes, C is the number of
columns (methods that are compared) and N the number of images that all of them ranked.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np

from polyview.app.search.hits import Scores


@dataclass(frozen=True)
class Truth:
    """What is known about which images are right for the query.

    Attributes:
        ids: files that are right.
        complete: every other image is wrong; False where nothing is known about the others.
    """

    ids: frozenset[int]
    complete: bool


@dataclass(frozen=True)
class Run:
    """What one method answered.

    Attributes:
        key: what the method, or the average of several, is called by programs.
        title: what people call it.
        paper: where it was published; empty for an average.
        scores: of every image it could search.
        ms: milliseconds that one answer took, reading the query included; a median.
        runs: how many answers the median is of.
    """

    key: str
    title: str
    paper: str
    scores: Scores
    ms: float
    runs: int


@dataclass(frozen=True)
class Place:
    """An image at a rank of a column.

    Attributes:
        image_id: the image; of a clip the frame that is the column's best.
        file_id: the place of its file, by which columns are compared.
        rank: 1 for the best.
        score: the method's.
        right: whether it satisfies the query; None where that is not known.
        left_rank: its rank in the column to the left; None in the first column.
        new: the column to the left does not list it; False in the first column.
    """

    image_id: int
    file_id: int
    rank: int
    score: float
    right: bool | None
    left_rank: int | None
    new: bool

    @property
    def move(self) -> int | None:
        """Places it stands higher than in the column to the left, negative for lower.

        None where there is nothing to compare with: in the first column, and for a new image.
        """
        return None if self.left_rank is None or self.new else self.left_rank - self.rank


@dataclass(frozen=True)
class Column:
    """One method's list and what it is worth.

    Attributes:
        key: see `Run`, as for title, paper, ms and runs.
        places: the k best images, best first.
        true_ranks: the ranks of all images known to be right, ascending, within all N.
        r_precision: with R images right, the share of them among the first R; None where the
            truth is unknown or not complete.
    """

    key: str
    title: str
    paper: str
    ms: float
    runs: int
    places: tuple[Place, ...]
    true_ranks: tuple[int, ...]
    r_precision: float | None

    @property
    def best_true_rank(self) -> int | None:
        """The rank of the first right image; None where the truth is unknown."""
        return self.true_ranks[0] if self.true_ranks else None

    @property
    def right_in_list(self) -> int:
        """How many of its places hold an image known to be right."""
        return sum(place.right is True for place in self.places)


@dataclass(frozen=True)
class Comparison:
    """The answers of C methods to one query, side by side.

    Attributes:
        query: what was asked, in words.
        k: how many images each column lists; fewer where there are not as many.
        pictures: N, how many were ranked.
        truth: what is known to be right among them; None where nothing is.
        columns: in the order asked for.
        overlap: C x C, see `overlap`.
        tau: C x C, see `agreement`; None where it is not defined.
        only_found: for each column, what no other column found; see `only_found`.
        ranks: for every image that a column lists, its rank in each of the columns.
        remark: what should be known about how the query was read; may be empty.
    """

    query: str
    k: int
    pictures: int
    truth: Truth | None
    columns: tuple[Column, ...]
    overlap: tuple[tuple[float, ...], ...]
    tau: tuple[tuple[float | None, ...], ...]
    only_found: tuple[tuple[Place, ...], ...]
    ranks: Mapping[int, tuple[int, ...]]
    remark: str = ""


def compare(
    query: str,
    runs: Sequence[Run],
    k: int,
    truth: Truth | None = None,
    leave_out: int | None = None,
    remark: str = "",
) -> Comparison:
    """Puts the answers of several methods side by side.

    Only images that every method scored are ranked, so that ranks mean the same in all columns.
    Equal scores stand in the order of their ids.

    Args:
        query: what was asked, in words.
        runs: what each method answered; at least one.
        k: how many images each column lists, at least 1.
        truth: what is known to be right.
        leave_out: a file that is not ranked: the one asked with, which would always win.
        remark: see `Comparison`.

    Raises:
        ValueError: no image is left to rank.
    """
    ids, values, images = _common(runs, leave_out)  # (N,), (C, N), (C, N)
    known = None if truth is None else Truth(truth.ids & frozenset(ids.tolist()), truth.complete)
    if known is not None and not known.ids:
        known = None
    ranks = np.stack([rank(row) for row in values])  # (C, N)
    columns = tuple(
        _column(run, ids, values, images, ranks, c, k, known) for c, run in enumerate(runs)
    )
    lists = [[place.file_id for place in column.places] for column in columns]
    file_ids = {p.image_id: p.file_id for column in columns for p in column.places}
    pairs = range(len(runs))
    return Comparison(
        query=query,
        k=k,
        pictures=len(ids),
        truth=known,
        columns=columns,
        overlap=tuple(tuple(overlap(lists[a], lists[b]) for b in pairs) for a in pairs),
        tau=tuple(tuple(agreement(ranks, values, a, b, k) for b in pairs) for a in pairs),
        only_found=only_found([column.places for column in columns], known),
        ranks={
            image_id: tuple(ranks[:, np.searchsorted(ids, file_id)].tolist())
            for image_id, file_id in sorted(file_ids.items())
        },
        remark=remark,
    )


def rank(scores: np.ndarray) -> np.ndarray:
    """Ranks (N,) of scores (N,): 1 for the highest; equal scores in the order they are given.

    >>> rank(np.array([0.5, 0.9, 0.5, 0.9])).tolist()
    [3, 1, 4, 2]
    """
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks


def overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """The share of two lists of k images that is in both, overlap@k: |A and B| / k, 0 to 1.

    >>> overlap([1, 2, 3, 4], [4, 3, 9, 8])
    0.5
    """
    return len(set(a) & set(b)) / max(len(a), len(b))


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float | None:
    """Kendall's tau-b: how alike two scorings order the same n things.

    With P pairs that both order alike, Q that they order oppositely, and X and Y the pairs that x
    and y do not tie, tau-b = (P - Q) / sqrt(X * Y) (Kendall, Biometrika 1945): 1 for the same
    order, -1 for the opposite one, 0 for orders that have nothing to do with each other.

    Args:
        x: (n,) scores.
        y: (n,) scores.

    Returns:
        -1 to 1; None where one of them ties everything, or n is less than 2.

    >>> kendall_tau(np.array([1, 2, 3, 4]), np.array([1, 3, 2, 4]))
    0.6666666666666666
    """
    a = np.sign(x[:, None] - x[None])  # (n, n)
    b = np.sign(y[:, None] - y[None])  # (n, n)
    untied = np.abs(a).sum() * np.abs(b).sum()
    return float((a * b).sum() / np.sqrt(untied)) if untied else None


def agreement(ranks: np.ndarray, values: np.ndarray, a: int, b: int, k: int) -> float | None:
    """Kendall's tau-b of two columns over the images that either of them lists.

    It looks at the union of both lists of k images, with the scores that both columns give to
    all of these. Over all N images, the order of hundreds that nobody looks at would decide.
    Lists that share few images come below 0: what one lists, the other ranks lower.

    Args:
        ranks: (C, N) of all columns.
        values: (C, N) scores.
        a: a column.
        b: another one, or the same.
        k: how many images a column lists.
    """
    union = (ranks[a] <= k) | (ranks[b] <= k)  # (N,)
    return kendall_tau(values[a, union], values[b, union])


def only_found(
    lists: Sequence[Sequence[Place]], truth: Truth | None
) -> tuple[tuple[Place, ...], ...]:
    """For each column, the places of images that it alone found.

    Found means that a column lists an image that is right; where the truth is unknown, that it
    lists it.
    """
    listed = [
        [place for place in places if truth is None or place.file_id in truth.ids]
        for places in lists
    ]
    times = Counter(place.file_id for places in listed for place in places)
    return tuple(tuple(place for place in places if times[place.file_id] == 1) for places in listed)


def as_json(comparison: Comparison, known: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Everything a comparison says, as plain JSON values.

    Args:
        comparison: what to tell.
        known: for each listed image, what else is to be told about it, such as its file.
    """
    truth = comparison.truth
    return {
        "query": comparison.query,
        "k": comparison.k,
        "pictures": comparison.pictures,
        "truth": truth and {"image_ids": sorted(truth.ids), "complete": truth.complete},
        "columns": [
            {
                "method": column.key,
                "title": column.title,
                "paper": column.paper,
                "ms": column.ms,
                "runs": column.runs,
                "best_true_rank": column.best_true_rank,
                "true_ranks": list(column.true_ranks),
                "r_precision": column.r_precision,
                "right_in_list": column.right_in_list if truth else None,
                "hits": [
                    {**_place_json(place), **known.get(place.image_id, {})}
                    for place in column.places
                ],
            }
            for column in comparison.columns
        ],
        "overlap": [list(row) for row in comparison.overlap],
        "tau": [list(row) for row in comparison.tau],
        "only_found": {
            column.key: [{"image_id": p.image_id, "rank": p.rank} for p in alone]
            for column, alone in zip(comparison.columns, comparison.only_found, strict=True)
        },
        "remark": comparison.remark,
    }


def _place_json(place: Place) -> dict[str, Any]:
    fields = {**asdict(place), "move": place.move}
    del fields["file_id"]  # whose name is told
    return fields


def _common(
    runs: Sequence[Run], leave_out: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids (N,), ascending, of files that every run scored; their scores and images (C, N)."""
    shared = reduce(np.intersect1d, [run.scores.ids for run in runs])
    ids = shared if leave_out is None else shared[shared != leave_out]
    if not len(ids):
        raise ValueError("no picture is left to rank; add pictures to the gallery")
    rows, images = [], []
    for scores in (run.scores for run in runs):
        order = np.argsort(scores.ids, kind="stable")
        places = order[np.searchsorted(scores.ids[order], ids)]
        rows.append(scores.values[places])
        images.append(scores.images[places])
    return ids, np.stack(rows), np.stack(images)


def _column(
    run: Run,
    ids: np.ndarray,
    values: np.ndarray,
    images: np.ndarray,
    ranks: np.ndarray,
    c: int,
    k: int,
    truth: Truth | None,
) -> Column:
    """Column number c of ranks, scores and images (C, N)."""
    places = []
    for i in np.argsort(ranks[c])[:k]:
        file_id, left = int(ids[i]), int(ranks[c - 1, i]) if c else None
        places.append(
            Place(
                image_id=int(images[c, i]),
                file_id=file_id,
                rank=int(ranks[c, i]),
                score=float(values[c, i]),
                right=_right(file_id, truth),
                left_rank=left,
                new=left is not None and left > k,
            )
        )
    true_ranks: tuple[int, ...] = ()
    precision = None
    if truth is not None:
        true_ranks = tuple(sorted(ranks[c, np.isin(ids, list(truth.ids))].tolist()))
        count = len(true_ranks)
        precision = sum(r <= count for r in true_ranks) / count if truth.complete else None
    return Column(
        run.key, run.title, run.paper, run.ms, run.runs, tuple(places), true_ranks, precision
    )


def _right(file_id: int, truth: Truth | None) -> bool | None:
    if truth is None:
        return None
    return file_id in truth.ids or (False if truth.complete else None)
