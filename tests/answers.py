"""Records what a tree answers, and compares two recordings: the proof that nothing got lost.

    python -m tests.answers record --tree DIR --out FOLDER     # about five minutes on two cores
    python -m tests.answers compare FOLDER OTHER

A tree is asked from outside alone, over HTTP and by its command lines, so that modules may move
between two recordings. A recording is a folder of JSON files, one for each of `SECTIONS`. `compare`
ends with 1 where a value, a ranking or a name differs, or a score by more than `TOLERANCE`.
Sentences that differ are shown side by side, and a person says whether they tell the same.
"""

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image, ImageDraw

from tests.app.serving import servers

TOLERANCE = 1e-4
METHODS = ("vsepp", "vse_infty", "mv_vse", "pvse", "avse", "mvam", "base_attn")
QUERIES = (
    "a dog", "a red car", "a dog left of a red car", "three apples", "exactly four dancers",
    "a cat on the beach at sunset", "a snowman in the fog", "a magnet right of a lollipop",
    "a group of dancers is on the seabed", "in a farm field in the fog: a puppy", "a spaceship",
    "we can see a bear and a penguin", "count the drums: there are two", "a guitar and a saxophone",
    "a tree in the forest at night", "an umbrella above a sofa", "zzyzx qwertz", "Ein Hund",
    "2: dog + beach - people", "0.5: car + night - 2: snow",
)  # fmt: skip
ENSEMBLES = ("mvam+vse_infty", "mv_vse+vse_infty+avse")
FILTERS = (["setting:beach", "setting:underwater"], ["setting:beach", "time:night"])
PHOTO_QUERIES = ("a dog runs", "a red ball", "two people at night", "green - red")
NONSENSE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("search", {"q": ""}),
    ("search", {"q": "x" * 10_001}),
    ("search", {"q": "a dog", "method": "none"}),
    ("search", {"q": "a dog", "method": "mvam+mvam"}),
    ("search", {"q": "a dog", "k": 0}),
    ("search", {"q": "a dog", "filter": "colour:red"}),
    ("search", {"q": "a dog", "filter": "setting:moon"}),
    ("search", {"q": "1e99: dog + beach"}),
    ("search", {"q": "dog + "}),
    ("compare", {"q": "a dog", "methods": "mvam"}),
    ("compare", {"q": "a dog", "methods": "mvam,mvam"}),
    ("compare", {"q": "a dog", "methods": "mvam,vsepp", "k": 101}),
    ("explain", {"q": "a dog", "image": 99_999}),
    ("explain", {"q": "a dog", "image": -1}),
)
REFUSED = (
    "app/main.py --pack",
    "app/main.py --pack= --port 7860",
    "app/main.py --pack nowhere",
    "app/main.py --gallery nowhere",
    "app/main.py --gallery qdrant://host",
    "app/main.py --device tpu",
    "app/main.py --port 0",
    "-m app.migrate --gallery nowhere --to qdrant://127.0.0.1:1/photos",
    "-m export.hub pull nowhere",
    "-m export.hub push nowhere you/pack",
    "-m export.official --from vse_infty nowhere --out nowhere",
    "-m export.space --pack nowhere --out nowhere",
    "-m export.to_onnx --backbone nowhere --run nowhere --out nowhere",
    "-m training.distill --recipe nothing --out nowhere",
    "-m training.evaluate --pack app/bundled/scenes --ensemble mvam+none",
    "-m training.evaluate --pack app/bundled/scenes --method none",
    "-m training.evaluate --pack nowhere",
    "-m training.evaluate --run nowhere",
    "-m training.plot nowhere",
    "-m training.pretrain --recipe nothing --out nowhere",
    "-m polyview scenes --out nowhere --split none --count 1",
    "-m training.sweep nothing",
    "-m training.train --recipe nothing --out nowhere",
    "-m training.train --resume --out nowhere",
    "-m training.train --recipe scenes/vse_infty --out nowhere --set data=nowhere",
    "-m training.train --recipe scenes/vse_infty --out nowhere --set epochs=-1",
    "-m training.train --recipe scenes/vse_infty --out nowhere --set nothing=1",
    "-m training.train --recipe scenes/vse_infty --out nowhere --set objective.hardest=no",
    "-m training.train --recipe scenes/vse_infty --out nowhere --set objective.margin=abc",
)
_TIMES = {"ms", "seconds", "runs"}  # what another machine, or another minute, answers differently
_TIME = re.compile(r"[\d.,]+ m?s\b")


def record(tree: Path, out: Path, names: Sequence[str]) -> None:
    """Writes what a tree answers, one file a section.

    Args:
        tree: a checkout.
        out: a folder; a section of an earlier recording is replaced.
        names: the sections to record.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(SECTIONS[name](tree, Path(folder)), indent=1, ensure_ascii=False)
            text = text.replace(folder, "FOLDER").replace(str(tree), "TREE")
        (out / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


def scenes(tree: Path, folder: Path) -> dict[str, Any]:
    """What the HTTP API answers about the bundled scenes."""
    with _app(tree, folder) as client:
        answers = {
            json.dumps([path, values]): _ask(client, path, values) for path, values in _questions()
        }
        images = tree / "app/bundled/scenes/gallery/images"
        for name in ("test-000000.webp", "test-000303.webp"):
            for method in METHODS:
                values: dict[str, str | int] = {"method": method, "k": 10}
                content = (images / name).read_bytes()
                headers = {"Content-Type": "image/webp"}
                reply = client.post("search", params=values, content=content, headers=headers)
                answer = reply.json()
                answers[json.dumps([name, method])] = answer
        return answers


def photos(tree: Path, folder: Path) -> dict[str, Any]:
    """What `photos` answers about a folder and an archive of drawn images."""
    drawn = folder / "drawn"
    _draw(drawn)
    archive = shutil.make_archive(str(folder / "archive"), "zip", drawn)
    questions = [("search", {"q": q, "method": m, "k": 5}) for q in PHOTO_QUERIES for m in METHODS]
    answers: dict[str, Any] = {}
    for gallery in (drawn, Path(archive)):
        home = folder / f"home-{gallery.suffix}"
        with _app(tree, home, "--pack", "photos", "--gallery", str(gallery)) as client:
            for path, values in [("info", {}), *questions]:
                key = json.dumps([gallery.name, path, values])
                answers[key] = _ask(client, path, values)
    return answers


def tables(tree: Path, folder: Path) -> dict[str, Any]:
    """What `training.evaluate` prints about the bundled scenes, number by number."""
    command = "-m training.evaluate --pack app/bundled/scenes --split test"
    more = "--ensemble mv_vse+vse_infty --compare mv_vse,vse_infty --method mv_vse --views"
    return {
        extra: _run(tree, folder, [*command.split(), *extra.split()]).stdout.split()
        for extra in ("--all", more)
    }


def cards(tree: Path, folder: Path) -> dict[str, Any]:
    """What the Python of each bundled pack's card prints about an image."""
    image = tree / "app/bundled/scenes/gallery/images/test-000303.webp"
    printed = {}
    for pack in ("scenes", "photos"):
        text = (tree / "app/bundled" / pack / "README.md").read_text("utf-8")
        code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
        for name, ours in (
            ("PATH_OR_HUB_ID", f"app/bundled/{pack}"),
            ("picture.jpg", str(image)),
            ("image.jpg", str(image)),
        ):
            code = code.replace(name, ours)
        done = _run(tree, folder, ["-c", code])
        printed[pack] = done.stdout.split() or done.stderr
    return printed


def refusals(tree: Path, folder: Path) -> dict[str, Any]:
    """How command lines end that make no sense: their status and last line."""
    ends = {}
    for command in REFUSED:
        done = _run(tree, folder, command.split())
        ends[command] = {"status": done.returncode, "end": done.stderr.strip().split("\n")[-1]}
    return ends


SECTIONS: Mapping[str, Callable[[Path, Path], dict[str, Any]]] = {
    section.__name__: section for section in (cards, refusals, tables, scenes, photos)
}


def compare(a: Path, b: Path) -> int:
    """Prints how two recordings differ.

    Returns:
        How many differences there are, sentences that are worded otherwise not counted.
    """
    differences: list[str] = []
    reworded: Counter[tuple[str, str]] = Counter()
    for name in SECTIONS:
        files = [side / f"{name}.json" for side in (a, b)]
        if missing := [str(file) for file in files if not file.is_file()]:
            print(f"{name}: not recorded in {' and '.join(missing)}")
            continue
        old, new = (json.loads(file.read_text("utf-8")) for file in files)
        results = list(_differ(old, new, reworded))
        print(f"{name}: {len(old)} recorded, {len(results)} differences")
        differences += [f"{name}{difference}" for difference in results]
    print(*differences, sep="\n")
    print(f"\n{len(reworded)} sentences are worded otherwise:")
    for (before, after), times in reworded.most_common():
        print(f"\n{times} x", *_side_by_side(before, after), sep="\n")
    return len(differences)


def _questions() -> Iterator[tuple[str, dict[str, Any]]]:
    for query in QUERIES:
        yield from (("search", {"q": query, "method": name, "k": 20}) for name in METHODS)
    for query in QUERIES[:3]:
        for method in ENSEMBLES:
            yield "search", {"q": query, "method": method, "k": 20}
        for filters in FILTERS:
            yield "search", {"q": query, "method": "mv_vse", "k": 20, "filter": filters}
        yield "compare", {"q": query, "methods": ",".join([*METHODS, ENSEMBLES[0]]), "k": 10}
        for image in (0, 7):
            yield from (("explain", {"q": query, "image": image, "method": m}) for m in METHODS)
    yield from (("search", {"q": QUERIES[0], "method": name, "k": 300}) for name in METHODS)
    yield "compare", {"q": "a magnet right of a lollipop", "methods": "mv_vse,mvam", "k": 30}
    yield "info", {}
    yield from NONSENSE


def _ask(client: httpx.Client, path: str, values: Mapping[str, Any]) -> Any:
    return client.get(path, params=dict(values)).json()


@contextmanager
def _app(tree: Path, folder: Path, *arguments: str) -> Iterator[httpx.Client]:
    """A client of a tree's app, when all that it shows can be searched."""
    folder.mkdir(exist_ok=True)
    with servers(lambda: folder, tree / "app" / "main.py") as start:
        client = start(*arguments, wait=False).http
        while client.get("info").json()["gallery"]["state"] != "ready":
            time.sleep(0.3)
        yield client


def _run(tree: Path, folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=_environment(folder) | {"COLUMNS": "100", "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=1800,
        stdin=subprocess.DEVNULL,
    )


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "POLYVIEW_CACHE": str(folder / "cache"),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "HF_HUB_OFFLINE": "1",
    }


def _draw(folder: Path) -> None:
    """Twelve images, a copy of one, one that is cut off, and a file that is none."""
    folder.mkdir()
    draw = random.Random(0)
    for i in range(12):
        image = Image.new("RGB", (240, 160 + 20 * (i % 4)), (20 * i, 250 - 15 * i, 120))
        pen = ImageDraw.Draw(image)
        for _ in range(6):
            x, y, size = draw.randrange(200), draw.randrange(140), draw.randrange(10, 90)
            colour = (draw.randrange(256), draw.randrange(256), draw.randrange(256))
            (pen.ellipse if draw.random() < 0.5 else pen.rectangle)(
                (x, y, x + size, y + size), colour
            )
        image.save(folder / f"drawn-{i:02}.png")
    whole = (folder / "drawn-00.png").read_bytes()
    (folder / "copy.png").write_bytes(whole)
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "note.txt").write_text("no image\n")


def _differ(old: Any, new: Any, reworded: Counter[tuple[str, str]]) -> Iterator[str]:
    """Where two answers differ, and how; sentences are counted in `reworded` instead."""
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f": {len(old)} and {len(new)} values: {_short(old)} and {_short(new)}"
        shared = min(len(old), len(new))
        old, new = dict(enumerate(old[:shared])), dict(enumerate(new[:shared]))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from (f"/{key}: is missing" for key in old if key not in new)
        yield from (f"/{key}: is new" for key in new if key not in old)
        for key in [key for key in old if key in new and key not in _TIMES]:
            yield from (f"/{key}{results}" for results in _differ(old[key], new[key], reworded))
    elif isinstance(old, str) and isinstance(new, str) and " " in old + new:
        before, after = (" ".join(_TIME.sub("", text).split()) for text in (old, new))
        if before != after:
            reworded[before, after] += 1
    elif old != new and not _close(old, new):
        yield f": {_short(old)} and {_short(new)}"


def _close(old: Any, new: Any) -> bool:
    """Whether two values are scores that hardly differ."""
    numbers = isinstance(old, float | int) and isinstance(new, float | int)
    whole = isinstance(old, int) and isinstance(new, int)
    return numbers and not whole and abs(old - new) <= TOLERANCE


def _short(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.200}"


def _side_by_side(old: str, new: str) -> Iterator[str]:
    """The words in which two texts differ, with some around them."""
    a, b = old.split(), new.split()
    if len(a) + len(b) < 100:
        yield from (f"- {' '.join(a)}", f"+ {' '.join(b)}")
        return
    for group in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(4):
        (_, a0, _, b0, _), (_, _, a1, _, b1) = group[0], group[-1]
        yield from (f"- {' '.join(a[a0:a1])}", f"+ {' '.join(b[b0:b1])}")


def main(argv: Sequence[str]) -> int:
    """Records or compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.answers", description=__doc__)
    tasks = parser.add_subparsers(dest="task", required=True)
    recording = tasks.add_parser("record", help="ask a tree everything")
    recording.add_argument("--tree", type=Path, required=True, help="a checkout")
    recording.add_argument("--out", type=Path, required=True, help="where the answers go")
    recording.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    comparing = tasks.add_parser("compare", help="say how two recordings differ")
    comparing.add_argument("a", type=Path)
    comparing.add_argument("b", type=Path)
    values = parser.parse_args(argv)
    if values.task == "compare":
        return 1 if compare(values.a, values.b) else 0
    record(values.tree.resolve(), values.out, values.only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
