"""Galleries in Qdrant: migration, and the same rankings as in this process."""

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from polyview.app import migrate
from polyview.app.api.search import Question, answer
from polyview.app.gallery import qdrant
from polyview.app.gallery.images import ImageError
from polyview.app.gallery.index import Gallery, Match
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.qdrant import Point, Points, QdrantError, QdrantGallery, open_points
from polyview.app.gallery.scan import from_folder
from polyview.app.packs.state import AppState
from polyview.app.search.retriever import Retriever, Term
from polyview.app.settings import Settings
from polyview.export.runtime import Runtime
from polyview.models import Views
from tests.app.clip_files import plain, write_animation
from tests.app.conftest import IMAGES, bundled_runtime, draw, finish, maps_of
from tests.app.gallery.test_index import DIM, RULES, units


@pytest.fixture
def points(tmp_path: Path) -> Iterator[Points]:
    opened = Points(f"qdrant://{tmp_path}/qdrant/photos")
    yield opened
    opened.close()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with seven images, a copy of one of them, a text file and a clip."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for i in range(7):
        draw(i)[0].save(folder / ("trip" if i % 2 else "") / f"{i}.png")
    shutil.copy(folder / "0.png", folder / "z.png")
    (folder / "bad.png").write_text("no image")
    write_animation(folder / "moving.gif", [*map(plain, ("red", "blue"))])
    return folder


def same(results: Sequence[Match], expected: Sequence[Match]) -> None:
    assert [(hit.id, hit.view) for hit in results] == [(hit.id, hit.view) for hit in expected]
    scores = [hit.score for hit in expected]
    np.testing.assert_allclose([hit.score for hit in results], scores, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_rankings_are_equal(rule: str, points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    (method, views, words), rng = RULES[rule], np.random.default_rng(len(rule))
    items, local = units(rng, 30, views, DIM), Gallery("images", method)
    local.add(range(30), items)
    width = method.row_dim(views, DIM)
    points.create({"m": width})
    # in another order than the images
    ids = [f"{(7919 * i + 13) % 65521:08x}-0000-4000-8000-{i:012x}" for i in range(30)]
    rows = items.view(30, -1, width)
    points.add([(point, {"m": own}, {}) for point, own in zip(ids, rows, strict=True)])
    places = {point: place for place, point in enumerate(ids)}
    distant = QdrantGallery(points, places, "m", method, (views, DIM))
    assert (len(distant), distant.shape) == (30, (views, DIM))
    for k, only in ((1, None), (10, None), (100, None), (5, {3, 5, 29}), (5, set(range(2, 30)))):
        query = Views(units(rng, 1, words, DIM))
        same(distant.search(query, k, only), local.search(query, k, only))
    image_ids, scores = distant.scores(query)
    assert image_ids.tolist() == list(range(30))
    np.testing.assert_allclose(scores, local.scores(query)[1], atol=1e-6)
    chosen = [7, 3, 24]
    torch.testing.assert_close(distant.views(chosen).embeddings, items[chosen])
    monkeypatch.setattr(qdrant, "MAX_READ_IMAGES", 29)
    with pytest.raises(QdrantError, match="the views of 30 images, but at most 29"):
        distant.scores(query)
    if method.row_search:
        same(distant.search(query, 5), local.search(query, 5))


def moved(runtime: Runtime, folder: Path, points: Points, cache: Path) -> tuple[int, list]:
    """Migrates a folder; returns the number of written images, and the refused files."""
    index = finish(Index(runtime, from_folder(folder), cache))
    written, _, refused = migrate.migrate(runtime, index, points)
    return written, refused


def over(points: Points, runtime: Runtime, cache: Path) -> Retriever:
    """A retriever over the collection in Qdrant, as on another machine."""
    collection, galleries = open_points(points)
    retriever = Retriever(runtime, collection, cache, galleries(runtime))
    finish(retriever.index)
    return retriever


def test_migration_is_stopped_and_repeated(
    runtime: Runtime, photos: Path, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_BATCH", 4)
    add = points.add
    index = finish(Index(runtime, from_folder(photos), tmp_path))
    monkeypatch.setattr(index.encoder, "key", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        migrate.migrate(runtime, index, points)
    assert not points.exists()  # the collection is created with its first images

    def ending(part: Sequence[Point]) -> None:
        add(part)
        raise KeyboardInterrupt

    monkeypatch.setattr(points, "add", ending)
    with pytest.raises(KeyboardInterrupt):
        moved(runtime, photos, points, tmp_path)
    monkeypatch.setattr(points, "add", add)
    assert len(list(points.payloads())) == 4
    written, refused = moved(runtime, photos, points, tmp_path)
    assert written == 3
    bad, clip = sorted(refused, key=lambda refused: refused.file)
    assert bad.file == "bad.png"
    assert clip.reason.startswith("moving.gif is a clip; Qdrant galleries")
    (photos / "2.png").rename(photos / "trip/2.png")
    assert moved(runtime, photos, points, tmp_path)[0] == 1
    distant = over(points, runtime, tmp_path)
    files = [image.file for image in distant.collection.images]
    assert files == ["0.png", "4.png", "6.png", *(f"trip/{i}.png" for i in (1, 2, 3, 5))]
    only = distant.collection.facts["folder"]["trip"]
    results = distant.search([Term("a bar")], "vsepp", 9, only)
    assert ({hit.image_id for hit in results.hits}, results.searched) == (set(only), 4)
    other = bundled_runtime("clip_tiny")
    with pytest.raises(QdrantError, match="holds views of the pack"):
        over(points, other, tmp_path)
    with pytest.raises(QdrantError, match="migrate the images to another collection"):
        moved(other, photos, points, tmp_path)
    (tmp_path / "clips").mkdir()
    shutil.copy(photos / "moving.gif", tmp_path / "clips")
    with pytest.raises(QdrantError, match="migrate the images to another collection"):
        moved(other, tmp_path / "clips", points, tmp_path)
    assert len(list(points.payloads())) == 7


def test_unreachable_files(runtime: Runtime, photos: Path, points: Points, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    draw(9)[0].save(private / "secret.png")
    moved(runtime, photos, points, tmp_path)
    (photos / "inner.png").symlink_to(private / "secret.png")
    point, known = next(iter(points.payloads()))
    vectors = {n: torch.from_numpy(points.fetch([point], n)[point][1]) for n in runtime.methods}
    unknown = over(points, runtime, tmp_path)  # without `pictures`
    assert len(answer(unknown, Question("a bar"), "vsepp", 3).hits) == 3
    with pytest.raises(ImageError, match="cannot be reached from this machine; mount the folder"):
        unknown.image(0).decode()
    points.pictures = photos
    reasons = {"missing.png": "cannot be reached", "inner.png": "leads out of the gallery's folder"}
    for file, why in reasons.items():
        points.add([(point, vectors, {**known, "file": file})])
        distant = over(points, runtime, tmp_path)
        image_id = [image.file for image in distant.collection.images].index(file)
        with pytest.raises(ValueError, match=why):
            distant.image(image_id).decode()
        with pytest.raises(ValueError, match=why):
            distant.thumbnail(image_id)
        with pytest.raises(ValueError, match=why):
            maps_of(distant, image_id, "vsepp")
        assert image_id not in distant.thumbnails(range(7))
    assert distant.image(0).decode()


def test_collections_of_other_programs_are_refused(points: Points) -> None:
    with pytest.raises(QdrantError, match=r"there is no collection .*; create it with python"):
        open_points(points)
    points.create({"vsepp": 4})
    with pytest.raises(QdrantError, match="is empty; fill it with python -m"):
        open_points(points)
    point = "00000000-0000-4000-8000-000000000001"
    known = {"facts": {}, "captions": [], "objects": [], "pack": "p", "shapes": {"vsepp": [1, 4]}}
    for payload in ({"text": "hi"}, known | {"file": "../x.png"}, known | {"file": "/etc/passwd"}):
        points.add([(point, {"vsepp": torch.zeros(1, 4)}, payload)])
        with pytest.raises(QdrantError, match=r"was not written by python -m polyview migrate"):
            open_points(points)


def test_the_app_opens_what_migrate_writes(
    many_pack: Path,
    many_retriever: Retriever,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path))
    monkeypatch.setattr(qdrant, "_PAGE", 10)
    address, local = f"qdrant://{tmp_path}/qdrant/photos", many_retriever.collection
    assert migrate.main(["--pack", str(many_pack), "--to", address, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert f"{IMAGES} images written, 0 existed" in printed
    address = f"{address}?pictures={local.folder}"
    assert f"--gallery '{address}'" in printed
    distant = AppState(Settings(str(many_pack), address, device="cpu"), tmp_path).first
    finish(distant.index)
    assert str(distant.index.progress) == f"{IMAGES} images ready"
    for spec in [*distant.methods, "vsepp+mv_vse"]:
        question = Question("a red circle beside a square - a bar")
        expected, hits = (answer(r, question, spec, 8).hits for r in (many_retriever, distant))
        for hit, other in zip(hits, expected, strict=True):
            assert (hit.file, hit.score) == (other.file, pytest.approx(other.score, abs=1e-4))
    assert distant.collection.facts == local.facts
    assert distant.collection.captions == local.captions
    assert maps_of(distant, 3, "mv_vse").shape == maps_of(many_retriever, 3, "mv_vse").shape
    assert distant.thumbnail(3).is_file()


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """A server that gives every request the same answer, and records API keys and bodies."""
    state = SimpleNamespace(status=200, answer=b"", keys=set(), bodies=[])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.keys.add(self.headers.get("api-key"))
            state.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            self.send_response(state.status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(state.answer)

        do_GET = do_POST  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        state.address = f"qdrant://127.0.0.1:{http.server_address[1]}/photos"
        yield state
        http.shutdown()


def test_key_and_bad_answers(server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "right")
    server.answer = b'{"result": [], "status": "ok", "time": 0}'
    points = Points(server.address)
    assert points.candidates("vsepp", np.zeros((1, 1, 4), np.float32), 3, None) == []
    [body] = server.bodies
    assert json.loads(body)["searches"][0]["params"]["exact"]
    assert server.keys == {"right"}
    server.answer = b"no JSON"
    for server.status, sentence in (
        (401, "rejects the API key; set QDRANT_API_KEY"),
        (503, r"Qdrant at .* rejects the request \(503"),
        (200, "gives no valid answer"),
    ):
        with pytest.raises(QdrantError, match=sentence):
            open_points(points)


def test_an_absent_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate.main(["--to", "qdrant://127.0.0.1:9/photos"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("polyview: Qdrant at qdrant://127.0.0.1:9/photos does not answer")


def test_wrong_addresses() -> None:
    places = ("host", "host/a/b", "/name", "host:port/name", "host/name?grpc=1")
    for text in (*(f"qdrant://{place}" for place in places), "http://host/name"):
        with pytest.raises(ValueError, match="names no collection"):
            Points(text)
    for text in ("qdrant://me:secret@host/name", "qdrant://host/name?api_key=secret"):
        with pytest.raises(ValueError, match="QDRANT_API_KEY") as refusal:
            Points(text)
        assert "secret" not in str(refusal.value)
    with pytest.raises(ValueError, match="is not a local folder"):
        Points("qdrant://host/name?pictures=/nowhere")
