"""Galleries in Qdrant rank as the gallery in this process does, by every scoring rule."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
import torch
from qdrant_client import QdrantClient

from app.gallery.qdrant import gallery as module
from app.gallery.qdrant.address import Address
from app.gallery.qdrant.gallery import Contents, QdrantGallery
from app.gallery.qdrant.server import PACK, Creation, QdrantError, Server, api
from app.gallery.vector_index import Gallery, Match
from models import Method, Views, build

DIM = 12
# Each scoring rule: a method, its arguments, and the views of a picture and of a text.
RULES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "one vector": ("vse_infty", {}, 1, 1),
    "best view": ("mv_vse", {}, 3, 1),
    "best pair": ("pvse", {"views": 3}, 3, 3),
    "views in turn": ("pvse", {"views": 3, "match": "concat"}, 3, 3),
    "joined": ("mvam", {"views": 4}, 4, 4),
    "blocks": ("avse", {"block_dim": 4}, 2, 1),
    "blocks by MaxSim": ("avse", {"block_dim": 4, "match": "maxsim"}, 2, 1),
}


def method_of(rule: str) -> tuple[Method, int, int]:
    """A rule's method, and the views V of a picture and W of a text."""
    name, arguments, views, words = RULES[rule]
    torch.manual_seed(0)
    made = build(name, 8, 8, {"embed_dim": DIM, **arguments})
    return made.eval().requires_grad_(False), views, words


def drawn(rng: np.random.Generator, *shape: int, tied: bool = False) -> np.ndarray:
    """Views: unit vectors, or small whole numbers, with which nearly everything is tied."""
    if tied:
        return rng.integers(-1, 2, shape).astype(np.float32)
    rows = rng.standard_normal(shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def ids_of(count: int) -> list[str]:
    """Ids whose order is another than that of the pictures."""
    return [f"{(7919 * i + 13) % 65521:08x}-0000-4000-8000-{i:012x}" for i in range(count)]


def written(server: Server, items: np.ndarray, method: Method, how: Creation) -> QdrantGallery:
    """A gallery over items (N, V, D) that were written to a server."""
    count, views, dim = items.shape
    width = method.row_dim(views, dim)
    server.create({"m": width}, how)
    ids = ids_of(count)
    points = [
        api.PointStruct(id=i, vector={"m": rows.reshape(-1, width).tolist()}, payload={PACK: "p"})
        for i, rows in zip(ids, items, strict=True)
    ]
    server.write(points)
    return QdrantGallery(server, Contents(ids), "m", method, (views, dim), "p", how.half)


@pytest.fixture
def server() -> Server:
    return Server(QdrantClient(":memory:"), Address("photos", folder=Path("memory")))


def same(found: Sequence[Match], expected: Sequence[Match]) -> None:
    assert [(hit.id, hit.view) for hit in found] == [(hit.id, hit.view) for hit in expected]
    np.testing.assert_allclose(
        [hit.score for hit in found], [hit.score for hit in expected], atol=1e-5
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rankings_are_those_of_the_local_gallery(rule: str, tied: bool, server: Server) -> None:
    method, views, words = method_of(rule)
    rng = np.random.default_rng(len(rule))
    items = drawn(rng, 60, views, DIM, tied=tied)
    distant = written(server, items, method, Creation())
    local = Gallery("images", method)
    local.add(range(60), Views(torch.from_numpy(items)))
    assert (len(distant), distant.shape) == (60, (views, DIM))
    for k, only in ((1, None), (10, None), (100, None), (5, {3, 5, 59}), (5, set(range(2, 60)))):
        query = Views(torch.from_numpy(drawn(rng, 1, words, DIM, tied=tied)))
        same(distant.search(query, k, only), local.search(query, k, only))
    ids, scores = distant.scores(query)
    assert ids.tolist() == list(range(60))
    np.testing.assert_allclose(scores, local.scores(query)[1], atol=1e-6)
    parts = [views.embeddings for _, views in distant.chunks()]
    torch.testing.assert_close(torch.cat(parts), torch.from_numpy(items))
    chosen = [7, 3, 44]
    torch.testing.assert_close(distant.views(chosen).embeddings, torch.from_numpy(items[chosen]))


def test_a_picture_finds_pictures(server: Server) -> None:
    method, views, _ = method_of("best pair")
    items = drawn(np.random.default_rng(3), 30, views, DIM)
    local = Gallery("images", method)
    local.add(range(30), Views(torch.from_numpy(items)))
    query = Views(torch.from_numpy(items[11:12]))
    found = written(server, items, method, Creation()).search(query, 4)
    same(found, local.search(query, 4))
    assert found[0].id == 11


def test_few_views_are_read_for_an_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    method, views, words = method_of("best pair")
    rng = np.random.default_rng(0)
    gallery = written(server, drawn(rng, 200, views, DIM), method, Creation())
    read: list[str] = []
    really = server.read

    def reading(ids: Sequence[str], *rest: Any) -> dict[str, tuple[dict, np.ndarray]]:
        read.extend(ids)
        return really(ids, *rest)

    monkeypatch.setattr(server, "read", reading)
    gallery.search(Views(torch.from_numpy(drawn(rng, 1, words, DIM))), 3)
    assert 3 <= len(read) <= words * (3 + 8)
    assert len(set(read)) == len(read)


def test_blocks_are_ranked_among_candidates(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, views, _ = method_of("blocks")
    rng = np.random.default_rng(1)
    items = drawn(rng, 150, views, DIM)
    gallery = written(server, items, method, Creation())
    query = Views(torch.from_numpy(drawn(rng, 1, 1, DIM)))
    monkeypatch.setattr(module, "EXHAUSTIVE_UP_TO", 100)
    found = gallery.search(query, 5)
    exact = dict(enumerate(method.score(Views(torch.from_numpy(items)), query)[:, 0].tolist()))
    assert [hit.score for hit in found] == pytest.approx([exact[hit.id] for hit in found], abs=1e-5)
    best = sorted(exact, key=lambda i: -exact[i])[:5]
    assert len({hit.id for hit in found} & set(best)) >= 4
    assert gallery.caveat().startswith("Approximate")
    assert gallery.caveat(set(range(100))) == ""
    gallery.method = method_of("best pair")[0]
    assert gallery.caveat() == ""


def test_points_written_since_are_left_out(server: Server) -> None:
    method, views, words = method_of("best view")
    rng = np.random.default_rng(2)
    items = drawn(rng, 40, views, DIM)
    whole = written(server, items, method, Creation())
    query = Views(torch.from_numpy(drawn(rng, 1, words, DIM)))
    newest = whole.search(query, 25)
    left = sorted(set(range(40)) - {hit.id for hit in newest[:20]})
    known = QdrantGallery(
        server, Contents([ids_of(40)[i] for i in left]), "m", method, (views, DIM), "p"
    )
    found = known.search(query, 3)
    assert [left[hit.id] for hit in found] == [hit.id for hit in newest[20:23]]


@pytest.mark.parametrize("odd", ["not a number", "ragged"])
def test_odd_views_are_a_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    method, views, words = method_of("best view")
    items = drawn(np.random.default_rng(2), 5, views, DIM)
    gallery = written(server, items, method, Creation())
    query = Views(torch.from_numpy(drawn(np.random.default_rng(3), 1, words, DIM)))
    first = gallery.search(query, 5)[0]
    usual = server._client.retrieve

    def retrieve(*given: Any, **named: Any) -> list[api.Record]:
        found = usual(*given, **named)
        for record in found:
            if record.id == ids_of(5)[first.id]:
                rows = [[float("nan")] * DIM] * views
                if odd != "not a number":
                    rows = [[1.0], [1.0, 2.0]]
                record.vector = {"m": rows}
        return found

    monkeypatch.setattr(server._client, "retrieve", retrieve)
    again = QdrantGallery(server, Contents(ids_of(5)), "m", method, (views, DIM), "p")
    with pytest.raises(QdrantError, match="or their views are damaged"):
        again.search(query, 4)


def test_another_packs_views_are_refused(server: Server) -> None:
    method, views, words = method_of("best view")
    items = drawn(np.random.default_rng(2), 5, views, DIM)
    written(server, items, method, Creation())
    other = QdrantGallery(server, Contents(ids_of(5)), "m", method, (views, DIM), "another pack")
    with pytest.raises(QdrantError, match=r"holds views of the pack with the checksum p…, not of"):
        other.search(Views(torch.ones(1, words, DIM)), 2)
    with pytest.raises(QdrantError, match="use the pack they were made with, or migrate"):
        server.check_pack("another pack")
    server.check_pack("p")


def test_all_views_are_read_up_to_a_size(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    method, views, words = method_of("best view")
    gallery = written(server, drawn(np.random.default_rng(2), 5, views, DIM), method, Creation())
    monkeypatch.setattr(module, "READ_UP_TO", 4)
    query = Views(torch.ones(1, words, DIM))
    with pytest.raises(QdrantError, match="the views of all 5 pictures, which are read from"):
        gallery.scores(query)
    assert len(gallery.search(query, 5)) == 5


def test_large_galleries_are_read_in_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    method, views, words = method_of("joined")
    items = drawn(np.random.default_rng(5), 40, views, DIM)
    gallery = written(server, items, method, Creation())
    monkeypatch.setattr(module, "_HELD", 0)
    monkeypatch.setattr(module, "_PAGE", 7)
    query = Views(torch.from_numpy(drawn(np.random.default_rng(6), 1, words, DIM)))
    expected = method.score(Views(torch.from_numpy(items)), query)[:, 0]
    np.testing.assert_allclose(gallery.scores(query)[1], expected, atol=1e-6)


@pytest.mark.parametrize("half", [False, True])
def test_the_engine_scores_as_is_assumed(half: bool, tmp_path: Path) -> None:
    """MaxSim over inner products, in Qdrant's own engine, within the slack that is allowed for."""
    rng = np.random.default_rng(8)
    items, query = drawn(rng, 50, 3, DIM), drawn(rng, 2, DIM)
    vector = edge.EdgeVectorParams(
        size=DIM,
        distance=edge.Distance.Dot,
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
        datatype=edge.VectorStorageDatatype.Float16 if half else edge.VectorStorageDatatype.Float32,
    )
    (tmp_path / "shard").mkdir()
    shard = edge.EdgeShard.create(str(tmp_path / "shard"), edge.EdgeConfig(vectors={"m": vector}))
    points = [edge.Point(i, {"m": rows.tolist()}, {}) for i, rows in enumerate(items)]
    shard.update(edge.UpdateOperation.upsert_points(points))
    found = shard.query(
        edge.QueryRequest(
            limit=50,
            query=edge.Query.Nearest(query.tolist(), "m"),
            params=edge.SearchParams(exact=True),
        )
    )
    scores = np.einsum("nvd,wd->nvw", items, query).max(axis=1).sum(axis=1)
    assert len(found) == 50
    for point in found:
        assert abs(point.score - scores[int(str(point.id))]) < module._SLACK[half]
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    shard.close()
