"""Ranks of all captions, beside brute force; on disk; for a file of queries."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import from_pack
from polyview.app.search import mistakes
from polyview.app.search.mistakes import Mistakes, Table
from polyview.app.search.query import Term
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED
from polyview.export.mistakes import Captions, summary
from polyview.export.runtime import Runtime
from polyview.models import Views, build
from tests.app.conftest import filled

PAIRS = [("pvse", "vse_infty"), ("avse", "mvam"), ("mv_vse+mvam", "vse_infty")]


def some(retriever: Retriever, step: int) -> Captions:
    """Every so-manieth caption."""
    own = mistakes.own_table(retriever).captions
    return Captions(own.texts[::step], own.labelled[::step], own.right[::step], own.kinds[::step])


def finished(service: Mistakes, retriever: Retriever, specs: list[str], queries: str = "") -> Table:
    """The table once everything is ranked."""
    while (table := service.read(retriever, specs, queries)) is None or table.running:
        time.sleep(0.05)
    assert not table.problem
    return table


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """The bundled scenes, whose captions are not read."""
    pack = BUNDLED / "scenes"
    runtime, cache = Runtime.load(pack, "cpu"), tmp_path_factory.mktemp("scenes")
    retriever = Retriever(runtime, from_pack(pack), cache)
    retriever.index.start()
    assert retriever.index.images_done.wait(60)
    retriever.index.stop()
    return retriever


def test_counts_on_scenes_are_those_of_brute_force(
    scenes: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = some(scenes, 10)
    texts = partial(scenes.runtime.text_views, captions.texts)
    matrices: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for name in {part for pair in PAIRS for spec in pair for part in spec.split("+")}:
            gallery = scenes.gallery(name)
            images, views = gallery.views(gallery.ids()), texts(name)
            matrices[name] = gallery.method.score(images, views).numpy()

    def total(spec: str) -> np.ndarray:
        return np.sum([matrices[name] for name in spec.split("+")], axis=0)

    def brute(spec: str) -> np.ndarray:
        scores = total(spec)
        orders = np.argsort(-scores, axis=0, kind="stable").T.tolist()
        pairs = zip(orders, captions.right, strict=True)
        return np.array([1 + min(map(order.index, right.tolist())) for order, right in pairs])

    monkeypatch.setattr(mistakes, "PART_BYTES", 2**18)  # several parts
    specs = list(dict.fromkeys(spec for pair in PAIRS for spec in pair))
    galleries, files = scenes.index.images, len(scenes.collection.images)
    ranks, above = mistakes.rank_all(galleries, specs, texts, captions, files)
    for a, b in PAIRS:
        for k in (1, 5, 10):
            first, second = brute(a), brute(b)
            both = ((first <= k) & (second <= k)).sum()
            alone = (first <= k).sum() - both, (second <= k).sum() - both
            counts = summary(captions, ranks[a], ranks[b], k)["counts"]
            expected = [*alone, both, len(first) - alone[0] - alone[1] - both]
            assert list(counts.values()) == expected, (a, b, k)
    for q in np.flatnonzero(above >= 0):
        own = captions.labelled[q]
        assert all(total(spec)[above[q], q] > total(spec)[own, q] for spec in specs)
    assert (above >= 0).any()


def test_ranks_are_those_that_compare_shows(scenes: Retriever) -> None:
    captions = some(scenes, 500)
    texts = partial(scenes.runtime.text_views, captions.texts)
    files = len(scenes.collection.images)
    for spec in ("avse", "pvse+mvam"):
        ranked, _ = mistakes.rank_all(scenes.index.images, [spec], texts, captions, files)
        for q, text in enumerate(captions.texts):
            scores = scenes.scores([Term(text)], spec).values
            order = np.argsort(-scores, kind="stable")
            assert ranked[spec].first[q] == order[0]
            assert ranked[spec].rank[q] == 1 + np.isin(order, captions.right[q]).argmax()


def test_a_clip_ranks_by_its_best_frame() -> None:
    gallery = Gallery("images", build("vsepp", 16, 16, {"embed_dim": 8}).eval())
    frames = torch.nn.functional.normalize(torch.randn(5, 1, 8), dim=2)
    gallery.add([0, 1, 2, 4, 5], frames)  # of three files, the last two again
    texts = Views(torch.randn(9, 1, 8))
    labelled = np.arange(9) % 3
    captions = Captions(["a dog"] * 9, labelled, list(labelled[:, None]), [None] * 9)
    ranked, _ = mistakes.rank_all({"x": gallery}, ["x"], lambda _: texts, captions, 3)
    scores = gallery.method.score(Views(frames), texts).numpy()
    best = np.stack([scores[0], scores[[1, 3]].max(axis=0), scores[[2, 4]].max(axis=0)])
    assert ranked["x"].first.tolist() == best.argmax(axis=0).tolist()
    assert ranked["x"].rank.tolist() == (best >= best[labelled, np.arange(9)]).sum(axis=0).tolist()


def test_ranks_are_kept_on_disk(views_pack: Path, tmp_path: Path) -> None:
    retriever = filled(Runtime.load(views_pack, "cpu"), views_pack, tmp_path)
    first = finished(Mistakes(), retriever, ["vse_infty+mv_vse"])
    assert set(first.ranks) == {"vse_infty", "mv_vse", "vse_infty+mv_vse"}
    (file,) = tmp_path.rglob("mistakes/*.npz")
    written = file.stat().st_mtime_ns
    again = finished(Mistakes(), retriever, [])
    assert file.stat().st_mtime_ns == written
    assert all(np.array_equal(again.ranks[name], first.ranks[name]) for name in first.ranks)
    assert np.array_equal(again.above, first.above)
    file.write_bytes(b"damaged")
    damaged = finished(Mistakes(), retriever, [])
    assert np.array_equal(damaged.ranks["mv_vse"], first.ranks["mv_vse"])
    assert len(file.read_bytes()) > 100


def test_a_file_of_queries(views_retriever: Retriever) -> None:
    service, file = Mistakes(), views_retriever.collection.images[3].file
    content = f'query,image,kind\n"a bar, red",{file},shape\n"a bar, red",5,shape\na circle,2,shape'
    key = service.add_queries(views_retriever, content.encode())
    table = finished(service, views_retriever, [], key)
    captions = table.captions
    assert list(captions.texts) == ["a bar, red", "a circle"]
    assert [rows.tolist() for rows in captions.right] == [[3, 5], [2]]
    assert captions.labelled.tolist() == [3, 2]
    assert captions.kinds == ("shape", "shape")
    scores = views_retriever.scores([Term("a circle")], "mv_vse").values
    assert table.ranks["mv_vse"].rank[1] == 1 + (scores > scores[2]).sum()
    for number in range(5):
        service.add_queries(views_retriever, f"a dog,{number}".encode())
    assert service.read(views_retriever, [], key) is None
    for wrong, sentence in (
        (b"", "0 queries"),
        (b"a dog,nowhere.png", "line 1 must name a query and an image"),
        (b"a dog,1\n,2", "line 2"),
        (b"\xff\xfe", "line 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            service.add_queries(views_retriever, wrong)
