"""Galleries that lie: an archive, a database elsewhere, a file whose time was set back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app import migrate
from tests.app.blocks.server.test_hostile_gallery import Visitor
from tests.app.conftest import draw
from tests.app.gallery.test_archive import make
from tests.app.qdrant_server import pretended_server
from tests.app.serving import Serve, Server
from tests.soak.checks import Caller, tells_nothing

pytestmark = pytest.mark.slow


def test_a_long_name_in_an_archive_is_a_sentence(server: Server, tmp_path: Path) -> None:
    mine = make(tmp_path / "mine.zip", {f"{'n' * 300}.png": b"x"})
    said = Visitor(server.url).ask("choose_images", ["", {"place": str(mine)}])
    assert "a name of more than 255 bytes" in said
    tells_nothing(said)


def test_a_database_elsewhere_opens_no_file_of_this_machine(
    serve: Serve, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, cache = tmp_path / "photos", tmp_path / "cache"
    photos.mkdir()
    for i in range(3):
        draw(i)[0].save(photos / f"{i}.png")
    (tmp_path / "secret").mkdir()
    draw(9)[0].save(tmp_path / "secret" / "0.png")
    monkeypatch.setenv("POLYVIEW_CACHE", str(cache))
    with pretended_server() as state:
        address = f"qdrant://127.0.0.1:{state.port}/photos"
        moved = ["--pack", str(tiny_pack), "--gallery", str(photos), "--to", address]
        assert migrate.main([*moved, "--device", "cpu"]) == 0
        points, _ = state.client.scroll("photos", with_payload=True)
        [hostile] = [p.id for p in points if (p.payload or {})["file"] == "0.png"]
        elsewhere = {"root": str(tmp_path / "secret")}
        state.client.set_payload("photos", elsewhere, [hostile])
        server = serve("--pack", tiny_pack, "--gallery", address, POLYVIEW_CACHE=str(cache))
        said = Caller(server.url).answer("search_swap", ["", None, None])
        assert said.count('src=\\"thumbnails/') == 2
        assert "1.png" in Caller(server.url).answer("views", [1, "vsepp", ""])
        assert "cannot be reached" in Caller(server.url).answer("views", [0, "vsepp", ""])


def test_a_file_whose_time_was_set_back_is_read_again(
    serve: Serve, tiny_pack: Path, tmp_path: Path
) -> None:
    photos, cache = tmp_path / "photos", tmp_path / "cache"
    photos.mkdir()
    for i in range(2):
        draw(i)[0].save(photos / f"{i}.bmp")
    given = ("--pack", tiny_pack, "--gallery", photos)
    serve(*given, POLYVIEW_CACHE=str(cache))
    before = (photos / "0.bmp").stat()
    draw(7)[0].save(photos / "0.bmp")
    os.utime(photos / "0.bmp", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (photos / "0.bmp").stat().st_size == before.st_size
    server = serve(*given, POLYVIEW_CACHE=str(cache))
    draw(7)[0].save(tmp_path / "asked.png")
    best = server.ask_image(tmp_path / "asked.png", k=1)["images"][0]
    assert best["file"] == "0.bmp"
    assert best["score"] == pytest.approx(1.0, abs=1e-3)
