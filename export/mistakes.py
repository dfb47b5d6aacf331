"""Compares the rankings of two methods: ranks, counts, a paired test, kinds and words of captions.

N is the number of images, Q the number of captions. Ranks start at 1; images with equal scores keep
their order.
"""

import csv
import io
import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

CELLS = ("a", "b", "both", "neither")  # the methods with a correct image among the first k
UNRANKED = np.iinfo(np.int32).max  # rank of an image that is not listed
MAX_WORDS = 15  # maximum number of words listed for each method
BATCH_BYTES = 8 * 2**20  # maximum bytes of the scores in one batch
_MAX_CAPTIONS = 256  # maximum number of captions in one batch
_MIN_CAPTIONS = 3  # minimum number of captions with a listed word
_MIN_SIGNIFICANCE = 1.96  # minimum log ratio of a listed word, in standard errors
_LENGTHS = ("up to 6 words", "7 to 9 words", "10 to 12 words", "13 words or more")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
# the start of a text that spreadsheets execute as a formula
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
Scores = Callable[[str, slice], np.ndarray]  # spec, slice of q captions -> scores (q, N)


class Caption(NamedTuple):
    """A caption and its correct images."""

    text: str
    right: Sequence[int]  # known correct images, possibly repeated; the first is the labelled image
    kind: str = ""  # such as "animal"; if empty, the kind is the length of the caption


class Outcome(NamedTuple):
    """The results of two methods, A and B, for a caption."""

    caption: int  # index of the caption
    text: str
    kind: str
    found: str  # one of `CELLS`
    rank_a: int  # rank of the first correct image
    rank_b: int
    image: int  # the labelled image
    first_a: int | None  # the image that ranks first
    first_b: int | None
    suspect: int | None  # an image that is probably correct but not labelled, see `compare`

    def words(self) -> set[str]:
        """Returns the words of the caption, in lower case."""
        return {*_WORD.findall(self.text.lower())}

    def matches(self, kind: str) -> bool:
        """Returns whether `kind` is "", the caption's kind, or "word:W" with W in the caption."""
        word = kind.lower().removeprefix("word:")
        return word in self.words() if kind.startswith("word:") else kind in ("", self.kind)


def rank_captions(
    captions: Sequence[Caption], specs: Iterable[str], image_count: int, scores: Scores
) -> dict[str, np.ndarray]:
    """Ranks N = `image_count` images for Q captions by each spec (method or ensemble).

    `scores` returns -inf for images that are not listed. Returns spec -> table (3, Q) int32. Row 0
    is the rank of the first correct image, or `UNRANKED` if none is listed. Row 1 is the image that
    ranks first. Row 2 is an image that this spec and all previous specs rank above the labelled
    image; of several, it is the one with the best rank by this spec. In rows 1 and 2, -1 stands for
    no image. Raises ValueError for a score of NaN.
    """
    tables = {spec: np.full((3, len(captions)), -1, np.int32) for spec in specs}
    step = min(_MAX_CAPTIONS, max(1, BATCH_BYTES // (4 * image_count)))
    for start in range(0, len(captions), step):
        batch = slice(start, start + step)
        masks = np.ones((len(captions[batch]), image_count), bool)  # images above the labelled one
        for spec, table in tables.items():
            rows = zip(table[:, batch].T, scores(spec, batch), captions[batch], masks, strict=True)
            for column, values, caption, above in rows:  # (3,), (N,), a caption, (N,)
                right, top_image = np.array(caption.right), values.argmax()
                if np.isnan(values[top_image]):  # argmax prefers NaN
                    raise ValueError("a score is NaN: the weights are damaged or training diverged")
                score = values[right].max()
                ties = (values[: right[values[right] == score].min()] == score).sum()
                column[0] = UNRANKED if score == -np.inf else 1 + (values > score).sum() + ties
                column[1] = -1 if values[top_image] == -np.inf else top_image
                above &= values > values[right[0]]
                if above.any():
                    column[2] = np.where(above, values, -np.inf).argmax()
    return tables


def compare(
    captions: Sequence[Caption], a: np.ndarray, b: np.ndarray, above: np.ndarray, k: int
) -> list[Outcome]:
    """Compares the first k images of the methods A and B for each caption.

    `a` and `b` (2, Q) are rows 0 and 1 of the tables of A and B from `rank_captions`; `above` (Q,)
    is row 2 of the last table. The suspect of a caption is its image in `above`. If labels are
    complete, the suspect is instead the first image of A, or else of B, that is correct but not the
    labelled image. Missing labels lower recall (ECCV Caption, Chun et al., ECCV 2022).
    """
    (rank_a, first_a), (rank_b, first_b), suspects = a, b, above
    labels = np.array([caption.right[0] for caption in captions])
    if has_complete_labels(captions):
        is_suspect = [(rank == 1) & (first != labels) for rank, first in (a, b)]
        suspects = np.select(is_suspect, [first_a, first_b], -1)
    hits_a, hits_b = rank_a <= k, rank_b <= k
    cells = np.select([hits_a & hits_b, hits_a, hits_b], ["both", "a", "b"], "neither")
    columns = [values.tolist() for values in (cells, rank_a, rank_b, labels)]
    for indices in (first_a, first_b, suspects):
        columns.append([None if i < 0 else i for i in indices.tolist()])
    texts = [caption.text for caption in captions]
    kinds = [c.kind or _LENGTHS[bisect_left((6, 9, 12), len(c.text.split()))] for c in captions]
    return [*map(Outcome, range(len(texts)), texts, kinds, *columns)]


def has_complete_labels(captions: Iterable[Caption]) -> bool:
    """Returns whether labels count as complete, because some caption has several correct images."""
    return any(len({*caption.right}) > 1 for caption in captions)


def count_cells(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Counts the outcomes in each of `CELLS`."""
    counts = Counter(row.found for row in outcomes)
    return {cell: counts[cell] for cell in CELLS}


def count_by_kind(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Returns a row for each kind of caption: `kind`, number of `captions`, and `count_cells`."""
    groups = defaultdict[str, list[Outcome]](list)
    for row in outcomes:
        groups[row.kind].append(row)
    return [{"kind": k, "captions": len(rows), **count_cells(rows)} for k, rows in groups.items()]


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Summarises at least one outcome.

    Returns `counts` from `count_cells`, `p` from `sign_test`, and `words_a` and `words_b`, the
    `typical_words` of the captions in the cells "a" and "b". `difference` is A's recall minus B's
    in percent; `low` and `high` bound its normal 95 % interval. The interval is clustered by image,
    because captions of one image are not independent (Liang and Zeger, Biometrika 1986).
    """
    a, b = ([row for row in outcomes if row.found == side] for side in "ab")
    mean, gains = (len(a) - len(b)) / len(outcomes), defaultdict[int, float](float)
    for row in outcomes:
        gains[row.image] += (row.found == "a") - (row.found == "b") - mean
    margin = 1.96 * math.hypot(*gains.values()) / len(outcomes)
    gain = {"difference": 100 * mean, "low": 100 * (mean - margin), "high": 100 * (mean + margin)}
    words = {"words_a": typical_words(a, b), "words_b": typical_words(b, a)}
    return {"counts": count_cells(outcomes), **gain, "p": sign_test(len(a), len(b)), **words}


def sign_test(wins: int, losses: int) -> float:
    """Returns the two-sided p value of McNemar's exact test (Psychometrika 1947)."""
    count, min_count = wins + losses, min(wins, losses)
    logs = (math.lgamma(i + 1) + math.lgamma(count - i + 1) for i in range(min_count + 1))
    log_scale = math.lgamma(count + 1) - count * math.log(2)
    return min(1.0, 2 * math.fsum(math.exp(log_scale - log) for log in logs))


def typical_words(group: Collection[Outcome], others: Collection[Outcome]) -> list[dict[str, Any]]:
    """Returns at most `MAX_WORDS` words that are more frequent in `group` than in `others`.

    Each result has `word` and `ratio`. The ratio is the share of captions with the word in `group`,
    divided by the share in `others`, with half a caption added to each count. Its log is at least
    `_MIN_SIGNIFICANCE` standard errors. The most significant word comes first.
    """
    in_group, in_others = (Counter(w for row in r for w in row.words()) for r in (group, others))
    m, n, candidates = len(group) + 1, len(others) + 1, list[tuple[float, str, float]]()
    for word in in_group:
        x, y = in_group[word] + 0.5, in_others[word] + 0.5
        ratio = (x / m) / (y / n)
        significance = math.log(ratio) / math.sqrt(1 / x + 1 / y - 1 / m - 1 / n)
        if in_group[word] + in_others[word] >= _MIN_CAPTIONS and significance >= _MIN_SIGNIFICANCE:
            candidates.append((-significance, word, round(ratio, 3)))
    return [{"word": word, "ratio": ratio} for _, word, ratio in sorted(candidates)[:MAX_WORDS]]


def to_csv(outcomes: Iterable[Outcome]) -> str:
    """Formats outcomes as CSV; escapes texts that spreadsheets would execute as formulas."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(Outcome._fields)
    for row in outcomes:
        text = f"'{row.text}" if _FORMULA.match(row.text) else row.text
        writer.writerow("" if cell == UNRANKED else cell for cell in row._replace(text=text))
    return out.getvalue()
