"""The app over a folder that was made to stop it, while another process holds its database."""

from __future__ import annotations

import io
import json
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from PIL import ExifTags, Image

from app.gallery.embedding_cache import Catalogue
from tests.app import hostile
from tests.app.conftest import draw
from tests.app.serving import Serve, Server
from tests.soak.checks import SLOW, Caller, tells_nothing

pytestmark = pytest.mark.slow

IMAGES = 5


@dataclass(frozen=True)
class Trapped:
    """A server, the folder it shows, and its cache."""

    server: Server
    folder: Path
    cache: Path


@pytest.fixture(scope="module")
def trapped(
    serve: Serve, tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trapped]:
    work = tmp_path_factory.mktemp("trapped")
    folder, cache = work / "photos", work / "cache"
    folder.mkdir()
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    for i in range(IMAGES):
        draw(i)[0].save(folder / f"{i}.jpg", exif=exif)
    hostile.set_traps(folder)
    place = cache / "galleries" / sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    Catalogue(place).digests({})  # makes the database
    with closing(sqlite3.connect(place / "catalogue.sqlite", check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        # which waits until all is searchable, for two minutes
        server = serve("--pack", tiny_pack, "--gallery", folder, POLYVIEW_CACHE=str(cache))
        other.rollback()
    yield Trapped(server, folder, cache)
    shutil.rmtree(folder, ignore_errors=True)


def test_the_gallery_is_there_and_says_what_is_left_out(trapped: Trapped) -> None:
    gallery = trapped.server.ask("info")["gallery"]
    assert gallery["state"] == "ready"
    assert gallery["searchable"] == IMAGES
    reasons = {refusal["file"][:9]: refusal["reason"] for refusal in gallery["refused"]}
    assert reasons.keys() == {"link.png", "links", "zeros.jpg", "pipe.jpg", "huge.jpg", "d" * 9}
    for name in ("link.png", "links", "zeros.jpg"):
        assert "--follow-links" in reasons[name]
    tells_nothing(json.dumps(gallery))
    assert trapped.server.log.read_text().count("cannot be used, which costs time") == 1


def grid(trapped: Trapped) -> str:
    """The Search tab's answer to whoever opens it."""
    return Caller(trapped.server.url).answer("search_swap", ["", None, None])


def thumbnails(trapped: Trapped) -> list[str]:
    return re.findall(r"thumbnails/[0-9a-f]+\.\w+", grid(trapped))


def fetch(trapped: Trapped, address: str) -> Image.Image:
    reply = httpx.get(f"{trapped.server.url}/{address}", timeout=SLOW)
    assert reply.status_code == 200
    return Image.open(io.BytesIO(reply.content))


def test_thumbnails_do_not_tell_where_a_picture_was_taken(trapped: Trapped) -> None:
    found = thumbnails(trapped)
    assert len(found) == IMAGES
    for address in found:
        assert not fetch(trapped, address).getexif()


def test_junk_in_a_thumbnails_place_is_not_served(trapped: Trapped) -> None:
    address, *_ = thumbnails(trapped)
    (trapped.cache / address).write_bytes(b"junk" * 100)
    assert address in thumbnails(trapped)
    fetch(trapped, address).load()


def test_without_a_disk_for_thumbnails_the_search_answers(trapped: Trapped) -> None:
    folder = trapped.cache / "thumbnails"
    folder.rename(trapped.cache / "away")
    folder.write_text("a file where the folder should be")
    try:
        said = grid(trapped)
        assert said.count("thumbnails cannot be kept on the disk") == 1
        assert "pictures to search" in said
        tells_nothing(said)
    finally:
        folder.unlink()
        (trapped.cache / "away").rename(folder)
    assert len(thumbnails(trapped)) == IMAGES


def test_a_picture_that_becomes_a_pipe_holds_nobody(trapped: Trapped) -> None:
    path = trapped.folder / "0.jpg"
    content = path.read_bytes()
    hostile.pipe(path)
    began = time.monotonic()
    said = Caller(trapped.server.url).answer("views", [0, "vsepp", "a circle"])
    assert "is no regular file" in said
    assert "pictures to search" in grid(trapped)
    assert time.monotonic() - began < SLOW
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["large", "scans"])
def test_jpegs_that_cost_too_much_are_refused_at_once(trapped: Trapped, kind: str) -> None:
    content = hostile.progressive(13_300) if kind == "large" else hostile.repeated_scans(2000, 1200)
    began = time.monotonic()
    said = upload(trapped.server.url, content)
    assert ("100 million" if kind == "large" else "more than 32 scans") in said
    assert time.monotonic() - began < SLOW


def upload(url: str, content: bytes) -> str:
    """What a search by a picture answers."""
    reply = httpx.post(
        f"{url}/gradio_api/upload", files={"files": ("photo.jpg", content)}, timeout=60
    )
    sent = {"path": reply.json()[0], "meta": {"_type": "gradio.FileData"}}
    return Visitor(url).ask("search_image", [sent, "vsepp", 3, "", 1, None])


def test_stop_in_the_page_ends_the_reading_of_huge_files(trapped: Trapped, tmp_path: Path) -> None:
    for i in range(400):  # half a gigabyte each, which takes minutes, and no room on the disk
        hostile.sparse(tmp_path / f"{i}.jpg", 2**29 - i)
    visitor = Visitor(trapped.server.url)
    opened = visitor.ask("choose_images", ["", {"place": str(tmp_path)}])
    assert "event: complete" in opened
    assert 'role=\\"alert' not in opened
    time.sleep(0.5)
    began = time.monotonic()
    answer = visitor.ask("pause_reading", [""])
    assert "Go on reading" in answer
    assert time.monotonic() - began < SLOW


def test_cancel_in_the_page_ends_the_reading_of_a_huge_archive(
    trapped: Trapped, tmp_path: Path
) -> None:
    hostile.sparse(tmp_path / "huge.zip", 40 * 2**30)  # which would take minutes
    visitor = Visitor(trapped.server.url)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(
            visitor.ask, "choose_images", ["", {"place": str(tmp_path / "huge.zip")}]
        )
        time.sleep(1)
        assert not said.done()
        began = time.monotonic()
        visitor.join("cancel_images", [])  # answered in the stream that is open
        assert "Cancelled; nothing was kept" in said.result()
    assert time.monotonic() - began < SLOW


class Visitor:
    """A session, in which a pack that was loaded stays loaded."""

    def __init__(self, url: str) -> None:
        self._session = secrets.token_hex(8)
        self._http = httpx.Client(base_url=f"{url}/gradio_api/call", timeout=300)

    def ask(self, event: str, values: list[object]) -> str:
        """What an event answers at the end."""
        return self._http.get(f"{event}/{self.join(event, values)}").text

    def join(self, event: str, values: list[object]) -> str:
        """Asks, and does not wait for an answer; returns the question's name."""
        asked = {"data": values, "session_hash": self._session}
        return str(self._http.post(event, json=asked).json()["event_id"])


@pytest.mark.soak
def test_many_large_pictures_at_once_stay_within_the_memory(trapped: Trapped) -> None:
    file = io.BytesIO()
    Image.new("RGB", (9900, 9900), "teal").save(file, "JPEG", progressive=True, subsampling=0)
    process, url = trapped.server.process, trapped.server.url
    before = memory(process)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: upload(url, file.getvalue()), range(8)))
    assert all("images" in said or "try again in a moment" in said for said in answers)
    assert any("images" in said for said in answers)
    assert memory(process) - before < 2_000 * 2**20


def memory(process: int) -> int:
    """Bytes that a process has taken at most so far."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])
