"""Compares what two methods find: ranks, counts, a paired test, kinds and words.

Shared by the app's screen Mistakes and `training.evaluate --mistakes`. In the shapes, N is the
number of images and Q of captions. Ranks count from 1; equal scores are ordered as the images.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

CELLS = ("a", "b", "both", "neither")  # the methods that find a right image within k
UNRANKED = np.iinfo(np.int32).max  # the rank of an image that is not listed
WORDS = 15  # listed for each of two methods
PART_BYTES = 4 * 2**20  # bytes of scores at a time
_BLOCK = 64  # captions whose right images are scored at a time
_LEAST, _SURE = 3, 1.96  # minimum captions with a listed word; its standard errors from ratio 1
_LENGTHS = {6: "up to 6 words", 9: "7 to 9 words", 12: "10 to 12 words", 10**9: "13 words or more"}
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
# cells that spreadsheets execute
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


@dataclass(frozen=True, eq=False)
class Captions:
    """Captions, and which images are right for each.

    Attributes:
        texts: Q sentences.
        labelled: (Q,) int64 row of the image that each caption was written for.
        right: for each caption the rows of all images known to be right, including the labelled
            one.
        kinds: the kind of each caption, such as "animal"; None if captions have no kinds.
    """

    texts: Sequence[str]
    labelled: np.ndarray
    right: Sequence[np.ndarray]
    kinds: Sequence[str | None]

    @property
    def exact(self) -> bool:
        """Whether all other images are known to be wrong: some caption has several right ones."""
        return any(len(rows) > 1 for rows in self.right)

    def kind(self, q: int) -> str:
        """The kind of a caption, or its length if captions have no kinds."""
        length = len(self.texts[q].split())
        return self.kinds[q] or next(kind for most, kind in _LENGTHS.items() if length <= most)

    def words(self, q: int) -> frozenset[str]:
        """The words of a caption, in lower case."""
        return frozenset(_WORD.findall(self.texts[q].lower()))

    def of_kind(self, kind: str) -> np.ndarray:
        """The indices of the captions of a kind, or of those with a word, as in "word:dog"."""
        every, word = range(len(self.texts)), kind.lower().removeprefix("word:")
        if kind.startswith("word:"):
            return np.array([q for q in every if word in self.words(q)], np.int64)
        return np.array([q for q in every if self.kind(q) == kind], np.int64)


class Ranks(NamedTuple):
    """The results of one method for Q captions, (Q,) int32 each.

    Attributes:
        rank: the rank of the first right image.
        first: the row of the image that ranks first.
    """

    rank: np.ndarray
    first: np.ndarray


def rank_captions(
    captions: Captions,
    names: Sequence[str],
    images: int,
    scores: Callable[[str, np.ndarray, slice], np.ndarray],
    tell: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Ranks], np.ndarray]:
    """Ranks captions by the scores of methods, for a part of the images at a time.

    Args:
        captions: Q.
        names: the methods; at least one.
        images: N.
        scores: returns the scores (n, q) of a method for some images, by their rows (n,) in
            ascending order, and some captions; -inf for images that cannot be found.
        tell: called with the number of images done.

    Returns:
        Ranks by method; and (Q,) the image that all methods rank above the labelled one (the best
        of the last method if there are several), or -1.

    Raises:
        ValueError: a score is NaN, which has no rank.
    """
    count, right = len(captions.texts), np.concatenate(captions.right)
    owner = np.repeat(np.arange(count), [len(rows) for rows in captions.right])
    starts, every = np.searchsorted(owner, np.arange(count)), np.arange(count)
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for start in range(0, count, _BLOCK):
        inside = slice(*np.searchsorted(owner, (start, start + _BLOCK)))
        rows, place = np.unique(right[inside], return_inverse=True)
        for name in names:
            part = scores(name, rows, slice(start, start + _BLOCK))
            blocks[name].append(part[place, owner[inside] - start])
    own = {name: np.concatenate(values) for name, values in blocks.items()}  # scores of `right`
    best = {name: np.maximum.reduceat(values, starts) for name, values in own.items()}
    labelled = {name: values[right == captions.labelled[owner]] for name, values in own.items()}
    earliest = {  # equal images rank in their order
        name: np.minimum.reduceat(np.where(values == best[name][owner], right, UNRANKED), starts)
        for name, values in own.items()
    }
    ranks = {name: Ranks(np.ones(count, np.int32), np.zeros(count, np.int32)) for name in names}
    above = np.full(count, -1, np.int32)
    top = {name: np.full(count, -np.inf) for name in ["", *names]}  # "" for `above`

    def take(values: np.ndarray, start: int, name: str, first: np.ndarray) -> None:
        row = values.argmax(axis=0)  # NaN counts as the highest
        if np.isnan(value := values[row, every]).any():
            raise ValueError("a score is NaN: the weights are damaged, or the training diverged")
        new = value > top[name]
        first[new], top[name][new] = start + row[new], value[new]

    step = max(1, PART_BYTES // (4 * count))
    for start in range(0, images, step):
        rows, higher = np.arange(start, min(start + step, images)), np.True_
        inside = (right >= start) & (right <= rows[-1])
        for name in names:
            part = scores(name, rows, slice(None))
            part[right[inside] - start, owner[inside]] = own[name][inside]
            before = (part == best[name]) & (rows[:, None] < earliest[name])
            ranks[name].rank[:] += ((part > best[name]) | before).sum(axis=0, dtype=np.int32)
            take(part, start, name, ranks[name].first)
            higher = higher & (part > labelled[name])
        take(np.where(higher, part, -np.inf), start, "", above)
        tell(start + len(rows))
    return ranks, above


def sign_test(wins: int, losses: int) -> float:
    """McNemar's test in its exact form (Psychometrika 1947), two-sided.

    Returns:
        The probability of a split at least as uneven, were A and B equally likely to win.

    >>> round(sign_test(8, 1), 4), sign_test(0, 0)
    (0.0391, 1.0)
    """
    count, least = wins + losses, min(wins, losses)
    logs = (math.lgamma(i + 1) + math.lgamma(count - i + 1) for i in range(least + 1))
    whole = math.lgamma(count + 1) - count * math.log(2)
    return min(1.0, 2 * math.fsum(math.exp(whole - log) for log in logs))


def contrast(
    a: Iterable[frozenset[str]], b: Iterable[frozenset[str]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Words that occur more often in the captions of A than of B, and vice versa.

    The ratio compares the shares of captions with the word, after adding half a caption to each
    count. Listed are words in at least `_LEAST` captions whose log ratio is more than `_SURE`
    standard errors from 0, the most significant first.

    Returns:
        Two lists of at most `WORDS` entries with word, a, b (captions) and ratio; the second has
        ratios below 1.
    """
    sets = [list(a), list(b)]
    counts = [Counter(word for words in each for word in words) for each in sets]
    most = [len(each) + 1 for each in sets]
    named: tuple[list[tuple[float, str, int, int, float]], ...] = ([], [])
    for word in counts[0] | counts[1]:
        x, y = counts[0][word], counts[1][word]
        ratio = (x + 0.5) / most[0] / ((y + 0.5) / most[1])
        spread = 1 / (x + 0.5) + 1 / (y + 0.5) - 1 / most[0] - 1 / most[1]
        sure = abs(math.log(ratio)) / math.sqrt(max(spread, 1e-9))
        if x + y >= _LEAST and sure >= _SURE:
            named[int(ratio < 1)].append((-sure, word, x, y, round(ratio, 3)))
    fields = ("word", "a", "b", "ratio")
    ahead, behind = (
        [dict(zip(fields, about, strict=True)) for _, *about in sorted(each)[:WORDS]]
        for each in named
    )
    return ahead, behind


@dataclass(frozen=True)
class Pair:
    """What two methods find of Q captions.

    Attributes:
        captions: Q.
        a: ranks by one method.
        b: ranks by the other.
        k: rank within which an image counts as found.
        above: (Q,) see `rank_captions`.
    """

    captions: Captions
    a: Ranks
    b: Ranks
    k: int
    above: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """The index in `CELLS` of each caption, (Q,)."""
        first, second = self.a.rank <= self.k, self.b.rank <= self.k
        return np.select([first & ~second, second & ~first, first & second], [0, 1, 2], 3)

    @property
    def suspects(self) -> np.ndarray:
        """Images (Q,) that are probably right but not labelled; -1 for none.

        If the truth is exact, the first image of A or B that is right but not labelled; otherwise
        `above`. Missing labels lower the recall of methods (ECCV Caption, Chun et al., ECCV 2022).
        """
        if not self.captions.exact:
            return self.above
        right = [(m.rank == 1) & (m.first != self.captions.labelled) for m in (self.a, self.b)]
        return np.select(right, [self.a.first, self.b.first], -1)

    def counts(self, places: np.ndarray) -> dict[str, int]:
        """The number of captions in each of `CELLS`, of those at `places` (n,)."""
        counted = np.bincount(self.cells[places], minlength=4)
        return dict(zip(CELLS, counted.tolist(), strict=True))

    def summary(self, places: np.ndarray | None = None) -> dict[str, Any]:
        """Counts the captions at `places` (n,), or all, with a test, kinds and words.

        Returns:
            `counts` of `CELLS`; `difference`, A's share of found captions minus B's in percent,
            with `low` and `high` of its 95 % interval, normal, over sums of images, because
            captions of one image are not independent (Liang and Zeger, Biometrika 1986); `p` of
            `sign_test`; `kinds`, each with `captions` and counts; `words_a`, `words_b`, `contrast`
            of what each finds alone.
        """
        captions = self.captions
        places = np.arange(len(captions.texts)) if places is None else places
        cells, kinds = self.cells[places], dict[str, list[int]]()
        for q in places.tolist():
            kinds.setdefault(captions.kind(q), []).append(q)
        gain, number, counts = (cells == 0) * 1.0 - (cells == 1), len(places), self.counts(places)
        mean = gain.sum() / max(1, number)
        _, group = np.unique(captions.labelled[places], return_inverse=True)
        error = math.sqrt(np.square(np.bincount(group, gain - mean)).sum()) / max(1, number)
        low, middle, high = (100 * float(mean + z * error) for z in (-1.96, 0, 1.96))
        ahead, behind = contrast(*(map(captions.words, places[cells == side]) for side in (0, 1)))
        of_kinds = [
            {"kind": kind, "captions": len(own), **self.counts(np.array(own))}
            for kind, own in kinds.items()
        ]
        about = {"counts": counts, "difference": middle, "low": low, "high": high}
        about |= {"p": sign_test(counts["a"], counts["b"]), "kinds": of_kinds}
        return about | {"words_a": ahead, "words_b": behind}

    def rows(self, places: Iterable[int]) -> list[dict[str, Any]]:
        """What is known of some captions: who finds them, ranks, and images by row."""
        captions, cells, numbers = self.captions, self.cells, {
            "rank_a": self.a.rank, "rank_b": self.b.rank, "image": self.captions.labelled,
            "first_a": self.a.first, "first_b": self.b.first, "suspect": self.suspects,
        }  # fmt: skip
        return [
            {"caption": int(q), "text": captions.texts[q], "kind": captions.kind(q)}
            | {"found": CELLS[cells[q]]}
            | {key: int(v[q]) if 0 <= v[q] < UNRANKED else None for key, v in numbers.items()}
            for q in places
        ]


def to_csv(table: Sequence[dict[str, Any]]) -> str:
    """Formats rows as CSV, with cells escaped that spreadsheets would execute."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(table[0]) if table else ["caption"])
    writer.writeheader()
    for row in table:
        text = f"'{row['text']}" if _FORMULA.match(row["text"]) else row["text"]
        writer.writerow(row | {"text": text})
    return out.getvalue()
