"""A gallery moves to Qdrant and answers from there as it did from here."""

import gzip
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from qdrant_client import QdrantClient

from app import migrate
from app.gallery.collection import Collection, from_folder, from_pack
from app.gallery.image_files import ImageError
from app.gallery.qdrant import server as server_module
from app.gallery.qdrant import store as opened
from app.gallery.qdrant.address import Address
from app.gallery.qdrant.answers import MOST_BYTES
from app.gallery.qdrant.gallery import Contents
from app.gallery.qdrant.migration import Migration, Report
from app.gallery.qdrant.points import image_of
from app.gallery.qdrant.roots import known_roots
from app.gallery.qdrant.server import Creation, QdrantError, Server, api
from app.packs.opened import Opened
from app.search.answers import answer
from app.search.query import Term
from app.search.questions import Question
from app.search.retriever import Retriever
from app.settings import Settings
from export.runtime import Runtime
from tests.app.clip_files import plain, write_animation
from tests.app.conftest import IMAGES, draw, find, finish, ignore_progress
from tests.app.looking import maps_of
from tests.app.qdrant_server import Pretended, pretended_server
from tests.export.editing import edited

HOW = Creation(shards=2, replicas=1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with seven pictures, one of them twice, and a file that is none."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for i in range(7):
        draw(i)[0].save(folder / ("trip" if i % 2 else "") / f"{i}.png")
    shutil.copy(folder / "0.png", folder / "z.png")
    (folder / "bad.png").write_text("no picture")
    return folder


@pytest.fixture
def server() -> Server:
    return Server(QdrantClient(":memory:"), Address("photos", folder=Path("memory")))


@pytest.fixture
def wire() -> Iterator[Pretended]:
    with pretended_server() as state:
        yield state


def moved(runtime: Runtime, collection: Collection, server: Server, cache: Path) -> Report:
    return Migration(runtime, collection, server, cache, HOW).run(ignore_progress)


def reopened(server: Server, cache: Path) -> opened.QdrantStore:
    """What the server holds, seen by the machine that filled it."""
    return opened.read_store(server, known_roots(cache, server.address))


def over(store: opened.QdrantStore, runtime: Runtime, cache: Path) -> Retriever:
    return Retriever(runtime, store.collection, cache, store.galleries(runtime))


def ready(retriever: Retriever) -> Retriever:
    """A retriever with its index started and finished."""
    finish(retriever.index)
    return retriever


def test_a_gallery_answers_alike(many_retriever: Retriever, server: Server, tmp_path: Path) -> None:
    runtime, local = many_retriever.runtime, many_retriever.collection
    count = len(local.images)
    assert moved(runtime, local, server, tmp_path).written == count
    distant = ready(over(reopened(server, tmp_path), runtime, tmp_path))
    assert str(distant.index.progress) == f"{count:,} pictures ready"
    for spec in [*runtime.methods, "vsepp+mv_vse"]:
        for words in ("a red circle beside a square", "a bar - a circle"):
            asked = Question(words)
            here, there = (answer(r, asked, spec, 8).found for r in (many_retriever, distant))
            assert [hit.file for hit in here.hits] == [hit.file for hit in there.hits]
            scores = [hit.score for hit in there.hits]
            assert [hit.score for hit in here.hits] == pytest.approx(scores, abs=1e-4)
            assert here.searched == there.searched
    assert distant.collection.facts == local.facts
    assert distant.collection.captions == local.captions
    assert maps_of(distant, 3, "mv_vse").shape == maps_of(many_retriever, 3, "mv_vse").shape
    assert distant.thumbnail(3).is_file()


def test_files_that_are_the_same_or_none_are_left_out(
    runtime: Runtime, photos: Path, server: Server, tmp_path: Path
) -> None:
    write_animation(photos / "moving.gif", [*map(plain, ("red", "blue"))])
    report = moved(runtime, from_folder(photos), server, tmp_path)
    assert (report.written, report.copies, report.compared) == (7, 1, 7)
    bad, clip = sorted(report.refused, key=lambda refused: refused.file)
    assert bad.file == "bad.png"
    assert clip.reason.startswith("moving.gif is a clip, which Qdrant does not hold")
    assert len(list(server.payloads())) == 7
    store = opened.read_store(server)
    collection = store.collection
    assert [p.file for p in collection.images][-3:] == ["trip/1.png", "trip/3.png", "trip/5.png"]
    distant = ready(over(store, runtime, tmp_path))
    only = collection.facts["folder"]["trip"]
    found = distant.search([Term("a bar")], "vsepp", 9, only)
    assert {hit.image_id for hit in found.hits} == set(only)
    assert found.searched == 3


def test_a_migration_that_was_stopped_goes_on(
    runtime: Runtime,
    tiny_pack: Path,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collection, really = from_pack(tiny_pack), server.write
    monkeypatch.setattr("app.gallery.qdrant.migration.IMAGES_AT_ONCE", 5)
    written: list[str] = []

    def write(points: Sequence[api.PointStruct]) -> None:
        if len(written) >= 10:
            raise KeyboardInterrupt
        really(points)
        written.extend(str(point.id) for point in points)

    monkeypatch.setattr(server, "write", write)
    with pytest.raises(KeyboardInterrupt):
        moved(runtime, collection, server, tmp_path)
    assert len(list(server.payloads())) == 10
    monkeypatch.setattr(server, "write", really)
    report = moved(runtime, collection, server, tmp_path)
    assert (report.there, report.written) == (10, IMAGES - 10)
    assert (
        moved(runtime, collection, server, tmp_path).there == IMAGES == len(list(server.payloads()))
    )


def test_moved_files_keep_points(
    runtime: Runtime, photos: Path, server: Server, tmp_path: Path
) -> None:
    moved(runtime, from_folder(photos), server, tmp_path)
    (photos / "2.png").rename(photos / "trip/2.png")
    report = moved(runtime, from_folder(photos), server, tmp_path)
    assert (report.written, report.there, report.moved) == (0, 7, 1)
    files = [image.file for image in opened.read_store(server).collection.images]
    assert "trip/2.png" in files
    assert len(files) == 7


def test_other_pack(runtime: Runtime, tiny_pack: Path, server: Server, tmp_path: Path) -> None:
    moved(runtime, from_pack(tiny_pack), server, tmp_path)
    shutil.copytree(tiny_pack, tmp_path / "pack")
    with edited(tmp_path / "pack/pack.json") as manifest:
        manifest["tokenizer"]["max_length"] = 9
    other = Runtime.load(tmp_path / "pack", "cpu")
    with pytest.raises(QdrantError, match="holds views of the pack with the checksum"):
        over(reopened(server, tmp_path), other, tmp_path)
    with pytest.raises(QdrantError, match="migrate the pictures with this pack to another"):
        moved(other, from_pack(tiny_pack), server, tmp_path)
    assert len(list(server.payloads())) == IMAGES


def test_views_that_are_damaged_on_the_way_are_found(
    runtime: Runtime,
    tiny_pack: Path,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really, width = server.write, runtime.text_views(["a"], "vsepp").embeddings.shape[2]

    def write(points: Sequence[api.PointStruct]) -> None:
        for point in points:
            assert isinstance(point.vector, dict)
            point.vector["vsepp"] = [[0.5] * width]
        really(points)

    monkeypatch.setattr(server, "write", write)
    with pytest.raises(QdrantError, match=r"the views of .* by vsepp in .* are not those"):
        moved(runtime, from_pack(tiny_pack), server, tmp_path)


def test_missing_images_named(
    runtime: Runtime, photos: Path, server: Server, tmp_path: Path
) -> None:
    moved(runtime, from_folder(photos), server, tmp_path)
    away = photos.rename(tmp_path / "elsewhere")
    distant = ready(over(reopened(server, tmp_path), runtime, tmp_path))
    assert len(answer(distant, Question("a bar"), "vsepp", 3).found.hits) == 3
    for look in (distant.open, distant.thumbnail):
        with pytest.raises(
            ImageError, match="cannot be reached from this machine; mount the folder"
        ):
            look(0)
    with pytest.raises(ValueError, match="cannot be reached from this machine"):
        maps_of(distant, 0, "vsepp")
    server.address = Address("photos", folder=Path("memory"), pictures=away)
    assert opened.read_store(server).collection.images[0].reached().path == away / "0.png"


def test_a_server_opens_no_file_but_those_of_the_folder_that_was_migrated(
    runtime: Runtime, photos: Path, server: Server, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    draw(9)[0].save(private / "secret.png")
    moved(runtime, from_folder(photos), server, tmp_path)
    (photos / "inner.png").symlink_to(private / "secret.png")
    point, known = next(iter(server.payloads()))
    for root, file, why in (
        (str(private), "secret.png", "cannot be reached"),
        ("/", f"{private}/secret.png".removeprefix("/"), "cannot be reached"),
        (f"{photos}/../private", "secret.png", "cannot be reached"),
        (str(photos), "inner.png", "leads out of the gallery's folder"),
    ):
        server.rewrite(point, {**known, "root": root, "file": file})
        distant = ready(over(reopened(server, tmp_path), runtime, tmp_path / "other"))
        image_id = [image.file for image in distant.collection.images].index(file)
        for look in (distant.open, distant.thumbnail, lambda i, d=distant: maps_of(d, i, "vsepp")):
            with pytest.raises(ValueError, match=why):
                look(image_id)
        assert image_id not in distant.thumbnails(range(7))[0]
    unknown = reopened(server, tmp_path / "another machine").collection
    assert all(image.root is None for image in unknown.images)
    with pytest.raises(ImageError, match="cannot be reached"):
        unknown.images[0].open()


@pytest.mark.parametrize("how", ["the same offset", "the same points", "nothing", "no end"])
def test_endless_server_is_left(server: Server, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_POINTS", 5_000)
    asked = [0]

    def scroll(*_: Any, **__: Any) -> tuple[list[api.Record], str]:
        asked[0] += 1
        assert asked[0] < 100
        start = asked[0] * 1000 if how == "no end" else asked[0] * (how == "the same points") % 2
        count = 0 if how == "nothing" else 1000
        return [api.Record(id=start + i, payload={}) for i in range(count)], "the same"

    monkeypatch.setattr(server._client, "scroll", scroll)
    with pytest.raises(QdrantError, match=r"again and again|more than 5,000 pictures"):
        list(server.payloads())


def test_a_payload_without_end_is_refused() -> None:
    known = {"file": "a.png", "root": "/srv", "facts": {}, "captions": ["x" * 60_000] * 2}
    with pytest.raises(ValueError, match="more than 100,000 characters"):
        image_of(0, known, None)
    with pytest.raises(ValueError, match="names no picture"):
        image_of(0, known | {"file": "a" * 5000 + ".png", "captions": []}, None)
    with pytest.raises(ValueError, match="more than 100,000 characters"):
        image_of(0, known | {"captions": [""] * 1_000_000}, None)


def test_odd_payloads_do_no_harm() -> None:
    deep: object = "x"
    for _ in range(3000):
        deep = [deep]
    known = {"file": "a.png", "root": "/srv", "facts": {"deep": deep, "folder": "sea"}}
    assert image_of(0, known, None).facts == {"folder": "sea"}
    with pytest.raises(ValueError, match="half a character"):
        image_of(0, known | {"captions": ["\ud800"]}, None)


@pytest.mark.parametrize("shape", [[10**9, 4], [0, 4], [1, -4], [1, float("inf")], "ab"])
def test_shapes_that_no_method_makes_are_refused(
    server: Server, shape: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = opened.QdrantCollection("photos", Path(), ())
    store = opened.QdrantStore(images, server, Contents(["1"]), {})
    payload = {"shapes": {"vsepp": shape}}
    monkeypatch.setattr(server, "read", lambda *_: {"1": (payload, None)})
    with pytest.raises(QdrantError, match="is damaged"):
        store._shapes()


def test_what_others_wrote_is_no_gallery(server: Server) -> None:
    with pytest.raises(QdrantError, match=r"there is no collection .*; fill it with python"):
        opened.read_store(server)
    server.create({"vsepp": 4}, Creation())
    with pytest.raises(QdrantError, match="is empty; fill it with python -m"):
        opened.read_store(server)
    point = "00000000-0000-4000-8000-000000000001"
    for payload, sentence in (
        ({"text": "hello"}, "was not written by python -m app.migrate: payload"),
        ({"file": "../../etc/x.png", "root": "/srv", "facts": {}}, "names no picture, but"),
        ({"file": "/etc/passwd", "root": "/srv", "facts": {}}, "names no picture, but"),
    ):
        vector: Any = {"vsepp": [[0.0] * 4]}
        server.write([api.PointStruct(id=point, vector=vector, payload=payload)])
        with pytest.raises(QdrantError, match=sentence):
            opened.read_store(server)


def test_over_the_wire(
    runtime: Runtime,
    retriever: Retriever,
    tiny_pack: Path,
    wire: Pretended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path))
    address = f"qdrant://127.0.0.1:{wire.port}/photos"
    arguments = ["--pack", str(tiny_pack), "--to", address, "--device", "cpu", "--half"]
    assert migrate.main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"{IMAGES} pictures written, 0 were there" in printed
    assert f"python app/main.py --pack {tiny_pack} --gallery {address}" in printed
    vectors = wire.client.get_collection("photos").config.params.vectors
    assert isinstance(vectors, dict)
    assert vectors["vsepp"].datatype == api.Datatype.FLOAT16
    assert vectors["vsepp"].distance == api.Distance.DOT
    assert vectors["vsepp"].hnsw_config is not None
    assert vectors["vsepp"].hnsw_config.m == 0
    assert wire.asked.count("PUT /index") == 3
    settings = Settings(str(tiny_pack), Address.parse(address), device="cpu")
    distant = ready(Opened(settings, tmp_path).first)
    for method in runtime.methods:
        here = find(retriever, "a red circle", method, 6)
        there = find(distant, "a red circle", method, 6)
        assert [hit.file for hit in there] == [hit.file for hit in here]
        scores = [hit.score for hit in here]
        assert [hit.score for hit in there] == pytest.approx(scores, abs=1e-5)
    wire.fault = 503
    with pytest.raises(QdrantError, match=r"the server of .* refuses \(503"):
        find(distant, "a red circle", "vsepp", 6)


def test_the_key_is_sent_and_a_wrong_one_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with pretended_server("right") as state:
        address = Address("photos", "127.0.0.1", state.port)
        with pytest.raises(QdrantError, match="wants another key; set the variable QDRANT_API_KEY"):
            opened.open_store(address, tmp_path)
        monkeypatch.setenv("QDRANT_API_KEY", "right")
        with pytest.raises(QdrantError, match="there is no collection"):
            opened.open_store(address, tmp_path)
        assert "goes to 127.0.0.1 unencrypted; use qdrants://" in caplog.text


@pytest.mark.parametrize(
    ("answer", "headers", "sentence"),
    [
        (b"[" * 100_000, {}, "gives no answer"),
        (b"no JSON", {}, "gives no answer"),
        (b'{"result": {"exists": ' + b"[" * 500 + b"]" * 500 + b"}}", {}, "gives no answer"),
        (b"[" + b"[]," * 2_500_000 + b"0]", {}, "more than 128 MB or 4,000,000 values"),
        (b" " * (MOST_BYTES + 1), {}, "more than 128 MB"),
        (gzip.compress(b" " * 10**6), {"Content-Encoding": "gzip"}, "packs its answers"),
    ],
)
def test_answers_without_bound_are_a_sentence(
    tmp_path: Path, answer: bytes, headers: dict[str, str], sentence: str
) -> None:
    with pretended_server() as state:
        state.raw = (answer, headers)
        address = Address("photos", "127.0.0.1", state.port)
        with pytest.raises(QdrantError, match=f"the server of photos .*{sentence}"):
            opened.open_store(address, tmp_path)


def test_an_absent_server_is_reported_quickly(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    assert migrate.main(["--to", f"qdrant://127.0.0.1:{port}/photos"]) == 1
    assert time.monotonic() - start < 3
    assert f"polyview: no Qdrant answers at 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_folder_holds_a_small_collection(runtime: Runtime, photos: Path, tmp_path: Path) -> None:
    address = Address.parse(f"qdrant://{tmp_path}/vectors/photos")
    server = Server.connect(address)
    moved(runtime, from_folder(photos), server, tmp_path)
    with pytest.raises(QdrantError, match="cannot be used"):
        opened.open_store(address, tmp_path)  # one process, and one client, at a time
    server.close()
    collection = opened.open_store(address, tmp_path).collection
    assert len(collection.images) == 7
    with Image.open(collection.images[0].path) as first:
        assert first.size == (96, 72)
