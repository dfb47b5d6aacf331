"""Questions about a split with known answers.

With an answer:

    caption    a caption of the split; every image known to satisfy it counts
    thing      one thing: an object's name or, of photographs, a word of their captions
    pair       two of them
    inserted   a caption with one more word of random letters

Without one:

    gibberish  one to three words of random letters
    unknown    a word of random letters, and a thing
    random     three to seven random words of the vocabulary
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import NamedTuple

import numpy as np

from polyview.export.pack.calibration import unknown_share
from polyview.export.runtime import Runtime
from polyview.training.data.split import Split
from polyview.training.scenes.captions import with_article

_PAIRS, _MADE_UP = 600, 300  # questions of each such kind
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
_MIN, _SHARE = 3, 7  # a word's images: at least 3, and at most a seventh of all


class Questions(NamedTuple):
    """Q questions with known answers about N images.

    Attributes:
        texts: (Q,) str.
        kinds: (Q,) see the module's description.
        relevant: (N, Q) bool, which image satisfies which.
        whole: (Q,) bool, whether `relevant` is complete; if only the image that a caption was
            written for is known, other images may be right as well.
        words: (Q,) numbers of words.
        unknown: (Q,) the share of them that the pack lacks.
    """

    texts: np.ndarray
    kinds: np.ndarray
    relevant: np.ndarray
    whole: np.ndarray
    words: np.ndarray
    unknown: np.ndarray

    def select(self, rows: np.ndarray | slice, columns: np.ndarray) -> Questions:
        """Selects questions (columns) and images (rows)."""
        chosen = Questions(*(values[..., columns] for values in self))
        return chosen._replace(relevant=chosen.relevant[rows])


def make_questions(data: Split, runtime: Runtime, seed: int) -> Questions:
    """Draws the questions about a split."""
    random = np.random.default_rng(seed)
    own = [np.array([row]) for row in data.image_of]
    truth = list(data.relevant()) if data.relevant is not None else own
    made = list(zip(data.captions, ["caption"] * len(truth), truth, strict=True))
    none, things = np.array([], np.int64), _things(data)
    names = sorted(things)
    made += [(_called(name, random), "thing", things[name]) for name in names]
    for _ in range(_PAIRS):
        first, second = random.choice(names, 2, replace=False)
        both = np.intersect1d(things[first], things[second])
        made.append((f"{_called(first, random)} and {_called(second, random)}", "pair", both))
    vocabulary = runtime.reader.words()
    for _ in range(_MADE_UP):
        row = int(random.integers(len(truth)))
        words = data.captions[row].split()
        words.insert(int(random.integers(len(words) + 1)), _nonsense(random))
        made.append((" ".join(words), "inserted", truth[row]))
        letters = " ".join(_nonsense(random) for _ in range(random.integers(1, 4)))
        made.append((letters, "gibberish", none))
        real = _called(str(random.choice(names)), random)
        made.append((f"{with_article(_nonsense(random))} and {real}", "unknown", none))
        some = random.choice(vocabulary, random.integers(3, 8))
        made.append((" ".join(some), "random", none))
    texts, kinds, rows = zip(*made, strict=True)
    relevant = np.zeros((int(data.image_of.max()) + 1, len(made)), np.bool_)
    for column, images in enumerate(rows):
        relevant[images, column] = True
    whole = (data.relevant is not None) | ~np.isin(kinds, ["caption", "inserted"])
    tokens = [runtime.tokenize(text) for text in texts]
    counts = np.array([len(each.words) for each in tokens])
    lacking = np.array([unknown_share(each.words, each.unknown) for each in tokens])
    return Questions(np.array(texts), np.array(kinds), relevant, whole, counts, lacking)


def _things(data: Split) -> dict[str, np.ndarray]:
    """The things of a split, and the rows of the images that show each."""
    images: dict[str, set[int]] = defaultdict(set)
    if named := data.objects and data.objects.names:
        for row, objects in enumerate(named):
            for name in chain.from_iterable(objects):
                images[name].add(row)
    else:
        for row, caption in zip(data.image_of.tolist(), data.captions, strict=True):
            for word in filter(str.isalpha, caption.lower().split()):
                images[word].add(row)
        most = (int(data.image_of.max()) + 1) // _SHARE  # words of more are "a", "in", "man"
        images = {word: rows for word, rows in images.items() if _MIN <= len(rows) <= most}
    return {name: np.array(sorted(rows)) for name, rows in images.items()}


def _called(name: str, random: np.random.Generator) -> str:
    return with_article(name) if random.random() < 0.5 else name


def _nonsense(random: np.random.Generator) -> str:
    return "".join(random.choice(_LETTERS, random.integers(4, 10)))
