"""Clips in the API: moments of hits, scores of frames, and the file for playing."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from polyview.app.api.search import parse
from polyview.app.gallery.scan import from_folder
from polyview.app.packs.state import AppState
from polyview.app.search.retriever import Retriever
from polyview.app.server import build
from polyview.app.settings import Settings
from polyview.export.runtime import Runtime
from tests.app.api.conftest import refused
from tests.app.clip_files import plain, write_animation, write_video
from tests.app.conftest import finish

COLOURS = ("red", "lime", "blue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A still image, a video and an animation."""
    made = tmp_path_factory.mktemp("photos")
    plain("gray").save(made / "a.png")
    write_video(made / "b.mp4", [plain(colour) for colour in COLOURS for _ in range(20)])
    write_animation(made / "c.gif", [*map(plain, COLOURS)], 500)
    return made


def served(pack: Path, folder: Path, cache: Path, host: str = "127.0.0.1") -> TestClient:
    settings = Settings(str(pack), folder, "cpu", host=host)
    state = AppState(settings, cache)
    finish(state.first.index)
    return TestClient(build(settings, state), base_url="http://127.0.0.1/api/v1")


@pytest.fixture(scope="module")
def ask(tiny_pack: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return served(tiny_pack, folder, tmp_path_factory.mktemp("cache"))


def test_hits_and_frames_have_times(ask: TestClient) -> None:
    query = {"q": "a red circle"}
    hits = {item["file"]: item for item in ask.get("/search", params=query).json()["hits"]}
    assert hits.keys() == {"a.png", "b.mp4", "c.gif"}
    assert hits["a.png"]["seconds"] is None
    best = hits["b.mp4"]
    assert best["frame"] == int(best["seconds"] * 10)
    line = ask.get("/timeline", params={**query, "image": best["image_id"]}).json()["hits"]
    assert [item["seconds"] for item in line] == sorted(item["seconds"] for item in line)
    assert {item["view"] for item in line} == {None}  # no view has won
    assert max(item["score"] for item in line) == pytest.approx(best["score"], abs=1e-5)
    why = ask.get("/explain", params={**query, "image": best["image_id"]}).json()
    assert why["score"] == pytest.approx(best["score"], abs=1e-5)


def test_comparisons_and_the_lens_rank_clips_by_their_best_frames(ask: TestClient) -> None:
    methods, query = ["vsepp", "vse_infty"], {"q": "a red circle"}
    compared = ask.get("/compare", params={**query, "methods": ",".join(methods)}).json()
    assert (compared["query"], compared["pictures"]) == (query["q"], 3)
    for method, column in zip(methods, compared["columns"], strict=True):
        results = ask.get("/search", params={**query, "method": method}).json()["hits"]
        lens = ask.get("/lens", params={**query, "method": method, "weights": "1"}).json()["hits"]
        for hits in (column["hits"], lens):
            assert [hit["image_id"] for hit in hits] == [hit["image_id"] for hit in results]
    both = ask.get("/search", params={**query, "method": "+".join(methods)}).json()["hits"]
    assert len({hit["file"] for hit in both}) == len(both) == 3


def test_filters_include_all_frames(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    retriever = Retriever(runtime, from_folder(folder), tmp_path)
    finish(retriever.index)
    for words, spec in (("a blue bar", "vsepp"), ("- a blue bar", "vsepp+vse_infty")):
        hits = {hit.image_id: hit.score for hit in retriever.search(parse(words), spec, 3).hits}
        assert max(hits) >= 3  # not the first frame
        for image_id, score in hits.items():
            (hit,) = retriever.search(parse(words), spec, 3, {image_id % 3}).hits
            assert (hit.image_id, hit.score) == (image_id, pytest.approx(score))


def test_clips_are_sent_whole_and_in_ranges(ask: TestClient, folder: Path) -> None:
    content = (folder / "b.mp4").read_bytes()
    whole = ask.get("/clip/1")
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-type"] == "video/mp4"
    assert int(whole.headers["content-length"]) == len(content)  # not compressed again
    part = ask.get("/clip/4", headers={"range": "bytes=100-199"})  # the id of another frame
    assert (part.status_code, part.content) == (206, content[100:200])
    assert ask.get("/clip/2").headers["content-type"] == "image/gif"


def test_refused_clips(ask: TestClient, tiny_pack: Path, folder: Path, tmp_path: Path) -> None:
    for path, status, sentence in (
        ("/clip/0", 404, "image 0 is a still image"),
        ("/clip/999", 404, "there is no image 999"),
        ("/clip/x", 400, 'image_id cannot be "x"'),
        ("/clip/1?pack=nobody", 410, "is not on this machine"),
        ("/clip/1?collection=upload-1", 410, "upload the files again"),
    ):
        assert sentence in refused(ask.get(path), status), path
    stranger = served(tiny_pack, folder, tmp_path, "0.0.0.0")
    assert "only to its owner's machine" in refused(stranger.get("/clip/1"), 403)
    clip, elsewhere = folder / "b.mp4", tmp_path / "b.mp4"
    clip.rename(elsewhere)
    clip.symlink_to(elsewhere)
    try:
        assert "leads out of the gallery's folder" in refused(ask.get("/clip/1"), 400)
    finally:
        clip.unlink()
        elsewhere.rename(clip)
