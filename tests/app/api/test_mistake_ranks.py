"""Ranks of all captions: compared with brute force, on disk, and for a file of queries."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.app.access import client_name
from polyview.app.api.mistakes import add_queries, file_scores, load_captions, rank_in_background
from polyview.app.gallery.index import Gallery
from polyview.app.refusal import Refusal
from polyview.app.search.computations import Computation, Computations
from polyview.app.search.retriever import Retriever, Term
from polyview.export import mistakes as ranking
from polyview.export.mistakes import Caption
from polyview.export.runtime import Runtime
from polyview.models import Views, build
from tests.app.conftest import filled
from tests.app.serving import until


def finished(
    retriever: Retriever, captions: list[Caption], specs: list[str], queries: str = ""
) -> dict[str, np.ndarray]:
    """Waits for the ranks of all captions, by method."""
    return dict(until(lambda: rank_in_background(retriever, captions, specs, queries).result))


def test_ranks_by_brute_force(many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "BATCH_BYTES", 2**10)  # several parts
    retriever, matrices = many_retriever, dict[str, np.ndarray]()
    captions = load_captions(retriever)
    with torch.inference_mode():
        for name in retriever.methods:
            gallery = retriever.index.images[name]
            views = retriever.runtime.text_views([caption.text for caption in captions], name)
            matrices[name] = gallery.method.score(gallery.views(gallery.ids()), views).numpy()
    ranks = finished(retriever, captions, ["mv_vse+mvam"], "some")
    for spec in (*retriever.methods, "mv_vse+mvam"):
        scores = np.sum([matrices[name] for name in spec.split("+")], axis=0)
        orders = np.argsort(-scores, axis=0, kind="stable").T.tolist()
        pairs = zip(orders, captions, strict=True)
        expected = [1 + min(map(order.index, caption.right)) for order, caption in pairs]
        assert ranks[spec][0].tolist() == expected, spec
    labels = [caption.right[0] for caption in captions]
    higher = [scores > scores[labels, range(len(labels))] for scores in matrices.values()]
    above = ranks[retriever.methods.best][2]  # an image that all methods rank above the labelled
    assert np.array_equal(above >= 0, np.all(higher, axis=0).any(axis=0))
    for q in range(0, len(captions), 10):  # as in a comparison
        scores = retriever.scores([Term(captions[q].text)], "mv_vse+mvam").values
        order, (rank, first, _) = np.argsort(-scores, kind="stable"), ranks["mv_vse+mvam"]
        assert first[q] == order[0]
        assert rank[q] == 1 + np.isin(order, captions[q].right).argmax()


def test_a_clip_ranks_by_its_best_frame() -> None:
    gallery = Gallery("images", build("vsepp", 16, 16, {"embed_dim": 8}).eval())
    frames = torch.nn.functional.normalize(torch.randn(5, 1, 8), dim=2)
    gallery.add([0, 1, 2, 4, 5], frames)  # of four files: files 0 and 1 twice, not file 3
    texts = Views(torch.randn(9, 1, 8))
    scores = gallery.method.score(Views(frames), texts).numpy()
    best = [scores[[0, 3]].max(axis=0), scores[[1, 4]].max(axis=0), scores[2], [-1e9] * 9]
    assert file_scores(gallery, texts, 4) == pytest.approx(np.stack(best).T)


def test_ranks_are_stored(many_pack: Path, tmp_path: Path) -> None:
    runtime, spec = Runtime.load(many_pack, "cpu"), "vse_infty+mv_vse"
    retriever = filled(runtime, many_pack, tmp_path)
    captions = load_captions(retriever)
    first = finished(retriever, captions, [spec])
    assert set(first) == {*runtime.methods, spec}
    (file,) = tmp_path.rglob("gallery.sqlite")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE vectors SET data = zeroblob(length(data)) WHERE key = 'mv_vse'")
    again = finished(filled(runtime, many_pack, tmp_path), captions, [spec])
    assert not again["mv_vse"].any()  # read from the file
    assert np.array_equal(again[spec], first[spec])
    others = [caption._replace(kind="x") for caption in captions]
    changed = finished(filled(runtime, many_pack, tmp_path), others, [])
    assert np.array_equal(changed["mv_vse"], first["mv_vse"])


def test_each_client_has_one_unfinished_computation(many_retriever: Retriever) -> None:
    computations, go_on = Computations(many_retriever.index), threading.Event()

    def compute(client: str, key: str) -> Computation:
        token = client_name.set(client)
        try:
            return computations.compute(key, lambda _: go_on.wait(60), "it failed")
        finally:
            client_name.reset(token)

    try:
        first = [compute(f"client {i}", f"key {i}") for i in range(32)]
        assert compute("client 0", "key 0") is first[0]
        for client in ("client 0", "client 32"):  # its own limit, and that of all clients
            assert compute(client, "another key").progress == "waits for other computations"
        assert len(computations) == 32
    finally:
        go_on.set()
    until(lambda: all(computation.result for computation in first))
    until(lambda: compute("client 0", "another key").result)


def test_a_key_is_computed_once_and_few_computations_are_stored(many_retriever: Retriever) -> None:
    computations, calls = Computations(many_retriever.index), list[int]()

    def work(_: Computation) -> int:
        calls.append(1)
        return len(calls)

    with ThreadPoolExecutor(8) as pool:
        states = [*pool.map(lambda _: computations.compute("key", work, "it failed"), range(8))]
    assert all(state is states[0] for state in states)
    until(lambda: states[0].result)
    assert calls == [1]
    for key in range(500):
        computations.store(key, Computation(key))
    with ThreadPoolExecutor(1) as pool, computations._lock:  # other threads wait
        assert not wait([pool.submit(computations.store, "key", Computation(1))], 0.2).done
    assert len(computations) == 32


def test_a_file_of_queries(many_retriever: Retriever) -> None:
    file = many_retriever.collection.images[3].file
    content = f'query,image,kind\n"a bar, red",{file},shape\n"a bar, red",5,shape\na circle,2,shape'
    key = add_queries(many_retriever, content.encode()).queries
    captions = load_captions(many_retriever, key)
    assert captions == [("a bar, red", (3, 5), "shape"), ("a circle", (2,), "shape")]
    rank, *_ = finished(many_retriever, captions, [], key)["mv_vse"]
    scores = many_retriever.scores([Term("a circle")], "mv_vse").values
    assert rank[1] == 1 + (scores > scores[2]).sum()
    for number in range(40):
        add_queries(many_retriever, f"a dog,{number % 24}{' ' * number}".encode())
    with pytest.raises(Refusal, match="no longer stored"):
        load_captions(many_retriever, key)
    key = add_queries(many_retriever, b"a dog,1\na dog,2\n" * 50_000).queries  # in linear time
    assert load_captions(many_retriever, key) == [("a dog", (1, 2), "")]
    for wrong, sentence in (
        (b"", "0 queries"),
        (b"a dog,nowhere.png", "line 1 must name a query and an image"),
        (b"a dog,1\n,2", "line 2"),
        (b"\xff\xfe", "line 1"),
        (b"a" * 200_000, "not valid CSV"),
        (b"".join(b"%d,1\n" % number for number in range(5001)), "more than 5,000 queries"),
    ):
        with pytest.raises(ValueError, match=sentence):
            add_queries(many_retriever, wrong)
