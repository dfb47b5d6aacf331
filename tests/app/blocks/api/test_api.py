"""The endpoints of a running server: plain JSON for questions, sentences for nonsense."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from gradio_client import handle_file

from app.main import main
from tests.app import hostile
from tests.app.conftest import IMAGES, draw
from tests.app.serving import MAIN, Server


def test_search_text_answers_with_hits(server: Server) -> None:
    answer = server.ask("search_text", "a red circle", "vsepp", 2)
    values = {"query", "read_as", "terms", "method", "k", "filters", "searched", "exact"}
    assert answer.keys() == values | {"hits", "remark", "ms", "matches", "unknown"}
    assert answer["terms"] == [{"words": "a red circle", "weight": 1.0}]
    assert (answer["read_as"], answer["filters"]) == ("a red circle", {})
    assert answer["searched"] == IMAGES
    assert answer["exact"]
    assert (answer["query"], answer["method"], answer["k"]) == ("a red circle", "vsepp", 2)
    first, second = answer["hits"]
    assert (first["rank"], second["rank"]) == (1, 2)
    assert first["score"] >= second["score"]
    names = draw(first["image_id"])[1]
    assert first["objects"] == names
    assert first["captions"][0] == f"a {names[0]} beside a {names[1]}"
    assert first["file"] == f"images/test-{first['image_id']:06}.webp"
    assert first["view"] == 0


def test_search_image_answers_with_captions_and_pictures(server: Server, tiny_pack: Path) -> None:
    answer = server.ask_image(tiny_pack / "gallery/images/test-000007.webp", "vse_infty", 3)
    assert answer["images"][0]["image_id"] == 7
    assert [caption["rank"] for caption in answer["captions"]] == [1, 2, 3]
    assert {"text", "score", "image_id"} <= answer["captions"][0].keys()


def test_info_says_what_is_in_use(server: Server) -> None:
    info = server.ask("info")
    assert info["device"] == "cpu"
    assert info["providers"] == ["CPUExecutionProvider"]
    assert list(info["methods"]) == ["vsepp", "vse_infty"]
    assert info["methods"]["vse_infty"]["views"] == 1
    assert info["gallery"]["searchable"] == IMAGES
    assert info["gallery"]["refused"] == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["", "vsepp", 5], "the query is empty"),
        (["a", "vsepp", 5, ["sky"]], "filters must be an object"),
        (["x" * 10_001, "vsepp", 5], "use at most 10,000"),
        ([["a"], "vsepp", 5], "must be a text, not list"),
        (["a", "clip", 5], "choose one of vsepp, vse_infty"),
        (["a", {"x": 1}, 5], "choose one of vsepp, vse_infty"),
        (["a", "vsepp", None], "k must be a whole number of at least 1, not None"),
    ],
)
def test_nonsense_gets_a_sentence(server: Server, values: list[Any], sentence: str) -> None:
    answer = server.ask("search_text", *values)
    assert answer.keys() == {"error"}
    assert sentence in answer["error"]


def test_several_terms_and_methods(server: Server) -> None:
    answer = server.ask("search_text", "2: a red circle - a bar", "vsepp+vse_infty", 4)
    minus, times = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
    assert answer["read_as"] == f"2 {times} a red circle, {minus} a bar"
    assert answer["terms"][1] == {"words": "a bar", "weight": -1.0}
    expected = 0.0
    for method in ("vsepp", "vse_infty"):
        for words, weight in (("a red circle", 2), ("a bar", -1)):
            hits = server.ask("search_text", words, method, IMAGES)["hits"]
            own = {hit["image_id"]: hit["score"] for hit in hits}
            expected += weight / 2 * own[answer["hits"][0]["image_id"]]
    assert answer["hits"][0]["score"] == pytest.approx(expected, abs=1e-5)
    assert answer["hits"][0]["view"] is None
    flat = server.ask("search_text", "a bar - a bar", "vsepp", 3)
    assert [hit["image_id"] for hit in flat["hits"]] == [0, 1, 2]
    assert "nothing was asked" in flat["remark"]


def test_a_picture_and_words(server: Server, tiny_pack: Path) -> None:
    image = handle_file(tiny_pack / "gallery/images/test-000007.webp")
    both = server.ask("search_image", image, "vsepp+vse_infty", 3, "a bar", 2.0)
    assert both["read_as"] == "2 \N{MULTIPLICATION SIGN} test-000007.webp, + a bar"
    assert both["captions"] == []
    alone = server.ask("search_image", image, "vsepp+vse_infty", IMAGES, "", 2.0)
    words = server.ask("search_text", "a bar", "vsepp+vse_infty", IMAGES)["hits"]
    scores = [{hit["image_id"]: hit["score"] for hit in hits} for hits in (alone["images"], words)]
    first = both["images"][0]
    expected = 2 * scores[0][first["image_id"]] + scores[1][first["image_id"]]
    assert first["score"] == pytest.approx(expected, abs=1e-5)
    assert len(alone["captions"]) == IMAGES
    refused = server.ask("search_image", image, "vsepp", 3, "a bar", 1e9)
    assert "a weight must be a number" in refused["error"]


def test_long_queries_and_large_k_work(server: Server) -> None:
    answer = server.ask("search_text", "red " * 2500, "vsepp", 1_000_000)
    assert len(answer["hits"]) == IMAGES
    assert answer["remark"].startswith("Only the first ")


@pytest.mark.parametrize("name", hostile.USABLE)
def test_what_people_have_can_be_a_query(server: Server, tmp_path: Path, name: str) -> None:
    answer = server.ask_image(hostile.write(tmp_path, name))
    assert len(answer["images"]) == 3


@pytest.mark.parametrize(("name", "why"), hostile.REFUSED.items())
def test_bad_images_get_a_sentence(server: Server, tmp_path: Path, name: str, why: str) -> None:
    answer = server.ask_image(hostile.write(tmp_path, name))
    assert answer.keys() == {"error"}
    assert why in answer["error"]
    assert answer["error"].startswith(name)


def post(server: Server, endpoint: str, *values: Any) -> str:
    """What a caller without gradio_client gets: the event stream's text."""
    body = json.dumps({"data": values}).encode()
    url = f"{server.url}/gradio_api/call/{endpoint}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        event = json.load(reply)["event_id"]
    with urllib.request.urlopen(f"{url}/{event}", timeout=30) as stream:
        return str(stream.read().decode())


@pytest.mark.parametrize(
    "image",
    [{"path": 5}, "/etc/hostname", "data:image/png,x", None],  # paths: tests/app/blocks/server
)
def test_only_uploaded_files_are_opened(server: Server, image: Any) -> None:
    reply = post(server, "search_image", image, "vsepp", 1)
    assert "error" in reply
    assert "images" not in reply
    assert "format that can be read" not in reply  # it was not even opened


def test_files_of_the_pack_are_not_served_by_path(server: Server, tiny_pack: Path) -> None:
    inside = (tiny_pack / "pack.json", tiny_pack / "gallery/images/test-000000.webp", MAIN)
    for path in inside:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{server.url}/gradio_api/file={path}", timeout=10)
        assert refusal.value.code == 403


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cuda"], 'device "cuda" cannot be used'),
        (["--device", "cpu", "--pack", "no/such@pack@x"], "no/such@pack@x"),
    ],
)
def test_a_start_that_cannot_be_ends_with_a_sentence(
    tiny_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    for name in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")  # put back afterwards, whatever main makes of them
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path))
    assert main(["--pack", str(tiny_pack), *arguments]) == 1
    errors = capsys.readouterr().err
    assert sentence in errors
    assert "Traceback" not in errors
