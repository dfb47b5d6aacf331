"""Writes a pack's curated examples: captions on which its methods differ.

    python -m tests.app.api.curated app/bundled/scenes

An example is a caption for which only one method ranks a right image first; the lower the ranks of
the others, the better. Methods take turns, the views of captions have equal shares if possible, and
no image is used twice. Captions with an aspect that no method handles are left out.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from polyview.app.api.examples import Example, curated_file
from polyview.app.api.mistakes import captions_of, read_ranks
from polyview.app.api.search import parse, unsupported_aspects
from polyview.app.gallery.scan import from_pack
from polyview.app.search.retriever import Retriever, Term
from polyview.export.runtime import Runtime
from polyview.models.files import write_whole
from tests.app.serving import until

COUNT, LONGEST = 8, 70  # examples; characters of a caption, at most


def find(retriever: Retriever) -> list[Example]:
    """The best examples of a pack, whose images are searchable."""
    fair = {
        caption.text: caption
        for caption in captions_of(retriever)
        if parse(caption.text) == [Term(caption.text)]
        and not unsupported_aspects(retriever.info, caption.text)
        and len(caption.text) <= LONGEST
    }
    results = until(lambda: read_ranks(retriever, [*fair.values()], (), "curated").result, 3600)
    views = {text: caption.kind or None for text, caption in fair.items()}
    relevant = {text: caption.right for text, caption in fair.items()}
    ranks = {
        text: {name: int(results[name][0][q]) for name in retriever.methods}
        for q, text in enumerate(fair)
    }
    left: dict[str, list[str]] = {}
    for name in retriever.methods:
        behind = {t: [r for n, r in own.items() if n != name] for t, own in ranks.items()}
        wins = [t for t, own in ranks.items() if own[name] == 1 and min(behind[t]) > 1]
        left[name] = sorted(wins, key=lambda t: (-min(behind[t]), -np.log(behind[t]).mean(), t))
    share, used, images = -(-COUNT // len({*views.values()})), Counter[str | None](), set[int]()
    chosen: list[Example] = []
    while len(chosen) < COUNT and any(left.values()):
        for name, captions in left.items():
            left[name] = free = [t for t in captions if not images.intersection(relevant[t])]
            if free and len(chosen) < COUNT:
                text = next((t for t in free if used[views[t]] < share), free[0])
                used[views[text]] += 1
                images.update(relevant[text])
                others = sorted(rank for n, rank in ranks[text].items() if n != name)
                span = f"{others[0]} to {others[-1]}" if len({*others}) > 1 else str(others[0])
                who = "others" if others[1:] else "the other"
                why = f"Only {retriever.methods[name].title} finds it first, {who} at {span}."
                about = {"caption": text, "view": views[text], "winner": name, "why": why}
                chosen.append(Example.model_validate({**about, "ranks": ranks[text]}))
    return chosen


def main(pack: Path) -> None:
    """Writes the examples of the pack in a folder."""
    with tempfile.TemporaryDirectory() as cache:
        retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), Path(cache))
        retriever.index.start()
        retriever.index.wait()
        examples = [dict(example) for example in find(retriever)]
    content = {"checksum": retriever.info.checksum, "examples": examples}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_whole(curated_file(retriever.info), text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
