"""Example queries: captions that suit the pack, and curated examples with their ranks.

After a change of the bundled pack, this command chooses and writes new curated examples:

    python -m tests.app.api.test_examples app/bundled/scenes
"""

import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyview.app.api.examples import (
    Example,
    ExampleFile,
    choose_sentences,
    choose_terms,
    example_file,
    load_examples,
)
from polyview.app.api.mistakes import load_captions, rank_in_background
from polyview.app.api.search import parse, unsupported_aspects
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.search.comparison import compare
from polyview.app.search.retriever import Retriever, Term
from polyview.export.runtime import Runtime
from polyview.models.files import atomic_write
from tests.app.conftest import bundled_runtime, draw
from tests.app.serving import until
from tests.export.conftest import edited

COUNT = 8  # curated examples
LONGEST = 70  # characters of the caption of an example


def choose_examples(retriever: Retriever) -> list[Example]:
    """Returns captions for which only one method ranks a right image first.

    Methods take turns: each adds the caption that the other methods rank worst, by the best of
    their ranks. The aspects that captions describe have equal shares if possible, and no two
    examples share an image. Captions that mention an object whose name has several words, such as
    "fire engine", are left out: their evidence is that of a part of the name.
    """
    truths = [image.truth for image in retriever.collection.images if image.truth]
    compound = {
        caption.text
        for truth in truths
        for caption in truth.captions
        if any(" " in truth.objects[i].name for i in caption.mentions)
    }
    unique = {caption.text: caption for caption in load_captions(retriever)}
    captions = [
        caption
        for text, caption in unique.items()
        if parse(text) == [Term(text)] and not unsupported_aspects(retriever.info, text)
        if len(text) <= LONGEST and text not in compound
    ]
    results = until(lambda: rank_in_background(retriever, captions, (), "curated").result, 3600)
    names = [*retriever.methods]
    ranks = np.stack([results[name][0] for name in names])  # (methods, captions)
    won = dict[str, list[int]]()  # captions that only this method ranks first, best first
    for method, name in enumerate(names):
        others = np.delete(ranks, method, axis=0)
        best, mean = others.min(axis=0), np.log(others).mean(axis=0)
        wins = np.flatnonzero((ranks[method] == 1) & (best > 1)).tolist()
        won[name] = sorted(wins, key=lambda q: (-best[q], -mean[q], captions[q].text))
    share = -(-COUNT // len({caption.kind for caption in captions}))
    used, images, chosen = Counter[str](), set[int](), list[Example]()
    while len(chosen) < COUNT and any(won.values()):
        for method, name in enumerate(names):
            won[name] = [q for q in won[name] if not images & {*captions[q].right}]
            if not won[name] or len(chosen) == COUNT:
                continue
            balanced = [q for q in won[name] if used[captions[q].kind] < share]
            q = (balanced or won[name])[0]
            text, right, kind = captions[q]
            used[kind] += 1
            images |= {*right}
            own = dict(zip(names, ranks[:, q].tolist(), strict=True))
            behind = sorted(np.delete(ranks[:, q], method).tolist())
            span = f"{behind[0]} to {behind[-1]}" if behind[0] < behind[-1] else str(behind[0])
            who = "others" if len(behind) > 1 else "the other"
            why = f"Only {retriever.methods[name].title} finds it first, {who} at {span}."
            chosen.append(Example(caption=text, view=kind or None, winner=name, ranks=own, why=why))
    return chosen


def test_sentences_are_short_captions_of_the_collection(retriever: Retriever) -> None:
    chosen = choose_sentences(retriever, 5)
    assert len(set(chosen)) == 5
    assert set(chosen) <= {text for text, _ in retriever.collection.captions}
    assert max(map(len, chosen)) <= 40


def test_sentences_for_folders_without_captions(tmp_path: Path, runtime: Runtime) -> None:
    draw(1)[0].save(tmp_path / "a.png")
    folder = from_folder(tmp_path)
    for own, fewest in ((bundled_runtime("photos"), 5), (runtime, 0)):
        opened = Retriever(own, folder, tmp_path / "cache")
        chosen = choose_sentences(opened, 5)
        assert len(chosen) >= fewest
        assert not opened.unknown_words(*chosen)
        assert (choose_terms(opened) != "") == (fewest == 5)


def test_an_example_of_several_terms(many_retriever: Retriever) -> None:
    terms = parse(choose_terms(many_retriever))
    objects = {name for image in many_retriever.collection.images for name in image.objects}
    assert [term.weight for term in terms] == [2, 1, -1]
    assert len({term.words for term in terms}) == 3
    assert {term.words for term in terms} <= objects


def test_ranks_of_the_bundled_examples(scenes: Retriever) -> None:
    home, examples = scenes, load_examples(scenes.info, scenes.collection)
    assert len({example.winner for example in examples}) == len(home.methods)
    for example in examples:
        assert not unsupported_aspects(home.info, example.caption)
        results = compare(home, {}, parse(example.caption), list(home.methods), 3)
        reached = {column.method: column.best_true_rank for column in results.columns}
        assert reached == example.ranks
        assert [name for name, best in reached.items() if best == 1] == [example.winner]
        assert example.why.startswith(f"Only {home.methods[example.winner].title} finds it first")


def test_outdated_examples(retriever: Retriever, tmp_path: Path) -> None:
    info = replace(retriever.info, folder=tmp_path / "pack")
    caption = retriever.collection.captions[0][0]
    ranks = {"vsepp": 1, "vse_infty": 4}
    known = Example(caption=caption, view=None, winner="vsepp", ranks=ranks, why="Only VSE++ ...")
    path = example_file(info)
    assert load_examples(info, retriever.collection) == []
    path.write_text("{}")
    with edited(path) as content:
        content["checksum"] = info.checksum
        content["examples"] = [dict(known), {**dict(known), "caption": "not here"}]
    assert load_examples(info, retriever.collection) == [known]
    path.write_text(path.read_text().replace(info.checksum, "0" * 64))
    assert load_examples(info, retriever.collection) == [known.model_copy(update={"why": ""})]
    path.write_text("{")
    assert load_examples(info, retriever.collection) == []


if __name__ == "__main__":
    pack = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as cache:
        retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), Path(cache))
        retriever.index.start()
        retriever.index.wait()
        content = ExampleFile(checksum=retriever.info.checksum, examples=choose_examples(retriever))
    atomic_write(example_file(retriever.info), content.model_dump_json(indent=1) + "\n")
