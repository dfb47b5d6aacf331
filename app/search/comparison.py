"""Compares the answers of several methods, averages of methods, and open packs to one query.

The key of a column is a method ("mvam"), several methods whose scores are averaged ("mvam+pvse"),
or either of another open pack ("photos/mvam"). Ranks are compared image by image, so another pack
can take part only if it searches the same images. In the shapes, C is the number of columns and N
the number of images that all of them ranked.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from statistics import median

import numpy as np
from pydantic import BaseModel

from polyview.app.access import Refusal
from polyview.app.search.answers import describe, known_to_satisfy, remark
from polyview.app.search.hits import Hit
from polyview.app.search.ranking import Scores, Term
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import current_name

_RUNS = 3  # answers; the time of a column is their median
_ENOUGH = 1.0  # seconds spent on a column after which no further answer is timed
_PATIENCE = 20.0  # seconds a comparison waits for a gallery


class Truth(BaseModel):
    """The images known to be right for a query."""

    image_ids: list[int]  # ids of the right files, ascending
    complete: bool  # whether all other images are known to be wrong


class Place(Hit):
    """A hit at a rank of a column; of a clip, the best frame."""

    right: bool | None  # whether it satisfies the query; None if not known
    left_rank: int | None  # its rank in the column to the left; None in the first column
    new: bool  # whether the column to the left does not list it; False in the first column
    # ranks it is higher than to the left, negative for lower; None in the first column and if new
    move: int | None


class Column(BaseModel):
    """The list of one method and its quality; the last three are None if the truth is unknown."""

    method: str  # its name, or that of an average, for programs
    title: str  # for people
    paper: str  # its publication; empty for an average
    ms: float = 0.0  # median milliseconds of an answer, including encoding the query
    runs: int = 0  # number of timed answers
    hits: list[Place] = []  # the k best images, best first
    true_ranks: list[int] = []  # ranks among all N of the images known to be right, ascending
    best_true_rank: int | None = None  # the first of them
    # share of right images among the first R, for R right images; None if the truth is incomplete
    r_precision: float | None = None
    right_in_list: int | None = None  # number of hits known to be right


class Comparison(BaseModel):
    """The answers of C methods to one query, side by side.

    `tau` is over the images listed in either of two columns: over all N images, the order of
    hundreds of low ranks would dominate. `only_found` has the right images that no other column
    lists; if the truth is unknown, all such images.
    """

    query: str = ""  # in words
    k: int  # number of images in each column, or fewer if there are not enough
    pictures: int  # N, the number of ranked images
    truth: Truth | None  # None if unknown
    columns: list[Column]  # in the requested order
    overlap: list[list[float]]  # C x C, see `overlap`
    tau: list[list[float | None]]  # C x C, see `kendall_tau`
    only_found: dict[str, list[dict[str, int]]]  # by column: `image_id` and `rank`
    ranks: dict[int, list[int]]  # id of every listed image -> its rank in each column
    remark: str = ""  # about how the query was read


def compare(
    home: Retriever,
    beside: Iterable[Retriever],
    terms: Sequence[Term],
    keys: Sequence[str],
    k: int,
    image_id: int | None = None,
) -> Comparison:
    """Answers a query with every column in turn and compares the answers.

    Args:
        home: the pack in use, over its images.
        beside: other open packs; those over the same images can take part.
        terms: at least one.
        keys: the distinct columns, see the top of the module; "a+b" equals "b+a".
        k: number of images in each column, at least 1.
        image_id: the query image, if it is in the gallery; it is not ranked.

    Raises:
        ValueError: the query or a column is not valid.
        Refusal: a gallery is not complete.
    """
    packs = {"": home, **guests(home, beside)}
    columns: dict[str, tuple[Column, Retriever, str]] = {}
    for key in keys:
        label, _, spec = key.strip().rpartition("/")
        label = label if label in packs else current_name(label)
        if label not in packs:
            known = ", ".join(filter(None, packs)) or "none"
            raise ValueError(
                f'no open pack "{label}" searches the same images; those that do: {known}'
            )
        pack = packs[label]
        names = pack.methods.names(spec)
        spec = "+".join(name for name in pack.methods if name in names)
        method, title = (f"{label}/" if label else "") + spec, pack.methods.title(spec)
        if method in columns:
            raise ValueError(f'"{method}" is named twice; name each column once')
        column = Column(
            method=method,
            title=f"{title} of {pack.info.title}" if label else title,
            paper=pack.methods[names[0]].paper if len(names) == 1 else "",
        )
        columns[method] = column, pack, spec
    for index in {pack.index for _, pack, _ in columns.values()}:
        index.images_done.wait(_PATIENCE)
        if not index.complete:
            sentence = f"not all images are read yet ({index.progress}); compare once they are"
            raise Refusal(503, sentence, 5)
    own = None if image_id is None else home.collection.file_id(image_id)
    runs = [
        (column, _run(column, home, pack, terms, spec, k + (own is not None)))
        for column, pack, spec in columns.values()
    ]
    words = [term.words for term in terms if term.image is None]
    measured = measure(runs, k, truth(home, terms), own)
    measured.query = " ".join(describe(terms, typed=True))
    measured.remark = remark(home, *words) if words else ""
    return measured


def guests(home: Retriever, beside: Iterable[Retriever]) -> dict[str, Retriever]:
    """The packs over the same images as `home`, by name.

    A name is extended by a part of the checksum if another pack has the same one.
    """
    same = [p for p in beside if p.collection is home.collection or _images(p) == _images(home)]
    names = Counter(pack.info.name for pack in same)
    return {
        name if names[name] == 1 else f"{name}@{pack.info.identity[:8]}": pack
        for pack in same
        for name in [pack.info.name]
    }


def truth(home: Retriever, terms: Sequence[Term]) -> Truth | None:
    """The images known to be right if the query is, word for word, a caption of the gallery."""
    ids = known_to_satisfy(home.collection, terms)
    # in data sets without judgements for all images, captions name only their own image
    truths = [image.truth for image in home.collection.images if image.truth]
    complete = any(len(text.relevant) > 1 for truth in truths for text in truth.captions)
    return Truth(image_ids=sorted(ids), complete=complete) if ids else None


def _run(
    column: Column, home: Retriever, pack: Retriever, terms: Sequence[Term], spec: str, k: int
) -> Scores:
    """Runs and times one column, while no other column runs.

    The best clips are represented by the home pack's frames nearest to the column's moments.
    """
    spent: list[float] = []
    while len(spent) < _RUNS and sum(spent) < _ENOUGH:
        start = time.perf_counter()
        scores = pack.scores(terms, spec)
        spent.append(time.perf_counter() - start)
    column.ms, column.runs = round(1000 * median(spent), 1), len(spent)
    if pack.index.clips:
        best, images = np.argsort(-scores.values, kind="stable")[:k], scores.images.copy()
        moments = pack.moments(images[best].tolist(), terms, spec)
        images[best] = [home.local_image_id(pack.image(image_id)) for image_id in moments]
        scores = scores._replace(images=images)
    return scores


def _images(pack: Retriever) -> tuple[str, ...]:
    """The identity of a collection: its files, or names and checksum of a pack's images."""
    info, collection = pack.info, pack.collection
    if info.gallery is None or not collection.comes_with(info.folder):
        return tuple(str(image.path) for image in collection.images)
    return info.gallery.images_sha256, *(image.file for image in collection.images)


def measure(
    runs: Sequence[tuple[Column, Scores]],
    k: int,
    truth: Truth | None = None,
    leave_out: int | None = None,
) -> Comparison:
    """Compares the answers of several methods, all computed from scores.

    Only images that every method scored are ranked, so that ranks mean the same in all columns.
    Equal scores are ordered by id.

    Args:
        runs: for each method, at least one, a column without its list, which is filled in, and the
            scores of all searchable images.
        k: number of images in each column, at least 1.
        truth: the images known to be right.
        leave_out: a file to exclude: the query image, which would always win.

    Raises:
        ValueError: no image is left to rank.
    """
    columns, scores = [column for column, _ in runs], [scores for _, scores in runs]
    ids = reduce(np.intersect1d, [each.ids for each in scores])  # (N,) files, ascending
    ids = ids[ids != leave_out]
    if not len(ids):
        raise ValueError("no image is left to rank; add images to the gallery")
    rows = [(each, np.intersect1d(each.ids, ids, return_indices=True)[1]) for each in scores]
    values = np.stack([each.values[row] for each, row in rows])  # (C, N)
    images = np.stack([each.images[row] for each, row in rows])  # (C, N)
    ranks = np.stack([rank(row) for row in values])  # (C, N)
    lists = [np.argsort(row)[:k].tolist() for row in ranks]  # places in `ids`
    right = np.isin(ids, truth.image_ids if truth else [])  # (N,)
    if truth is not None:
        known = Truth(image_ids=ids[right].tolist(), complete=truth.complete)
        truth = known if right.any() else None
    listing = Counter(i for row in lists for i in row if truth is None or right[i])
    for c, (column, places) in enumerate(zip(columns, lists, strict=True)):
        column.hits = []
        for i in places:
            own, left = int(ranks[c, i]), int(ranks[c - 1, i]) if c else None
            new = left is not None and left > k
            hit = Place(
                image_id=int(images[c, i]),
                rank=own,
                score=float(values[c, i]),
                right=bool(right[i]) if truth and (right[i] or truth.complete) else None,
                left_rank=left,
                new=new,
                move=None if left is None or new else left - own,
            )
            column.hits.append(hit)
        true_ranks = sorted(ranks[c, right].tolist())
        column.true_ranks, column.best_true_rank = true_ranks, min(true_ranks, default=None)
        column.right_in_list = int(right[places].sum()) if truth else None
        within = sum(each <= len(true_ranks) for each in true_ranks)
        column.r_precision = within / len(true_ranks) if truth and truth.complete else None

    def tau(a: int, b: int) -> float | None:
        union = (ranks[a] <= k) | (ranks[b] <= k)  # (N,)
        return kendall_tau(values[a, union], values[b, union])

    pairs = range(len(runs))
    rows_by_id = {int(images[c, i]): i for c, places in enumerate(lists) for i in places}
    return Comparison(
        k=k,
        pictures=len(ids),
        truth=truth,
        columns=columns,
        overlap=[[overlap(a, b) for b in lists] for a in lists],
        tau=[[tau(a, b) for b in pairs] for a in pairs],
        only_found={
            column.method: [
                {"image_id": hit.image_id, "rank": hit.rank}
                for hit, i in zip(column.hits, places, strict=True)
                if listing[i] == 1
            ]
            for column, places in zip(columns, lists, strict=True)
        },
        ranks={image_id: ranks[:, i].tolist() for image_id, i in rows_by_id.items()},
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
