"""Queries ("questions") about the images of a split, with known relevant images ("answers").

Kinds with an answer:
    caption    a caption of the split
    thing      the name of an object or, for photographs, a word of the captions
    pair       two things
    inserted   a caption with an additional word of random letters

Kinds without an answer:
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

_PAIR_COUNT, _RANDOM_COUNT = 600, 300  # numbers of pairs, and of each kind with random words
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
_MIN_IMAGES, _RARITY = 3, 7  # a word is a thing if 3 images or more have it, and at most 1 in 7


class Questions(NamedTuple):
    """Q questions with known answers about N images."""

    texts: np.ndarray  # (Q,) str
    kinds: np.ndarray  # (Q,) str, see the module's docstring
    relevant: np.ndarray  # (N, Q) bool, whether an image satisfies a question
    is_complete: np.ndarray  # (Q,) bool, False if only one relevant image is known
    word_counts: np.ndarray  # (Q,) number of words
    unknown_shares: np.ndarray  # (Q,) `unknown_share` of the words, in 0..1

    def select(self, rows: np.ndarray | slice, columns: np.ndarray) -> Questions:
        """Selects questions (columns) and images (rows)."""
        selection = Questions(*(values[..., columns] for values in self))
        return selection._replace(relevant=selection.relevant[rows])


def make_questions(data: Split, runtime: Runtime, seed: int) -> Questions:
    """Makes questions of all kinds about a split; "random" uses the pack's vocabulary."""
    random = np.random.default_rng(seed)
    truth = list(data.relevant()) if data.relevant is not None else list(data.image_of[:, None])
    questions = list(zip(data.captions, ["caption"] * len(truth), truth, strict=True))
    no_images, rows_by_name = np.array([], np.int64), _images_by_thing(data)
    names = sorted(rows_by_name)
    questions += [(_name_phrase(name, random), "thing", rows_by_name[name]) for name in names]
    for _ in range(_PAIR_COUNT):
        first, second = random.choice(names, 2, replace=False)
        text = f"{_name_phrase(first, random)} and {_name_phrase(second, random)}"
        questions.append((text, "pair", np.intersect1d(rows_by_name[first], rows_by_name[second])))
    vocabulary = sorted(runtime.reader.words)
    for _ in range(_RANDOM_COUNT):
        row = int(random.integers(len(truth)))
        words = data.captions[row].split()
        words.insert(int(random.integers(len(words) + 1)), _gibberish(random))
        questions.append((" ".join(words), "inserted", truth[row]))
        gibberish = " ".join(_gibberish(random) for _ in range(random.integers(1, 4)))
        questions.append((gibberish, "gibberish", no_images))
        phrase = _name_phrase(str(random.choice(names)), random)
        questions.append((f"{with_article(_gibberish(random))} and {phrase}", "unknown", no_images))
        drawn_words = random.choice(vocabulary, random.integers(3, 8)).tolist()
        questions.append((" ".join(drawn_words), "random", no_images))
    texts, kinds, rows = zip(*questions, strict=True)
    relevant = np.zeros((int(data.image_of.max()) + 1, len(questions)), np.bool_)
    for column, images in enumerate(rows):
        relevant[images, column] = True
    is_complete = (data.relevant is not None) | ~np.isin(kinds, ["caption", "inserted"])
    tokens = [runtime.reader.read(text) for text in texts]
    counts = np.array([len(text.words) for text in tokens])
    unknown = np.array([unknown_share(text.words, text.unknown) for text in tokens])
    return Questions(np.array(texts), np.array(kinds), relevant, is_complete, counts, unknown)


def _images_by_thing(data: Split) -> dict[str, np.ndarray]:
    """Maps each thing of a split to the sorted rows of the images that show it."""
    images: dict[str, set[int]] = defaultdict(set)
    if data.objects and data.objects.names:
        for row, objects in enumerate(data.objects.names):
            for name in chain.from_iterable(objects):  # all names of each object
                images[name].add(row)
    else:
        for row, caption in zip(data.image_of.tolist(), data.captions, strict=True):
            for word in filter(str.isalpha, caption.lower().split()):
                images[word].add(row)
        limit = (int(data.image_of.max()) + 1) // _RARITY  # excludes words such as "a" and "man"
        images = {word: rows for word, rows in images.items() if _MIN_IMAGES <= len(rows) <= limit}
    return {name: np.array(sorted(rows)) for name, rows in images.items()}


def _name_phrase(name: str, random: np.random.Generator) -> str:
    """Returns the name, with an article in half of the calls."""
    return with_article(name) if random.random() < 0.5 else name


def _gibberish(random: np.random.Generator) -> str:
    """Returns a word of four to nine random letters."""
    return "".join(random.choice(_LETTERS, random.integers(4, 10)))
