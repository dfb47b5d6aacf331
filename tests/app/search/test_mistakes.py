"""Ranks of all captions, beside brute force; on disk; for a file of queries."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.app.gallery.index import Gallery
from polyview.app.search.background import Reading
from polyview.app.search.mistakes import Mistakes, own_captions, rank_all
from polyview.app.search.query import Term
from polyview.app.search.retriever import Retriever
from polyview.export import mistakes as ranking
from polyview.export.mistakes import Captions, Pair, Ranks
from polyview.export.runtime import Runtime
from polyview.models import Views, build
from tests.app.conftest import filled

PAIRS = [("pvse", "vse_infty"), ("avse", "mvam"), ("mv_vse+mvam", "vse_infty")]


def some(retriever: Retriever, step: int) -> Captions:
    """Every k-th caption."""
    own = own_captions(retriever)
    return Captions(own.texts[::step], own.labelled[::step], own.right[::step], own.kinds[::step])


def finished(
    service: Mistakes, retriever: Retriever, specs: list[str], queries: str = ""
) -> tuple[dict[str, Ranks], np.ndarray]:
    """All ranks, and the images above the labelled ones."""
    captions = service.captions(retriever, queries)
    assert captions is not None
    while not (reading := service.ranks(retriever, captions, specs, queries)).result:
        assert not reading.problem
        time.sleep(0.05)
    return reading.result


def test_counts_on_scenes_are_those_of_brute_force(
    scenes: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "PART_BYTES", 2**18)  # several parts
    captions = some(scenes, 10)
    matrices: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for name in scenes.methods:
            gallery = scenes.gallery(name)
            images = gallery.views(gallery.ids())
            views = scenes.runtime.text_views(captions.texts, name)
            matrices[name] = gallery.method.score(images, views).numpy()

    def brute(spec: str) -> np.ndarray:
        scores = np.sum([matrices[name] for name in spec.split("+")], axis=0)
        orders = np.argsort(-scores, axis=0, kind="stable").T.tolist()
        pairs = zip(orders, captions.right, strict=True)
        return np.array([1 + min(map(order.index, right.tolist())) for order, right in pairs])

    service = Mistakes()
    service.readings(scenes)["some"] = Reading(captions)
    ranks, above = finished(service, scenes, ["mv_vse+mvam"], "some")
    for a, b in PAIRS:
        for k in (1, 5, 10):
            first, second = brute(a), brute(b)
            both = ((first <= k) & (second <= k)).sum()
            alone = (first <= k).sum() - both, (second <= k).sum() - both
            counts = Pair(captions, ranks[a], ranks[b], k, above).summary()["counts"]
            expected = [*alone, both, len(first) - alone[0] - alone[1] - both]
            assert list(counts.values()) == expected, (a, b, k)
    for q in np.flatnonzero(above >= 0).tolist():
        own = captions.labelled[q]
        assert all(scores[above[q], q] > scores[own, q] for scores in matrices.values())
    assert (above >= 0).any()
    for q in range(0, len(captions.texts), 50):  # as Compare shows them
        scores = scenes.scores([Term(captions.texts[q])], "mv_vse+mvam").values
        order = np.argsort(-scores, kind="stable")
        assert ranks["mv_vse+mvam"].first[q] == order[0]
        assert ranks["mv_vse+mvam"].rank[q] == 1 + np.isin(order, captions.right[q]).argmax()


def test_a_clip_ranks_by_its_best_frame() -> None:
    gallery = Gallery("images", build("vsepp", 16, 16, {"embed_dim": 8}).eval())
    frames = torch.nn.functional.normalize(torch.randn(5, 1, 8), dim=2)
    gallery.add([0, 1, 2, 4, 5], frames)  # of three files, the last two again
    texts = Views(torch.randn(9, 1, 8))
    labelled = np.arange(9) % 3
    captions = Captions(["a dog"] * 9, labelled, list(labelled[:, None]), [None] * 9)
    ranked, _ = rank_all({"x": gallery}, ["x"], lambda _: texts, captions, 3)
    scores = gallery.method.score(Views(frames), texts).numpy()
    best = np.stack([scores[0], scores[[1, 3]].max(axis=0), scores[[2, 4]].max(axis=0)])
    assert ranked["x"].first.tolist() == best.argmax(axis=0).tolist()
    assert ranked["x"].rank.tolist() == (best >= best[labelled, np.arange(9)]).sum(axis=0).tolist()


def test_ranks_are_kept_on_disk(views_pack: Path, tmp_path: Path) -> None:
    retriever = filled(Runtime.load(views_pack, "cpu"), views_pack, tmp_path)
    first, above = finished(Mistakes(), retriever, ["vse_infty+mv_vse"])
    assert set(first) == {"vse_infty", "mv_vse", "vse_infty+mv_vse"}
    files = sorted(tmp_path.rglob("mistakes/*.npz"))
    written = [file.stat().st_mtime_ns for file in files]
    again, same = finished(Mistakes(), retriever, ["vse_infty+mv_vse"])
    assert len(files) == 2
    assert [file.stat().st_mtime_ns for file in files] == written
    assert all(np.array_equal(again[name], first[name]) for name in first)
    assert np.array_equal(same, above)
    for file in files:
        file.write_bytes(b"damaged")
    damaged, _ = finished(Mistakes(), retriever, [])
    assert np.array_equal(damaged["mv_vse"], first["mv_vse"])
    assert max(len(file.read_bytes()) for file in files) > 100


def test_a_file_of_queries(views_retriever: Retriever) -> None:
    service, file = Mistakes(), views_retriever.collection.images[3].file
    content = f'query,image,kind\n"a bar, red",{file},shape\n"a bar, red",5,shape\na circle,2,shape'
    key = service.add_queries(views_retriever, content.encode())
    ranks, _ = finished(service, views_retriever, [], key)
    captions = service.captions(views_retriever, key)
    assert captions is not None
    assert list(captions.texts) == ["a bar, red", "a circle"]
    assert [rows.tolist() for rows in captions.right] == [[3, 5], [2]]
    assert captions.labelled.tolist() == [3, 2]
    assert captions.kinds == ("shape", "shape")
    scores = views_retriever.scores([Term("a circle")], "mv_vse").values
    assert ranks["mv_vse"].rank[1] == 1 + (scores > scores[2]).sum()
    for number in range(40):
        service.add_queries(views_retriever, f"a dog,{number % 24}{' ' * number}".encode())
    assert service.captions(views_retriever, key) is None
    for wrong, sentence in (
        (b"", "0 queries"),
        (b"a dog,nowhere.png", "line 1 must name a query and an image"),
        (b"a dog,1\n,2", "line 2"),
        (b"\xff\xfe", "line 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            service.add_queries(views_retriever, wrong)
