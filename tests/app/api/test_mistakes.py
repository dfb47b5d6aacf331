"""The endpoint `mistakes` over HTTP: filters, pages, CSV tables, files of queries."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import draw
from tests.app.serving import Server, until


def answered(private: Server, **values: Any) -> dict[str, Any]:
    """Requests mistakes until all captions are ranked."""

    def ready() -> dict[str, Any] | None:
        answer = private.get("mistakes", **values)
        assert answer["state"] in ("running", "ready"), answer
        return answer if answer["state"] == "ready" else None

    return until(ready)


def test_filters_pages_and_tables(private: Server) -> None:
    usual, methods = private.get("mistakes"), private.get("info")["methods"]
    views = {methods[usual[side]]["views"] for side in "ab"}
    assert min(views) == 1 < max(views)  # by default, methods with one view and with several
    query: dict[str, Any] = {"a": "avse", "b": "pvse", "k": 5}
    whole = answered(private, **query, cell="all", order="caption", count=5000)
    rows = whole["captions"]
    assert [row["caption"] for row in rows] == list(range(49))
    assert sum(n for *_, n in whole["pairs"]) == whole["total"] == 49
    for cell, count in whole["counts"].items():
        part = answered(private, **query, cell=cell, count=7, start=max(0, count - 3))
        assert part["total"] == count
        assert len(part["captions"]) == min(3, count)
        assert {row["found"] for row in part["captions"]} <= {cell}
    gaps = answered(private, **query, cell="b", kind="word:red", count=5000)
    ratios = [row["rank_a"] / row["rank_b"] for row in gaps["captions"]]
    assert ratios == pytest.approx(sorted(ratios, reverse=True))
    assert sum(gaps["counts"].values()) == sum("red" in row["text"].split() for row in rows) > 9
    assert gaps["kinds"] == whole["kinds"]
    inside = answered(private, **query, cell="all", within="2,20,1,12", count=5000)
    expected = [r for r in rows if 2 <= r["rank_a"] <= 20 and r["rank_b"] <= 12]
    assert inside["total"] == sum(inside["counts"].values()) == len(expected) > 0
    assert inside["p"] == whole["p"]  # of all captions: a subset chosen by its ranks tests nothing
    labels = answered(private, **query, cell="labels", count=5000)
    assert labels["total"] == labels["labels"]
    for row in labels["captions"]:
        assert row["suspect"] != row["image"]
        assert row["suspect"] in (row["first_a"], row["first_b"])
    query |= {"cell": "all", "order": "b", "count": 3, "format": "csv"}
    reply = private.http.get("mistakes", params=query)
    assert reply.headers["content-type"].startswith("text/csv")
    table = list(csv.DictReader(io.StringIO(reply.text)))  # the whole cell, whatever the page
    assert sorted(int(row["caption"]) for row in table) == list(range(49))
    ranks = [int(row["rank_b"]) for row in table]
    assert ranks == sorted(ranks)


def test_a_collection_without_captions_asks_for_queries(private: Server, tmp_path: Path) -> None:
    for i in range(3):
        draw(i)[0].save(tmp_path / f"{i}.png")
    (tmp_path / "copy.png").write_bytes((tmp_path / "1.png").read_bytes())
    (tmp_path / "text.png").write_text("no image")
    where = {"collection": private.post("collections/open", place=str(tmp_path))["collection"]}
    private.await_stage("ready", **where)
    reply = private.http.get("mistakes", params=where)
    assert (reply.status_code, "send a CSV file" in reply.json()["error"]) == (400, True)
    content = b"query,image,kind\na red bar,copy.png,bar\na circle,2,circle\na bar,text.png,bar"
    queries = private.http.post("mistakes/queries", content=content, params=where).json()
    answer = answered(private, **where, **queries, k=4, cell="both")
    assert [item["kind"] for item in answer["kinds"]] == ["bar", "circle"]
    assert (answer["total"], answer["exact"]) == (2, False)
    assert {row["image"] for row in answer["captions"]} == {1, 2}  # 1.png for its copy
    assert answer["counts"]["neither"] == 1  # the unreadable image
    gone = private.http.get("mistakes", params={"queries": "0"})
    assert gone.status_code == 410
    assert "send the file again" in gone.json()["error"]
