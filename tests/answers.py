"""Records what a tree answers, and compares two recordings: the proof that nothing got lost.

    python -m tests.answers record DIR FILE     # about five minutes on two cores
    python -m tests.answers compare FILE OTHER

A tree is asked from outside alone, over HTTP, so that modules may move between two recordings.
`compare` ends with 1 where a value, a ranking or a name differs, or a score by more than
`TOLERANCE`. Sentences that differ are shown, and a person says whether they tell the same.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.app.serving import servers

TOLERANCE = 1e-4
Question = tuple[str, dict[str, Any]]  # a path of the API and its parameters
METHODS = ("vsepp", "vse_infty", "mv_vse", "pvse", "avse", "mvam", "base_attn")
ENSEMBLE = "mvam+vse_infty"
QUERIES = (
    "a dog", "a dog left of a red car", "exactly four dancers", "a cat on the beach at sunset",
    "in a farm field in the fog: a puppy", "count the drums: there are two", "a spaceship",
    "zzyzx qwertz", "Ein Hund", "2: dog + beach - people", "0.5: car + night - 2: snow",
)  # fmt: skip
_TIMES = {"ms", "seconds", "runs"}  # what another machine, or another minute, answers differently
_TIME = re.compile(r"[\d.,]+ m?s\b")


def record(tree: Path, file: Path) -> None:
    """Writes what a checkout answers about the scenes, and `photos` about the scenes' images."""
    images = str(tree / "app/bundled/scenes/gallery/images")
    photos = [("search", {"q": q, "method": m, "k": 5}) for q in QUERIES for m in METHODS]
    with tempfile.TemporaryDirectory() as folder:
        recording = {
            "scenes": _answers(tree, folder, _questions()),
            "photos": _answers(tree, folder, photos, "--pack", "photos", "--gallery", images),
        }
        text = json.dumps(recording, indent=1, ensure_ascii=False)
        file.write_text(text.replace(folder, "FOLDER").replace(str(tree), "TREE"), "utf-8")


def compare(a: Path, b: Path) -> int:
    """Prints how two recordings differ; returns the number of differences beside wording."""
    count, reworded = 0, Counter[tuple[str, str]]()
    for place, old, new in _differences(*(json.loads(file.read_text("utf-8")) for file in (a, b))):
        if isinstance(old, str) and isinstance(new, str) and " " in old + new:
            reworded[old, new] += 1
        else:
            count += 1
            print(f"{place}: {old!s:.200} and {new!s:.200}")
    print(f"{count} differences; {len(reworded)} sentences are worded otherwise:")
    for (before, after), times in reworded.most_common():
        print(f"\n{times} x", f"- {before}", f"+ {after}", sep="\n")
    return count


def _differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two answers differ, with both values; "missing" where there is none."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (old | new).keys() - _TIMES:
            parts = old.get(key, "missing"), new.get(key, "missing")
            yield from _differences(*parts, f"{place}/{key}")
    elif isinstance(old, str) and isinstance(new, str):
        if _TIME.sub("", old).split() != _TIME.sub("", new).split():
            yield place, old, new
    elif isinstance(old, float) and isinstance(new, float):
        if abs(old - new) > TOLERANCE:
            yield place, old, new
    elif old != new:
        yield place, old, new


def _questions() -> Iterator[Question]:
    for query in QUERIES:
        for method in (*METHODS, ENSEMBLE):
            yield "search", {"q": query, "method": method, "k": 20}
    for query in QUERIES[:3]:
        yield "search", {"q": query, "method": "mv_vse", "filter": ["setting:beach", "time:night"]}
        yield "compare", {"q": query, "methods": ",".join(METHODS), "k": 10}
        yield from (("explain", {"q": query, "image": 7, "method": name}) for name in METHODS)
    yield from (("search", {"q": QUERIES[0], "method": name, "k": 300}) for name in METHODS)
    yield "info", {}


def _answers(
    tree: Path, folder: str, questions: Iterable[Question], *arguments: str
) -> dict[str, Any]:
    """What a tree's app answers when all that it shows can be searched."""
    with servers(lambda: Path(folder), tree / "app" / "main.py") as start:
        client = start(*arguments, wait=False).http
        while client.get("info").json()["gallery"]["state"] != "ready":
            time.sleep(0.3)
        return {json.dumps([p, v]): client.get(p, params=v).json() for p, v in questions}


def main() -> int:
    """Records or compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.answers", description=__doc__)
    parser.add_argument("task", choices=("record", "compare"))
    parser.add_argument("first", type=Path, help="a checkout to record, or a recording")
    parser.add_argument("second", type=Path, help="the file to write, or another recording")
    values = parser.parse_args()
    if values.task == "compare":
        return 1 if compare(values.first, values.second) else 0
    record(values.first.resolve(), values.second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
