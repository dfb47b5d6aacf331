"""Every endpoint over HTTP and Gradio: equal answers, and equal messages for wrong values."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import ExifTags, Image

from polyview.app.api import collections
from polyview.app.search.retriever import Retriever
from polyview.app.server import ENDPOINTS
from tests.app.api.conftest import ROOT, data_uri, encoded
from tests.app.clip_files import write_animation
from tests.app.conftest import draw, saved
from tests.app.serving import Server

IMAGE = data_uri(encoded(3))
TABLE = data_uri(b"query,image\na bar,2").replace("image/png", "text/csv")
TEXT = "a red circle beside a blue bar"
# valid requests: the endpoint and its values
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("search_text", {"query": TEXT, "method": "mv_vse", "k": 3}),
    ("search_text", {"query": "2: a circle - a bar", "k": 3, "layout": True}),
    ("search_text", {"like": 4, "k": 3}),
    ("search_text", {"query": "a bar", "like": 4, "weight": 0.5, "k": 2}),
    ("search_text", {"more": [1, 2], "less": [5], "k": 3, "method": "vsepp+vse_infty"}),
    ("search_image", {"image": IMAGE, "k": 3}),
    ("search_image", {"image": IMAGE, "query": "a bar", "weight": 2.0, "k": 3}),
    ("compare", {"query": TEXT, "methods": ["vsepp", "mv_vse", "vsepp+avse"], "k": 2}),
    ("compare", {"query": "", "like": 2, "methods": ["vsepp", "mv_vse"]}),
    ("lens", {"query": TEXT, "method": "mv_vse", "weights": [1, 0, 0.5], "k": 3}),
    ("timeline", {"image": 0, "query": TEXT}),
    ("examples", {}),
    ("explain", {"query": "2: a bar - red", "image": 4, "method": "mv_vse", "per_view": True}),
    ("explain", {"query": "a bar", "image": "images/test-000004.webp"}),
    ("explain", {"query": "", "image": 4, "like": 2}),
    ("explain", {"query": "", "image": 4, "content": IMAGE}),
    ("explain_hits", {"query": TEXT, "images": [3, 1, 2], "method": "mv_vse"}),
    ("explain_hits", {"query": "a bar", "images": [3], "content": IMAGE, "more": [1]}),
    ("explain_image", {"query": TEXT, "image": 3, "word": "red"}),
    ("views", {"image": 3, "method": "avse", "query": TEXT, "settings": ["match:sinkhorn"]}),
    ("views", {"image": 3, "method": "mvam"}),
    ("collapse", {"method": "mv_vse"}),
    ("mistakes", {"a": "mv_vse", "b": "vsepp+avse", "k": 3, "cell": "all", "within": [1, 9, 1, 9]}),
    ("mistakes", {"order": "caption", "start": 1, "count": 2}),
    ("add_queries", {"content": TABLE}),
    ("image", {"image_id": 3}),
    ("image", {"image_id": 3, "large": True}),
    ("images", {"start": 2, "count": 3}),
    ("collections", {}),
    ("progress", {}),
    ("stop_reading", {}),
    ("resume_reading", {}),
    ("packs", {}),
    ("check_pack", {"method": "vsepp"}),
    ("look_pack", {"address": "scenes"}),
    ("results", {}),
    ("info", {}),
    ("health", {}),
]
WRONG: dict[str, Any] = {
    "query": "x" * 10_001, "method": "nope", "k": 0, "filters": ["nocolon"], "like": -1,
    "more": [-1], "less": ["x"], "weight": 1000.0, "layout": "maybe", "pack": "nope",
    "collection": "nope", "image": 10**8, "per_view": "maybe", "content": "data:,x",
    "methods": ["mv_vse"], "weights": [2.0], "settings": ["nope:1"], "images": [-1], "word": "nope",
    "image_id": 10**6, "large": "maybe", "start": -1, "count": 0, "place": " ", "name": " / ",
    "address": "", "kind": "nope", "job": "nope", "a": "nope", "b": "nope", "cell": "nope",
    "order": "nope", "within": [1], "queries": "nope", "format": "nope",
}  # fmt: skip
# endpoints that change the open collections and packs, with tests below
CHANGING: dict[str, dict[str, Any]] = {
    "clip": {"image_id": 3},
    "new_collection": {},
    "open_collection": {"place": "x"},
    "add_file": {"collection": "upload-x", "name": "x.png", "content": IMAGE},
    "start_collection": {"collection": "upload-x"},
    "fetch_pack": {"address": "x"},
    "pack_job": {"job": "x"},
    "cancel_pack": {"job": "x"},
}
SLOW = {"ms", "progress", "done", "bytes"}
BY_NAME = {item.name: item for item in ENDPOINTS}


def ask(server: Server, endpoint: Any, values: dict[str, Any]) -> httpx.Response:
    """Sends a request over HTTP: GET if the endpoint allows it and no image is sent."""
    names = {"query": "q", "filters": "filter"}
    path = endpoint.path.lstrip("/").replace("{image_id}", str(values.get("image_id")))
    inputs = {names.get(k, k): v for k, v in values.items() if f"{{{k}}}" not in endpoint.path}
    if "GET" in endpoint.methods and "content" not in values:
        return server.http.get(path, params=inputs)
    return server.http.post(path, json=inputs)


def timeless(value: Any) -> Any:
    """An answer without the fields that differ between calls."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in SLOW}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def test_http_and_gradio_answer_the_same(private: Server) -> None:
    assert dict(CALLS).keys() | CHANGING.keys() == BY_NAME.keys()
    for name, values in CALLS:
        reply = ask(private, BY_NAME[name], values)
        while name in ("collapse", "mistakes") and reply.json()["state"] == "running":
            reply = ask(private, BY_NAME[name], values)
        assert reply.status_code == 200, (name, values, reply.text)
        answer = private.predict(name, **values)
        if reply.headers["content-type"].startswith("image/"):
            kind = reply.headers["content-type"]
            assert answer["data"] == data_uri(reply.content).replace("image/png", kind)
            continue
        assert isinstance(answer, dict), (name, values, answer)
        assert '"path"' not in json.dumps(answer), name  # which Gradio would take for a file
        assert timeless(reply.json()) == timeless(answer), (name, values)


def test_http_and_gradio_refuse_wrong_values_alike(private: Server) -> None:
    valid, start = dict(reversed(CALLS)) | CHANGING, private.log.stat().st_size
    special = {("search_image", "image"): "x,y", ("results", "pack"): "x" * 300}
    for name, endpoint in BY_NAME.items():
        for parameter in endpoint.types:
            values = {**valid[name], parameter: special.get((name, parameter), WRONG[parameter])}
            reply = ask(private, endpoint, values)
            assert reply.status_code in (400, 404, 410), (name, parameter, reply.text)
            sentence = reply.json()["error"]
            assert 10 < len(sentence) < 300, (name, parameter, sentence)
            if parameter == next(iter(endpoint.types)):  # Gradio's queue is slow
                assert private.predict(name, **values) == sentence, (name, parameter)
    assert "not true or false" in private.predict("search_text", query="x", k=True)
    assert "not true or false" in private.predict("explain", query="x", image=True)
    assert "Traceback" not in private.log.read_text()[start:]
    assert " failed: " not in private.log.read_text()[start:]


def test_refusals_have_a_status(private: Server) -> None:
    for path, values, status, sentence in (
        ("search", {}, 400, "the query is empty"),
        ("explain", {"image": 3}, 400, "query is missing"),
        ("search", {"q": "x", "k": "many"}, 400, 'k cannot be "many"'),
        ("search", {"q": "x", "weight": "nan"}, 400, "weight cannot be"),
        ("search", {"q": "x", "colour": "red"}, 400, 'unknown parameter "colour"'),
        ("search", {"q": "x", "collection": "folder-0"}, 410, "open the folder again"),
        ("search", {"q": "x", "collection": "upload-0"}, 410, "upload the files again"),
        ("search", {"q": "x", "pack": "mine@12345678"}, 410, "load it again"),
        ("packs/job", {"job": "x"}, 410, "fetch the pack again"),
        ("image/100000", {}, 400, "files have ids from 0"),
        ("explain/hits", {"q": "x", "images": "0," * 101}, 400, "images cannot be"),
        ("explain/hits", {"q": "x", "images": ""}, 400, "images cannot be"),
        ("nothing", {}, 404, "/api/v1"),
    ):
        reply = private.http.get(path, params=values)
        answer = reply.status_code, sentence in reply.json()["error"]
        assert answer == (status, True), reply.text


def test_evidence_adds_up_and_both_endpoints_agree(private: Server) -> None:
    query = {"q": TEXT, "method": "mv_vse"}
    hits = private.get("search", **query, k=4)["hits"]
    many = private.get("explain/hits", **query, images=",".join(str(h["image_id"]) for h in hits))
    for place, hit in enumerate(hits):
        item = private.get("explain", **query, image=hit["image_id"])
        total = item["base"] + sum(map(sum, item["cells"])) + sum(item["whole_sentence"])
        assert total == pytest.approx(hit["score"], abs=1e-4)
        np.testing.assert_allclose(many["cells"][place], item["cells"], atol=1e-6)
        assert many["scores"][place] == pytest.approx(hit["score"], abs=1e-5)


def test_a_pack_is_checked_once(many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    first = collections.check_pack(many_retriever, "vsepp")
    monkeypatch.setattr(collections, "check_preprocessing", None)
    assert collections.check_pack(many_retriever, "vsepp") == first
    with pytest.raises(ValueError, match="names 2 methods; choose one of them"):
        collections.check_pack(many_retriever, "vsepp+mvam")


def test_an_image_is_the_body(private: Server) -> None:
    content = encoded(3)
    reply = private.http.post("search?k=3", content=content, headers={"Content-Type": "image/png"})
    assert timeless(reply.json()) == timeless(private.post("search", image=IMAGE, k=3))
    assert reply.json()["hits"] == reply.json()["images"]
    assert private.get("search", q="a bar")["unfamiliar"] is None
    why = private.http.post("explain?image=4&q=", content=content).json()
    assert timeless(why) == timeless(private.post("explain", image=4, query="", content=IMAGE))


def test_uploads_grow_and_need_their_key(private: Server) -> None:
    key = private.post("collections/new")["collection"]
    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = "a secret place"
    photo = saved(draw(0)[0], "JPEG", exif=exif)
    for i, content in enumerate((photo, encoded(1), encoded(2))):
        private.http.post(f"collections/file?collection={key}&name=a{i}.png", content=content)
    reply = private.predict("add_file", collection=key, name="notes.txt", content=data_uri(b"x"))
    assert (reply["stage"], reply["pictures"]) == ("uploading", 4)
    pack = private.post("collections/start", collection=key)["pack"]
    reply = private.await_stage("ready", key, pack)
    assert (reply["searchable"], [item["file"] for item in reply["refused"]]) == (3, ["notes.txt"])
    assert private.post("search", image=IMAGE, collection=key)["hits"]
    private.http.post(f"collections/file?collection={key}&name=a3.png", content=encoded(3))
    private.predict("start_collection", collection=key)
    assert private.await_stage("ready", key)["searchable"] == 4
    results = private.post("search", image=IMAGE, collection=key)["hits"]
    assert results[0]["file"] == "a3.png"
    listed = private.get("collections")["collections"]
    assert not any(item["key"].startswith("upload-") for item in listed)
    assert private.http.get(f"image/0?collection={key[:-1]}x").status_code == 410
    for large in ("true", "false"):
        reply = private.http.get(f"image/0?collection={key}&large={large}")
        assert (reply.status_code, b"secret" in reply.content) == (200, False)


def test_a_folder_is_searched_with_two_packs(private: Server, tmp_path: Path) -> None:
    for i in range(4):
        draw(i)[0].save(tmp_path / f"{i}.png")
    write_animation(tmp_path / "clip.gif", [draw(0)[0], draw(1)[0]], 500)
    key = private.post("collections/open", place=str(tmp_path))["collection"]
    assert private.await_stage("ready", key)["searchable"] == 5
    content = data_uri((tmp_path / "clip.gif").read_bytes()).replace("image/png", "image/gif")
    sent = private.predict("clip", image_id=4, collection=key)  # after 0.png to 3.png
    assert sent == {"media_type": "image/gif", "data": content}
    entry = {"key": key, "kind": "folder", "title": tmp_path.name, "pictures": 5}
    assert entry in private.get("collections")["collections"]
    assert private.post("search", image=IMAGE, collection=key, pack="photos")["hits"]
    private.await_stage("ready", key, "photos")
    methods = ["vsepp", "photos/vsepp"]
    compared = private.get("compare", q=TEXT, methods=methods, k=2, collection=key)
    assert [item["method"] for item in compared["columns"]] == methods
    packs = {item["key"]: item for item in private.get("packs")["packs"]}
    assert packs["photos"]["open"]
    assert packs["scenes"]["own_images"]
    assert private.predict("open_collection", place=str(tmp_path))["collection"] == key
    reply = private.http.post("collections/open", json={"place": str(tmp_path / "none")})
    assert reply.status_code == 404


def test_openapi_lists_every_route(private: Server) -> None:
    described = private.get("openapi.json")["paths"]
    for _ in range(2):  # the response is not changed by the first request
        page = httpx.get(f"{private.url}/api/v1").text
        assert all(path in page for path in described)
        assert "src=" not in page
    assert {f"/api/v1{endpoint.path}" for endpoint in ENDPOINTS} == set(described)
    search = {item["name"] for item in described["/api/v1/search"]["get"]["parameters"]}
    assert {"q", "filter", "k", "collection"} <= search
    shared = {"200", "400", "403", "404", "410", "421", "429", "500", "503"}
    for path, operations in described.items():
        for method, operation in operations.items():
            extra = {"408", "413"} if method == "post" else set()
            extra |= {"206", "416"} if "/clip/" in path else set()
            assert operation["responses"].keys() == shared | extra
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for endpoint in ENDPOINTS:
        assert f"{endpoint.path}`" in text, endpoint.path
        assert f"`{endpoint.name}`" in text, endpoint.name
