"""Compares the answers of methods, averages of methods, and other open packs to one query.

The key of a column is a method ("mvam"), several methods whose scores are averaged ("mvam+pvse"),
or one of these in another open pack over the same collection ("photos/mvam"). In the shapes, C is
the number of columns and N the number of images that all columns rank.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from statistics import median

import numpy as np
from pydantic import BaseModel

from polyview.app.refusal import Refusal
from polyview.app.search.clips import Scores, nearest_frame
from polyview.app.search.hits import Hit
from polyview.app.search.retriever import Retriever, Term

_TIMED_RUNS = 3  # timed answers of a column; their median is reported
_TIMING_SECONDS = 1.0  # total time of answers after which a column is not timed again
_WAIT_SECONDS = 20.0  # time that a comparison waits for a gallery


class Truth(BaseModel):
    """The images that are known to satisfy a query."""

    image_ids: list[int]  # ids of the right files, ascending
    complete: bool  # whether all other images are known to be wrong


class Place(Hit):
    """A hit in a column. In the first column, `left_rank` and `move` are None; `new` is False."""

    right: bool | None  # whether the image satisfies the query; None if not known
    left_rank: int | None  # rank in the column to the left
    new: bool  # whether the column to the left does not list the image
    move: int | None  # ranks gained over the column to the left, negative if lost; None if new


class Column(BaseModel):
    """The hits of a method and their quality; without a `Truth`, the last three fields are None."""

    method: str  # the key of the column
    title: str  # the display name of the method or average
    paper: str  # the paper of the method; empty for an average
    ms: float = 0.0  # median milliseconds of an answer, including encoding the query
    hits: list[Place] = []  # the k best images, best first
    best_true_rank: int | None = None  # rank of the first right image, 1 to N
    # share of the R right images that rank in the first R; None if the truth is incomplete
    r_precision: float | None = None
    right_in_list: int | None = None  # number of right hits


class Comparison(BaseModel):
    """The answers of C methods to one query.

    `tau` compares two columns only over images that at least one of them lists, because the many
    unlisted images would dominate tau. `only_found` has the images that only one column lists. If
    any right image is known, `only_found` has only right images.
    """

    query: str = ""  # the terms as text
    k: int  # maximum number of images in each column
    pictures: int  # N, the number of ranked images
    truth: Truth | None  # None if unknown
    columns: list[Column]  # in the requested order
    overlap: list[list[float]]  # C x C, shares of images that two columns both list
    tau: list[list[float | None]]  # C x C, see `kendall_tau`
    only_found: dict[str, list[dict[str, int]]]  # by column: `image_id` and `rank`
    ranks: dict[int, list[int]]  # ranks in all columns, by the id of a listed image
    remark: str = ""  # limitations of the answer, such as unknown words


def compare(
    retriever: Retriever,
    peers: Mapping[str, Retriever],
    terms: Sequence[Term],
    keys: Sequence[str],
    k: int,
    image_id: int | None = None,
) -> Comparison:
    """Answers a query of at least one term with each column's method, and compares the answers.

    `keys` are the keys of the columns. `retriever` answers columns whose key names no pack. `peers`
    maps the keys of other open packs to their retrievers over the same collection. `k >= 1` is the
    number of images in each column. The query image `image_id` is not ranked. Raises ValueError if
    the query or a key is not valid or a key is repeated, `Refusal` if a gallery is incomplete.
    """
    columns: dict[str, tuple[Column, Retriever, str]] = {}
    for key in keys:
        pack, _, spec = key.strip().rpartition("/")
        if pack and pack not in peers:
            choices = ", ".join(peers) or "none"
            raise ValueError(f'no open pack "{pack[:80]}" has the same images; known: {choices}')
        peer = peers[pack] if pack else retriever
        names = peer.methods.names(spec)
        spec = "+".join(name for name in peer.methods if name in names)
        method, title = f"{pack}/{spec}" if pack else spec, peer.methods.title(spec)
        if method in columns:
            raise ValueError(f'"{method}" is named twice; name each column once')
        title = f"{title} of {peer.info.title}" if pack else title
        paper = peer.methods[spec].paper if len(names) == 1 else ""
        columns[method] = Column(method=method, title=title, paper=paper), peer, spec
    for index in {peer.index for _, peer, _ in columns.values()}:
        index.images_done.wait(_WAIT_SECONDS)
        if not index.complete:
            message = f"not all images are read yet ({index.progress}); compare again later"
            raise Refusal(503, message, 5)
    query_file = None if image_id is None else retriever.collection.file_id(image_id)
    runs = [  # k + 1 images, because the query image may be one of them
        (column, _score_column(column, retriever, peer, terms, spec, k + 1))
        for column, peer, spec in columns.values()
    ]
    return measure(runs, k, truth(retriever, terms), query_file)


def truth(retriever: Retriever, terms: Sequence[Term]) -> Truth | None:
    """Returns the right images of a query that equals a caption; None for other queries."""
    ids = retriever.relevant_files(terms)
    # a caption with several relevant images shows that all images were judged for each caption
    truths = [image.truth for image in retriever.collection.images if image.truth]
    is_complete = any(len(caption.relevant) > 1 for truth in truths for caption in truth.captions)
    return Truth(image_ids=sorted(ids), complete=is_complete) if ids else None


def _score_column(
    column: Column, retriever: Retriever, peer: Retriever, terms: Sequence[Term], spec: str, k: int
) -> Scores:
    """Scores all files with `peer`, the retriever of the column; sets `column.ms`.

    In the result, the best frames of the k best files have ids of `retriever`, not of `peer`.
    """
    seconds: list[float] = []
    while len(seconds) < _TIMED_RUNS and sum(seconds) < _TIMING_SECONDS:
        start = time.perf_counter()
        scores = peer.scores(terms, spec)
        seconds.append(time.perf_counter() - start)
    column.ms = round(1000 * median(seconds), 1)
    if peer.index.clips:
        rows, images = np.argsort(-scores.values, kind="stable")[:k], scores.images.copy()
        frames = map(peer.image, peer.find_best_frames(images[rows].tolist(), terms, spec))
        images[rows] = [nearest_frame(retriever.index, frame) for frame in frames]
        scores = scores._replace(images=images)
    return scores


def measure(
    runs: Sequence[tuple[Column, Scores]],
    k: int,
    truth: Truth | None = None,
    query_file: int | None = None,
) -> Comparison:
    """Compares columns and sets their hits and quality; `runs` has each column and its scores.

    Ranks only the files that every column scored, so that ranks are comparable. Does not rank the
    query image `query_file`, which would always win. Equal scores are ordered by id. Raises
    ValueError if no file is left to rank.
    """
    columns, scores = zip(*runs, strict=True)
    ids = reduce(np.intersect1d, [s.ids for s in scores])  # (N,) sorted ids of files
    ids = ids[ids != query_file]
    if not len(ids):
        raise ValueError("no image is left to rank; add images to the gallery")
    pairs = [(s, np.intersect1d(s.ids, ids, return_indices=True)[1]) for s in scores]
    values = np.stack([s.values[rows] for s, rows in pairs])  # (C, N)
    images = np.stack([s.images[rows] for s, rows in pairs])  # (C, N) image ids
    ranks = np.stack([rank(row) for row in values])  # (C, N)
    lists = [np.argsort(row)[:k].tolist() for row in ranks]  # indices into `ids`
    is_right = np.isin(ids, truth.image_ids if truth else [])  # (N,)
    is_complete = truth is not None and truth.complete and bool(is_right.any())
    list_counts = Counter(i for row in lists for i in row if is_right[i] or not is_right.any())
    only_found: dict[str, list[dict[str, int]]] = {}
    for c, (column, indices) in enumerate(zip(columns, lists, strict=True)):
        left = ranks[c - 1] if c else None  # ranks in the column to the left
        column.hits = [
            Place(
                image_id=int(images[c, i]),
                rank=int(ranks[c, i]),
                score=float(values[c, i]),
                right=bool(is_right[i]) if is_complete or is_right[i] else None,
                left_rank=None if left is None else int(left[i]),
                new=left is not None and bool(left[i] > k),
                move=None if left is None or left[i] > k else int(left[i] - ranks[c, i]),
            )
            for i in indices
        ]
        only_found[column.method] = [
            {"image_id": hit.image_id, "rank": hit.rank}
            for hit, i in zip(column.hits, indices, strict=True)
            if list_counts[i] == 1
        ]
        true_ranks = ranks[c, is_right]
        column.best_true_rank = int(true_ranks.min()) if len(true_ranks) else None
        column.right_in_list = int(is_right[indices].sum()) if len(true_ranks) else None
        column.r_precision = float((true_ranks <= len(true_ranks)).mean()) if is_complete else None

    def tau(a: int, b: int) -> float | None:  # over images that column a or b lists
        is_listed = (ranks[a] <= k) | (ranks[b] <= k)  # (N,)
        return kendall_tau(values[a, is_listed], values[b, is_listed])

    right_ids = ids[is_right].tolist()
    rows_by_id = {int(images[c, i]): i for c, indices in enumerate(lists) for i in indices}
    return Comparison(
        k=k,
        pictures=len(ids),
        truth=Truth(image_ids=right_ids, complete=is_complete) if right_ids else None,
        columns=list(columns),
        overlap=[[len({*a} & {*b}) / len(a) for b in lists] for a in lists],
        tau=[[tau(a, b) for b in range(len(runs))] for a in range(len(runs))],
        only_found=only_found,
        ranks={image_id: ranks[:, i].tolist() for image_id, i in rows_by_id.items()},
    )


def rank(scores: np.ndarray) -> np.ndarray:
    """Returns the ranks (N,) of scores (N,), from 1 for the highest; ties keep their order.

    >>> rank(np.array([0.5, 0.9, 0.5, 0.9])).tolist()
    [3, 1, 4, 2]
    """
    return np.argsort(np.argsort(-scores, kind="stable")) + 1


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float | None:
    """Returns Kendall's tau-b (-1 to 1), the agreement of x (n,) and y (n,) on the order of items.

    tau-b = (P - Q) / sqrt(X * Y) (Kendall, Biometrika 1945). P pairs of items have the same order
    in x and y, and Q pairs the opposite order. X pairs differ in x, and Y pairs differ in y.
    Returns None if X or Y is 0.

    >>> kendall_tau(np.array([1, 2, 3, 4]), np.array([1, 3, 2, 4]))
    0.6666666666666666
    """
    a = np.sign(x[:, None] - x[None])  # (n, n)
    b = np.sign(y[:, None] - y[None])  # (n, n)
    product = np.abs(a).sum() * np.abs(b).sum()  # 4 X Y, because each pair is counted twice
    return float((a * b).sum() / np.sqrt(product)) if product else None
