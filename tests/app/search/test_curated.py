"""Queries where methods differ: how they are chosen, and that what is said of them is so."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyview.app.packs.columns import Columns
from polyview.app.search import curated
from polyview.app.search.curated import Example
from polyview.app.search.query import parse
from polyview.app.search.retriever import Retriever
from polyview.export.runtime import Runtime
from tests.app.conftest import HOSTILE, IMAGES, filled, find
from tests.app.many import write_described
from tests.export.editing import edited


def test_every_method_gets_its_example_and_every_view_its_share() -> None:
    ranks = {
        "a": np.array([1, 1, 1, 9, 9, 1, 1]),
        "b": np.array([30, 20, 2, 1, 9, 1, 9]),
        "c": np.array([40, 90, 9, 9, 1, 1, 8]),
    }
    views = ["x", "x", "x", "x", "y", "y", "y"]
    relevant: list[list[int]] = [[0], [1], [2], [3], [4], [5], [0]]
    captions = [f"caption {q}" for q in range(7)]
    chosen = curated.choose(captions, views, ranks, relevant, 4)
    # The nearest other decides, so a takes 0 before 1; nobody takes 5, where all are right.
    # In the second round a would take 1, but view x has had its share, and 6 shows picture 0 again.
    assert chosen == [0, 3, 4, 1]
    assert curated.choose(captions, views, ranks, relevant, 2) == [0, 3]


def write_answered(tiny_pack: Path, folder: Path, retriever: Retriever) -> Path:
    """A copy of the tiny pack whose captions are true of what one method finds first.

    Which pictures random weights find is anybody's guess, so the truth follows the weights: where
    the methods disagree about the first picture, the caption is given to the picture that the one
    or the other finds, in turn; where they agree, to the picture after it.
    """
    shutil.copytree(tiny_pack, folder)
    methods = list(retriever.methods)
    captions: list[list[dict[str, Any]]] = [[] for _ in range(IMAGES)]
    turns = itertools.cycle(methods)
    for text in dict.fromkeys(text for text, _ in retriever.collection.captions if text != HOSTILE):
        first = {name: find(retriever, text, name, 1)[0].image_id for name in methods}
        agreed = len(set(first.values())) == 1
        image_id = (first[methods[0]] + 1) % IMAGES if agreed else first[next(turns)]
        captions[image_id].append({"text": text})
    with edited(folder / "gallery/gallery.json") as content:
        content["images"] = [
            image | {"captions": own}
            for image, own in zip(content["images"], captions, strict=True)
        ]
    return write_described(replace(retriever.info, folder=folder))


def test_a_packs_examples_are_true(tiny_pack: Path, retriever: Retriever, tmp_path: Path) -> None:
    pack = write_answered(tiny_pack, tmp_path / "pack", retriever)
    assert curated.main(["--pack", str(pack), "--count", "6"]) == 0
    first = (tmp_path / "pack.examples.json").read_bytes()
    assert curated.main(["--pack", str(pack), "--count", "6"]) == 0
    assert (tmp_path / "pack.examples.json").read_bytes() == first
    home = filled(Runtime.load(pack, "cpu"), pack, tmp_path / "cache")
    columns = Columns(home)
    examples = curated.load(home.info, home.collection)
    assert examples
    for example in examples:
        found = columns.ask(parse(example.caption), list(home.methods), 3)
        reached = {column.key: column.best_true_rank for column in found.columns}
        assert reached == example.ranks
        assert [key for key, best in reached.items() if best == 1] == [example.winner]


def test_examples_that_no_longer_hold_are_left_out(
    retriever: Retriever, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = replace(retriever.info, folder=tmp_path / "pack")
    caption = retriever.collection.captions[0][0]
    known = Example(caption, None, "vsepp", {"vsepp": 1, "vse_infty": 4}, "Only VSE++ ...")
    path = curated.write(info, [known, replace(known, caption="not in the gallery")])
    assert curated.load(info, retriever.collection) == [known]
    path.write_text(path.read_text().replace(info.checksum, "0" * 64))
    assert curated.load(info, retriever.collection) == [replace(known, why="")]
    path.write_text("{")
    assert curated.load(info, retriever.collection) == []
    path.unlink()
    assert curated.load(info, retriever.collection) == []
    assert curated.main(["--pack", str(tmp_path / "nothing")]) == 1
    assert "there is no pack folder" in capsys.readouterr().err
