"""Clips over plain HTTP: the moment in a hit, and the file for who plays it."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest
from PIL import Image

from app.blocks.api.http import http_api
from app.packs.open_packs import OpenPacks
from app.settings import Settings
from tests.app.clip_files import mean_colour, plain, write_animation, write_video
from tests.app.loops import run
from tests.app.serving import Serve

COLOURS = ("red", "lime", "blue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A still image, a video and an animation."""
    made = tmp_path_factory.mktemp("photos")
    plain("gray").save(made / "a.png")
    write_video(made / "b.mp4", [plain(colour) for colour in COLOURS for _ in range(20)])
    write_animation(made / "c.gif", [*map(plain, COLOURS)], 500)
    return made


@pytest.fixture(scope="module")
def ask(serve: Serve, tiny_pack: Path, folder: Path) -> httpx.Client:
    server = serve("--pack", tiny_pack, "--gallery", folder)
    return httpx.Client(base_url=f"{server.url}/api/v1", timeout=60)


def test_a_hit_says_when_and_its_id_shows_that_frame(ask: httpx.Client) -> None:
    hits = ask.get("/search", params={"q": "a red circle"}).json()["hits"]
    assert sorted(hit["file"] for hit in hits) == ["a.png", "b.mp4", "c.gif"]
    for hit in hits:
        if hit["file"] == "a.png":
            assert hit["seconds"] is None
            assert hit["frame"] is None
            continue
        assert hit["frame"] == round(hit["seconds"] * (10 if hit["file"] == "b.mp4" else 2))
        colour = COLOURS[int(hit["seconds"] / (2 if hit["file"] == "b.mp4" else 0.5))]
        shown = Image.open(io.BytesIO(ask.get(f"/image/{hit['image_id']}").content))
        expected = mean_colour(plain(colour))
        assert all(abs(a - b) < 25 for a, b in zip(mean_colour(shown), expected, strict=True))
        asked = {"q": "a red circle", "image": hit["image_id"]}
        explained = ask.get("/explain", params=asked).json()
        assert explained["score"] == pytest.approx(hit["score"], abs=1e-5)


def test_a_clip_is_sent_whole_and_in_parts(ask: httpx.Client, folder: Path) -> None:
    content = (folder / "b.mp4").read_bytes()
    whole = ask.get("/clip/1")
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-type"] == "video/mp4"
    assert whole.headers["accept-ranges"] == "bytes"
    size = len(content)
    for asked, part in (
        ("bytes=0-", slice(0, size)),
        ("bytes=100-", slice(100, size)),
        ("bytes=100-199", slice(100, 200)),
        ("bytes=5-999999999", slice(5, size)),
        ("bytes=-50", slice(size - 50, size)),
    ):
        sent = ask.get("/clip/4", headers={"range": asked})  # of another of its frames
        assert sent.content == content[part], asked
        assert sent.status_code == 206
        assert sent.headers["content-range"] == f"bytes {part.start}-{part.stop - 1}/{size}"
    for none in (f"bytes={size}-", "bytes=9-3"):
        refused = ask.get("/clip/1", headers={"range": none})
        assert refused.status_code == 416
        assert refused.headers["content-range"] == f"bytes */{size}"
    for odd in ("bytes=-", "bytes=0-1,4-5", "lines=1-2", "bytes=" + "9" * 400 + "-"):
        assert ask.get("/clip/1", headers={"range": odd}).content == content, odd
    assert ask.get("/clip/2").headers["content-type"] == "image/gif"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/clip/0", "picture 0 is no clip"),
        ("/clip/999", "there is no picture 999"),
        ("/clip/1?pack=nobody", "this pack was closed"),
    ],
)
def test_nothing_else_is_sent(ask: httpx.Client, path: str, said: str) -> None:
    refused = ask.get(path)
    assert refused.status_code in (400, 404)
    assert refused.json()["error"].startswith(said)


def test_a_stranger_is_not_sent_the_owners_files(
    tiny_pack: Path, folder: Path, tmp_path: Path
) -> None:
    settings = Settings(str(tiny_pack), folder, "cpu", host="0.0.0.0")
    api = http_api(OpenPacks(settings, tmp_path))

    async def get() -> httpx.Response:
        inside = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=inside, base_url="http://app/api/v1") as client:
            return await client.get("/clip/1")

    refused = run(get())
    assert refused.status_code == 403
    assert "owner's machine alone" in refused.json()["error"]


def test_a_link_in_a_clip_s_place_is_not_followed(
    ask: httpx.Client, folder: Path, tmp_path: Path
) -> None:
    clip, elsewhere = folder / "b.mp4", tmp_path / "b.mp4"
    clip.rename(elsewhere)
    clip.symlink_to(elsewhere)
    try:
        refused = ask.get("/clip/1")
        assert refused.status_code == 404
        assert "leads out of the gallery's folder" in refused.json()["error"]
    finally:
        clip.unlink()
        elsewhere.rename(clip)
