"""Compares the answers of several methods to one query.

Everything is computed from scores. In the shapes, C is the number of columns (methods compared) and
N the number of images that all of them ranked.
"""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from pydantic import BaseModel

from polyview.app.search.hits import Hit
from polyview.app.search.ranking import Scores


class Truth(BaseModel):
    """The images known to be right for a query.

    Attributes:
        image_ids: ids of the right files, ascending.
        complete: whether all other images are known to be wrong.
    """

    image_ids: list[int]
    complete: bool


class Place(Hit):
    """A hit at a rank of a column; of a clip, the best frame.

    Attributes:
        right: whether it satisfies the query; None if not known.
        left_rank: its rank in the column to the left; None in the first column.
        new: whether the column to the left does not list it; False in the first column.
        move: ranks it is higher than in the column to the left, negative for lower; None in the
            first column and for a new image.
    """

    right: bool | None
    left_rank: int | None
    new: bool
    move: int | None


class Column(BaseModel):
    """The list of one method and its quality.

    Attributes:
        method: the name of the method, or average of methods, for programs.
        title: its name for people.
        paper: its publication; empty for an average.
        ms: median milliseconds of an answer, including encoding the query.
        runs: number of timed answers.
        hits: the k best images, best first.
        true_ranks: the ranks among all N of the images known to be right, ascending.
        best_true_rank: the first of them; None if the truth is unknown.
        r_precision: the share of right images among the first R, with R the number of right images;
            None if the truth is unknown or not complete.
        right_in_list: number of hits known to be right; None if the truth is unknown.
    """

    method: str
    title: str
    paper: str
    ms: float
    runs: int
    hits: list[Place] = []
    true_ranks: list[int] = []
    best_true_rank: int | None = None
    r_precision: float | None = None
    right_in_list: int | None = None


class Comparison(BaseModel):
    """The answers of C methods to one query, side by side.

    Attributes:
        query: the query in words.
        k: number of images in each column, or fewer if there are not enough.
        pictures: N, the number of ranked images.
        truth: the images known to be right; None if unknown.
        columns: in the requested order.
        overlap: C x C, see `overlap`.
        tau: C x C, see `kendall_tau`, over the images listed in either of two columns. Over all N
            images, the order of hundreds of low ranks would dominate.
        only_found: for each column, `image_id` and `rank` of the right images that no other column
            lists; if the truth is unknown, of all such images.
        ranks: image id -> its rank in each column, for every listed image.
        remark: remarks about how the query was read; may be empty.
    """

    query: str
    k: int
    pictures: int
    truth: Truth | None
    columns: list[Column]
    overlap: list[list[float]]
    tau: list[list[float | None]]
    only_found: dict[str, list[dict[str, int]]]
    ranks: dict[int, list[int]]
    remark: str


def compare(
    query: str,
    runs: Sequence[tuple[Column, Scores]],
    k: int,
    truth: Truth | None = None,
    leave_out: int | None = None,
    remark: str = "",
) -> Comparison:
    """Compares the answers of several methods.

    Only images that every method scored are ranked, so that ranks mean the same in all columns.
    Equal scores are ordered by id.

    Args:
        query: the query in words.
        runs: for each method, at least one, a column without its list, which is filled in, and the
            scores of all searchable images.
        k: number of images in each column, at least 1.
        truth: the images known to be right.
        leave_out: a file to exclude: the query image, which would always win.
        remark: see `Comparison`.

    Raises:
        ValueError: no image is left to rank.
    """
    columns, scores = map(list[Any], zip(*runs, strict=True))
    ids = reduce(np.intersect1d, [each.ids for each in scores])  # (N,) files, ascending
    ids = ids[ids != leave_out]
    if not len(ids):
        raise ValueError("no image is left to rank; add images to the gallery")
    rows = [(each, np.intersect1d(each.ids, ids, return_indices=True)[1]) for each in scores]
    values = np.stack([each.values[row] for each, row in rows])  # (C, N)
    images = np.stack([each.images[row] for each, row in rows])  # (C, N)
    ranks = np.stack([rank(row) for row in values])  # (C, N)
    lists = [np.argsort(row)[:k].tolist() for row in ranks]  # places in `ids`
    right = np.isin(ids, [] if truth is None else truth.image_ids)  # (N,)
    if truth is not None:
        known = Truth(image_ids=ids[right].tolist(), complete=truth.complete)
        truth = known if right.any() else None
    listing = Counter(i for row in lists for i in row if truth is None or right[i])
    only_found = {}
    for c, (column, places) in enumerate(zip(columns, lists, strict=True)):
        column.hits = []
        for i in places:
            own, left = int(ranks[c, i]), int(ranks[c - 1, i]) if c else None
            new = left is not None and left > k
            hit = Place(
                image_id=int(images[c, i]),
                rank=own,
                score=float(values[c, i]),
                right=None if truth is None or not (right[i] or truth.complete) else bool(right[i]),
                left_rank=left,
                new=new,
                move=None if left is None or new else left - own,
            )
            column.hits.append(hit)
        column.true_ranks = sorted(ranks[c, right].tolist())
        count = len(column.true_ranks)
        column.best_true_rank = column.true_ranks[0] if count else None
        column.right_in_list = None if truth is None else int(right[places].sum())
        judged = truth is not None and truth.complete
        within = sum(r <= count for r in column.true_ranks)
        column.r_precision = within / count if judged else None
        only_found[column.method] = [
            {"image_id": hit.image_id, "rank": hit.rank}
            for hit, i in zip(column.hits, places, strict=True)
            if listing[i] == 1
        ]

    def tau(a: int, b: int) -> float | None:
        union = (ranks[a] <= k) | (ranks[b] <= k)  # (N,)
        return kendall_tau(values[a, union], values[b, union])

    pairs = range(len(runs))
    rows_by_id = {int(images[c, i]): i for c, places in enumerate(lists) for i in places}
    return Comparison(
        query=query,
        k=k,
        pictures=len(ids),
        truth=truth,
        columns=columns,
        overlap=[[overlap(a, b) for b in lists] for a in lists],
        tau=[[tau(a, b) for b in pairs] for a in pairs],
        only_found=only_found,
        ranks={image_id: ranks[:, i].tolist() for image_id, i in rows_by_id.items()},
        remark=remark,
    )


def rank(scores: np.ndarray) -> np.ndarray:
    """Ranks (N,) of scores (N,): 1 for the highest; equal scores in their order.

    >>> rank(np.array([0.5, 0.9, 0.5, 0.9])).tolist()
    [3, 1, 4, 2]
    """
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks


def overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """The overlap@k of two lists of k images, |A and B| / k: 0 to 1.

    >>> overlap([1, 2, 3, 4], [4, 3, 9, 8])
    0.5
    """
    return len(set(a) & set(b)) / max(len(a), len(b))


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float | None:
    """Kendall's tau-b: the agreement of two scorings on the order of n items.

    With P pairs in the same order, Q pairs in opposite order, and X and Y the pairs that are not
    tied in x and y, tau-b = (P - Q) / sqrt(X * Y) (Kendall, Biometrika 1945): 1 for the same order,
    -1 for the opposite one, 0 for unrelated orders.

    Args:
        x: (n,) scores.
        y: (n,) scores.

    Returns:
        -1 to 1; None if one of them ties all items, or n is less than 2.

    >>> kendall_tau(np.array([1, 2, 3, 4]), np.array([1, 3, 2, 4]))
    0.6666666666666666
    """
    a = np.sign(x[:, None] - x[None])  # (n, n)
    b = np.sign(y[:, None] - y[None])  # (n, n)
    untied = np.abs(a).sum() * np.abs(b).sum()
    return float((a * b).sum() / np.sqrt(untied)) if untied else None
