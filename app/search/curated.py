"""Queries where methods really differ, found over a pack's own captions.

`python -m app.search.curated` writes them.

For every caption of the gallery each method ranks all images, and the rank of the first image
that satisfies the caption is noted. An example is a caption for which one method ranks such an
image first and no other method does; the further behind the others, the better. Each method wins
somewhere, and the examples speak of different sides of images (the views of the captions). Captions
with an aspect that no method handles (`unsupported_aspects`) are left out: a win would be luck.
The same pack always gives the same examples.

They are written beside the pack's folder, within which pack.json lists every file:

    {"checksum": "...", "examples": [{"caption": "...", "view": "relation", "winner": "mvam",
      "ranks": {"mvam": 1, "pvse": 14}, "why": "Only MVAM ..."}]}
"""

import argparse
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from polyview.app.gallery.scan import Collection, from_pack
from polyview.app.search.mistakes import rank_all, text_views
from polyview.app.search.query import Term, parse
from polyview.app.search.questions import unsupported_aspects
from polyview.app.search.retriever import Retriever
from polyview.export.mistakes import Captions
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import OPEN, PackError, Text, check, read_json
from polyview.export.runtime import Runtime
from polyview.models.files import write_whole

COUNT = 8
LONGEST = 70  # characters of a caption

_log = logging.getLogger(__name__)


@dataclass(frozen=True, config=OPEN)
class Example:
    """A caption to compare methods with.

    Attributes:
        caption: one of the gallery's.
        view: the side of its image that it speaks of, where known.
        winner: the method that alone ranks a right image first.
        ranks: for each method, the rank of its first right image.
        why: the same in a sentence; empty where it may no longer hold.
    """

    caption: Text
    view: Text | None
    winner: Text
    ranks: dict[str, Annotated[int, Field(ge=1)]]
    why: str


@dataclass(frozen=True, config=OPEN)
class _Record:
    """What a file of examples holds, and of which pack: its checksum."""

    checksum: Text
    examples: Annotated[tuple[Example, ...], FailFast()]


def place(info: PackInfo) -> Path:
    """Where a pack's examples are: beside its folder."""
    return info.folder.parent / f"{info.folder.name}.examples.json"


def load(info: PackInfo, collection: Collection) -> list[Example]:
    """The examples of a pack; none where there is no file, or it cannot be read.

    Those whose caption is not in the collection are left out. Where the pack was changed after
    they were found, they are still captions to try, but what they said of the methods is not kept.
    """
    if not place(info).is_file():
        return []
    try:
        record = check(_Record, read_json(place(info)), place(info).name)
    except (PackError, OSError) as error:
        _log.warning("the examples are not used: %s", error)
        return []
    known = [example for example in record.examples if example.caption in collection.relevant]
    current = record.checksum == info.checksum
    return known if current else [replace(example, why="") for example in known]


def choose(
    captions: Sequence[str],
    views: Sequence[str | None],
    ranks: Mapping[str, np.ndarray],
    relevant: Sequence[Sequence[int]],
    count: int = COUNT,
) -> list[int]:
    """Which captions make the best examples.

    The methods take turns: each takes the caption that it alone answers best of all that are left,
    by how far behind the nearest other method is, then by how far behind all are. No view of
    captions is taken more often than its share while there are others, and no image twice.

    Args:
        captions: Q captions, all different.
        views: the view of each.
        ranks: for each method (Q,), the rank of the first right image.
        relevant: the right images of each caption.
        count: how many examples at most.

    Returns:
        Indices of captions, in the order in which the methods took turns.
    """
    left = {name: _best_of(name, captions, ranks) for name in ranks}
    share = -(-count // max(1, len(set(views))))
    used: Counter[str | None] = Counter()
    images: set[int] = set()
    chosen: list[int] = []
    while len(chosen) < count and any(left.values()):
        for name in ranks:
            free = [q for q in left[name] if not images.intersection(relevant[q])]
            fresh = [q for q in free if used[views[q]] < share] or free
            left[name] = free
            if not fresh or len(chosen) == count:
                continue
            chosen.append(fresh[0])
            used[views[fresh[0]]] += 1
            images.update(relevant[fresh[0]])
            left[name] = [q for q in free if q != fresh[0]]
    return chosen


def find(retriever: Retriever, count: int = COUNT) -> list[Example]:
    """The best examples of a pack; its images must be searchable."""
    captions, views, relevant = _candidates(retriever)
    truth = [np.array(right) for right in relevant]
    asked = Captions(captions, np.array([right[0] for right in relevant]), truth, views)
    files, texts = len(retriever.collection.images), text_views(retriever, captions)
    found, _ = rank_all(retriever.index.images, list(retriever.methods), texts, asked, files)
    ranks = {name: each.rank for name, each in found.items()}
    titles = {name: method.title for name, method in retriever.methods.items()}
    examples = []
    for q in choose(captions, views, ranks, relevant, count):
        reached = {name: int(row[q]) for name, row in ranks.items()}
        winner = min(reached, key=lambda name: reached[name])
        why = explain(winner, reached, titles)
        examples.append(Example(captions[q], views[q], winner, reached, why))
    return examples


def explain(winner: str, ranks: Mapping[str, int], titles: Mapping[str, str]) -> str:
    """Why a caption is an example, for people.

    >>> explain("a", {"a": 1, "b": 4, "c": 90}, {"a": "Alpha", "b": "Beta", "c": "Gamma"})
    'Only Alpha finds it first, others at 4 to 90.'
    """
    others = sorted(rank for name, rank in ranks.items() if name != winner)
    span = f"{others[0]} to {others[-1]}" if others[0] < others[-1] else str(others[0])
    rest = "others" if len(others) > 1 else "the other"
    return f"Only {titles[winner]} finds it first, {rest} at {span}."


def write(info: PackInfo, examples: Sequence[Example]) -> Path:
    """Writes a pack's examples, whole or not at all."""
    content = {"checksum": info.checksum, "examples": [asdict(example) for example in examples]}
    path = place(info)
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _best_of(name: str, captions: Sequence[str], ranks: Mapping[str, np.ndarray]) -> list[int]:
    """The captions that one method alone answers with a right image first, best example first."""
    others = np.stack([row for other, row in ranks.items() if other != name])  # (C - 1, Q)
    nearest, mean = others.min(axis=0), np.log(others).mean(axis=0)
    wins = [q for q in range(len(captions)) if ranks[name][q] == 1 and nearest[q] > 1]
    return sorted(wins, key=lambda q: (-nearest[q], -mean[q], captions[q]))


def _candidates(retriever: Retriever) -> tuple[list[str], list[str | None], list[list[int]]]:
    """Captions fit for an example, their views, and the images that satisfy them."""
    views: dict[str, str | None] = {}
    collection = retriever.collection
    for image in collection.images:
        for caption in image.truth.captions if image.truth else ():
            plain = parse(caption.text) == [Term(caption.text)]  # reads as one sentence
            fair = not unsupported_aspects(retriever.info, caption.text)
            if plain and fair and len(caption.text) <= LONGEST:
                views.setdefault(caption.text, caption.view)
    relevant = [sorted(collection.relevant[text]) for text in views]
    return list(views), list(views.values()), relevant


def main(argv: Sequence[str]) -> int:
    """Writes the examples of one pack."""
    parser = argparse.ArgumentParser(prog="python -m app.search.curated")
    parser.add_argument("--pack", type=Path, required=True, help="a pack's folder with a gallery")
    parser.add_argument("--count", type=int, default=COUNT, help="how many examples")
    options = parser.parse_args(argv)
    try:
        runtime = Runtime.load(options.pack, "cpu")
        if len(runtime.methods) < 2:
            raise ValueError(f"{options.pack} has one method; there is nothing to compare")
        with tempfile.TemporaryDirectory() as cache:
            retriever = Retriever(runtime, from_pack(options.pack), Path(cache))
            retriever.index.start()
            retriever.index.images_done.wait()
            retriever.index.stop()
            if retriever.index.refused:
                raise ValueError(retriever.index.refused[0].reason)
            examples = find(retriever, options.count)
            retriever.index.captions_done.wait()
        path = write(runtime.info, examples)
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    for example in examples:
        print(f"{example.caption}\n    {example.why}")
    print(f"{path}: {len(examples)} examples")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
