"""Mistakes over HTTP: filters, pages, tables, files of queries."""

import csv
import io
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.api.conftest import ROOT
from tests.app.serving import Server


def answered(bundled: Server, **values: Any) -> dict[str, Any]:
    """The answer once all captions are ranked."""
    while (answer := bundled.get("mistakes", **values))["state"] == "running":
        time.sleep(0.2)
    assert answer["state"] == "ready", answer
    return answer


def test_pvse_wins_on_counts(bundled: Server) -> None:
    answer = answered(bundled, a="pvse", b="vse_infty")
    assert sum(answer["counts"].values()) == 5000
    assert {"two", "three", "four", "five"} & {each["word"] for each in answer["words_a"]}
    share = {item["kind"]: item["a"] / (item["a"] + item["b"]) for item in answer["kinds"]}
    assert max(share, key=lambda kind: share[kind]) == "counting"
    usual = answered(bundled)
    assert (usual["a"], usual["b"]) == ("vse_infty", "late")
    for first in answer["captions"][:3]:
        ranks = bundled.get("compare", q=first["text"], methods="pvse,vse_infty", k=1)["columns"]
        assert [each["best_true_rank"] for each in ranks] == [first["rank_a"], first["rank_b"]]
        tops = [each["hits"][0]["image_id"] for each in ranks]
        assert tops == [first["first_a"], first["first_b"]]


def test_filters_and_pages(bundled: Server) -> None:
    query = {"a": "avse", "b": "pvse", "k": 5}
    whole = answered(bundled, **query, cell="all", order="caption", count=5000)
    rows = whole["captions"]
    assert [row["caption"] for row in rows] == list(range(5000))
    assert sum(n for *_, n in whole["pairs"]) == whole["total"] == 5000
    for cell, count in whole["counts"].items():
        part = answered(bundled, **query, cell=cell, count=7, start=count - 3)
        assert part["total"] == count
        assert len(part["captions"]) == 3
        assert {row["found"] for row in part["captions"]} == {cell}
    gaps = answered(bundled, **query, cell="b", kind="animal", count=5000)
    ratios = [row["rank_a"] / row["rank_b"] for row in gaps["captions"]]
    assert ratios == pytest.approx(sorted(ratios, reverse=True))
    assert sum(gaps["counts"].values()) == 1000
    assert gaps["kinds"] == whole["kinds"]
    inside = answered(bundled, **query, cell="all", within="2,9,1,4", count=5000)
    expected = [r for r in rows if 2 <= r["rank_a"] <= 9 and r["rank_b"] <= 4]
    assert inside["total"] == sum(inside["counts"].values()) == len(expected) > 0
    assert inside["p"] == whole["p"]  # of all: who chooses by ranks tests nothing
    labels = answered(bundled, **query, cell="labels", count=5000)
    assert labels["total"] == labels["labels"] > 0
    for row in labels["captions"]:
        assert row["suspect"] != row["image"]
        assert row["suspect"] in (row["first_a"], row["first_b"])


def test_a_table_holds_all_of_a_cell(bundled: Server) -> None:
    query = {"a": "avse", "b": "pvse", "cell": "b", "order": "b"}
    rows = answered(bundled, **query, count=5000)["captions"]
    reply = bundled.http.get("mistakes", params={**query, "count": 3, "format": "csv"})
    assert reply.headers["content-type"].startswith("text/csv")
    table = list(csv.DictReader(io.StringIO(reply.text)))
    assert [int(row["caption"]) for row in table] == [row["caption"] for row in rows]
    assert len(table) > 3
    ranks = [int(row["rank_b"]) for row in table]
    assert ranks == sorted(ranks)


def test_a_collection_without_captions_asks_for_queries(bundled: Server, tmp_path: Path) -> None:
    for image in sorted((ROOT / "app/bundled/scenes/gallery/images").iterdir())[:3]:
        shutil.copyfile(image, tmp_path / image.name)
    key = bundled.post("collections/open", place=str(tmp_path))["collection"]
    where = {"collection": key, "pack": "scenes"}
    bundled.await_stage("ready", **where)
    reply = bundled.http.get("mistakes", params=where)
    assert (reply.status_code, "send a CSV file" in reply.json()["error"]) == (400, True)
    content = b"query,image,kind\nan owl,test-000001.webp,bird\na dog,2,dog"
    queries = bundled.http.post("mistakes/queries", content=content, params=where).json()
    answer = answered(bundled, **where, **queries, k=3, cell="both")
    assert [item["kind"] for item in answer["kinds"]] == ["bird", "dog"]
    assert (answer["total"], answer["exact"]) == (2, False)
    gone = bundled.http.get("mistakes", params={"queries": "0"})
    assert gone.status_code == 410
    assert "send the file again" in gone.json()["error"]
