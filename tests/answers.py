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
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gradio_client import Client, handle_file
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
FILTERS = ({"setting": ["beach", "underwater"]}, {"setting": ["beach"], "time": ["night"]})
PHOTO_QUERIES = ("a dog runs", "a red ball", "two people at night", "green - red")
LINKS = (
    "", "q=a+dog", "q=a+dog&method=mvam&k=12&only=setting:beach&tab=search", "like=7&q=snow",
    "tab=views&image=7&method=avse&q=a+dog", "tab=compare", "tab=benchmark", "tab=models",
    "q=a+dog&k=many&method=none&only=setting:moon&like=99999", "tab=views&image=99999&method=x",
)  # fmt: skip
# what happens when a tab is opened, and whether it reads the page's address
TABS = {
    "search_open": True, "compare_open": False, "views_open": True, "benchmark_open": False,
    "models_open": False,
}  # fmt: skip
NONSENSE: tuple[tuple[str, list[Any]], ...] = (
    ("/search_text", [""]),
    ("/search_text", ["   "]),
    ("/search_text", ["x" * 10_001]),
    ("/search_text", [7]),
    ("/search_text", ["a dog", "none"]),
    ("/search_text", ["a dog", "mvam+mvam"]),
    ("/search_text", ["a dog", "mvam", 0]),
    ("/search_text", ["a dog", "mvam", 2.5]),
    ("/search_text", ["a dog", "mvam", 5, {"colour": ["red"]}]),
    ("/search_text", ["a dog", "mvam", 5, {"setting": ["moon"]}]),
    ("/search_text", ["a dog", "mvam", 5, ["beach"]]),
    ("/search_text", ["1e99: dog + beach"]),
    ("/search_text", ["dog + "]),
    ("/search_image", [None]),
    ("/search_image", [{"path": "/etc/passwd"}]),
    ("/compare", ["a dog", ["mvam"]]),
    ("/compare", ["a dog", ["mvam", "mvam"]]),
    ("/compare", ["a dog", ["mvam", "vsepp"], 101]),
    ("/compare", ["a dog", "mvam"]),
    ("/views", [99_999, "mvam", ""]),
    ("/views", [-1, "mvam", ""]),
    ("/views", [1.5, "mvam", ""]),
    ("/views", [1, "mvam+vsepp", ""]),
    ("/views", [1, "mvam", 7]),
    ("/lens", ["a dog", "mv_vse", [1, 1], 3]),
    ("/lens", ["a dog", "mv_vse", [0, 0, 0], 3]),
    ("/lens", ["a dog", "mv_vse", [1, 2, 0], 3]),
    ("/lens", ["a dog", "mv_vse", ["a", 1, 1], 3]),
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
    "-m training.scenes --out nowhere --split none --count 1",
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
_CODE = {".py", ".pyc", ".css", ".js", ".jinja"}  # laid out anew as the tree is
_SOURCES = ("app", "models", "export", "training", "benchmarks", "docs")


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
    """What the endpoints answer about the bundled scenes, and what the tabs say when opened."""
    with _app(tree, folder) as url:
        client = Client(url, verbose=False)
        api = client.view_api(return_format="dict", print_info=False)
        answers: dict[str, Any] = {"endpoints": api["named_endpoints"]}
        for endpoint, values in _questions(tree):
            answers[json.dumps([endpoint, *values])] = _ask(client, endpoint, values)
        with urllib.request.urlopen(f"{url}/config") as reply:
            config = json.load(reply)
        for event, reads in TABS.items():
            for i, link in enumerate(LINKS if reads else LINKS[:1]):
                answers[f"{event} ?{link}"] = _open(url, config, event, link, f"{event}-{i}")
        return answers


def photos(tree: Path, folder: Path) -> dict[str, Any]:
    """What `photos` answers about a folder and an archive of drawn images."""
    drawn = folder / "drawn"
    _draw(drawn)
    archive = shutil.make_archive(str(folder / "archive"), "zip", drawn)
    answers: dict[str, Any] = {}
    for gallery in (drawn, Path(archive)):
        home = folder / f"home-{gallery.suffix}"
        with _app(tree, home, "--pack", "photos", "--gallery", str(gallery)) as url:
            client = Client(url, verbose=False)
            asked: list[tuple[str, list[Any]]] = [("/info", [])]
            asked += [("/search_text", [q, m, 5]) for q in PHOTO_QUERIES for m in METHODS]
            asked += [("/views", [i, m, "a red ball"]) for i in (0, 3) for m in METHODS]
            for endpoint, values in asked:
                key = json.dumps([gallery.name, endpoint, *values])
                answers[key] = _ask(client, endpoint, values)
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
        for name, ours in (("PATH_OR_HUB_ID", f"app/bundled/{pack}"), ("picture.jpg", str(image))):
            code = code.replace(name, ours)
        done = _run(tree, folder, ["-c", code])
        printed[pack] = done.stdout.split() or done.stderr
    return printed


def commands(tree: Path, folder: Path) -> dict[str, Any]:
    """Every command line that documents name or that can be started, with its options."""

    def about(command: str) -> dict[str, Any]:
        done = _run(tree, folder, [*command.split(), "--help"])
        options = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", done.stdout)))
        return {"status": done.returncode, "options": options, "help": done.stdout.split("\n\n")}

    def all_about(command: str) -> dict[str, dict[str, Any]]:
        known = {command: about(command)}
        below = re.search(r"\] \{([\w,-]+)\} \.\.\.", known[command]["help"][0])
        for name in below[1].split(",") if below else ():
            known[f"{command} {name}"] = about(f"{command} {name}")
        return known

    known: dict[str, Any] = {
        f"make {name}": True
        for name in re.findall(r"^([a-z-]+):", (tree / "Makefile").read_text(), re.MULTILINE)
    }
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(all_about, _named_commands(tree)):
            known |= found
    return known


def refusals(tree: Path, folder: Path) -> dict[str, Any]:
    """How command lines end that make no sense: their status and last line."""
    ends = {}
    for command in REFUSED:
        done = _run(tree, folder, command.split())
        ends[command] = {"status": done.returncode, "end": done.stderr.strip().split("\n")[-1]}
    return ends


def variables(tree: Path, _: Path) -> dict[str, Any]:
    """What looks like the name of an environment variable in the sources."""
    texts = (file.read_text() for part in _SOURCES for file in (tree / part).rglob("*.py"))
    names = {
        name for text in texts for name in re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', text)
    }
    return dict.fromkeys(sorted(names), True)


def space(tree: Path, folder: Path) -> dict[str, Any]:
    """The folder of a Space: each file that is no code, with its size and SHA-256."""
    arguments = f"-m export.space --pack scenes --pack photos --out {folder / 'space'}"
    done = _run(tree, folder, arguments.split())
    if done.returncode:
        return {"failed": done.stderr}
    files = (file for file in sorted((folder / "space").rglob("*")) if file.is_file())
    return {
        file.relative_to(folder / "space").as_posix(): [
            file.stat().st_size,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        ]
        for file in files
        if file.suffix not in _CODE
    }


SECTIONS: Mapping[str, Callable[[Path, Path], dict[str, Any]]] = {
    section.__name__: section
    for section in (variables, space, cards, commands, refusals, tables, scenes, photos)
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
        found = list(_differ(old, new, reworded))
        print(f"{name}: {len(old)} recorded, {len(found)} differences")
        differences += [f"{name}{difference}" for difference in found]
    print(*differences, sep="\n")
    print(f"\n{len(reworded)} sentences are worded otherwise:")
    for (before, after), times in reworded.most_common():
        print(f"\n{times} x", *_side_by_side(before, after), sep="\n")
    return len(differences)


def _questions(tree: Path) -> Iterator[tuple[str, list[Any]]]:
    for query in QUERIES:
        yield from (("/search_text", [query, method, 20]) for method in METHODS)
    for query in QUERIES[:3]:
        for method in ENSEMBLES:
            yield "/search_text", [query, method, 20]
        for wanted in FILTERS:
            yield "/search_text", [query, "mv_vse", 20, wanted]
        yield "/compare", [query, [*METHODS, ENSEMBLES[0]], 10]
        yield from (("/views", [i, method, query]) for i in (0, 7) for method in METHODS)
    yield from (("/search_text", [QUERIES[0], method, 300]) for method in METHODS)
    yield "/search_text", [QUERIES[0]]
    yield "/compare", ["a magnet right of a lollipop", ["mv_vse", "mvam"], 30]
    yield from (("/views", [7, method]) for method in METHODS)
    weights = {
        "mv_vse": [1, 0, 0.5],
        "pvse": [0, 1],
        "avse": [1, 0.2],
        "mvam": [1.0] * 8 + [0.0] * 8,
    }
    yield from (("/lens", [QUERIES[0], method, some, 20]) for method, some in weights.items())
    images = tree / "app/bundled/scenes/gallery/images"
    for name in ("test-000000.webp", "test-000303.webp"):
        image = handle_file(str(images / name))
        yield from (("/search_image", [image, method, 10]) for method in METHODS)
        yield "/search_image", [image, "mv_vse", 10, "at night", 0.5, FILTERS[0]]
    yield "/benchmark", []
    yield "/info", []
    yield from NONSENSE


def _ask(client: Client, endpoint: str, values: Sequence[Any]) -> Any:
    try:
        return client.predict(*values, api_name=endpoint)
    except Exception as error:  # whatever it is, it is the answer
        return {"raised": f"{type(error).__name__}: {error}"}


def _open(url: str, config: Mapping[str, Any], event: str, link: str, session: str) -> Any:
    """What an event of the page says when a page of that address has just been opened."""
    at = next((d for d in config["dependencies"] if d["api_name"] == event), None)
    if at is None:
        return "there is no such event"
    values = {part["id"]: part["props"].get("value") for part in config["components"]}
    data = {
        "data": [values[part] for part in at["inputs"]],
        "fn_index": at["id"],
        "session_hash": session,
    }
    join = urllib.request.Request(
        f"{url}/gradio_api/queue/join?{link}",
        json.dumps(data).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(join).close()
    told: list[str] = []
    with urllib.request.urlopen(f"{url}/gradio_api/queue/data?session_hash={session}") as lines:
        for line in lines:
            message = json.loads(line[5:]) if line.startswith(b"data:") else {}
            told += _texts(message.get("log", []))
            if message.get("msg") == "process_completed":
                return {"success": message["success"], "texts": told + _texts(message["output"])}
    return "the connection ended"


def _texts(value: Any) -> list[str]:
    """The sentences that a visitor can read or hear in a part of the page."""
    if isinstance(value, Mapping):
        return [
            text for key, part in value.items() if key != "render_config" for text in _texts(part)
        ]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    if not isinstance(value, str) or " " not in value or value.startswith("data:"):
        return []
    reader = _Reader()
    reader.feed(value)
    return [" ".join(" ".join(reader.texts).split())]


class _Reader(HTMLParser):
    """Collects what is written in HTML, and what is said of images and buttons."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.texts += [text or "" for name, text in attrs if name in ("alt", "title", "aria-label")]


@contextmanager
def _app(tree: Path, folder: Path, *arguments: str) -> Iterator[str]:
    """The address of a tree's app, when all that it shows can be searched."""
    folder.mkdir(exist_ok=True)
    with servers(lambda: folder, tree / "app" / "main.py") as start:
        yield start(*arguments).url


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


def _named_commands(tree: Path) -> list[str]:
    documents = [*tree.glob("*.md"), *tree.glob("docs/*.md"), tree / "Makefile"]
    named = set()
    for document in documents:
        found = re.findall(r"python3? (?:-m ([\w.]+)|(\w[\w/]*\.py))", document.read_text("utf-8"))
        named |= {f"-m {module.rstrip('.')}" if module else script for module, script in found}
    for part in _SOURCES:
        for file in (tree / part).rglob("*.py"):
            if '__name__ == "__main__"' in file.read_text("utf-8") and file.name != "main.py":
                module = ".".join(file.relative_to(tree).with_suffix("").parts)
                named.add(f"-m {module.removesuffix('.__main__')}")
    left_out = ("-m venv", "-m pip", "-m pytest", "-m tests")
    return sorted(command for command in named if not command.startswith(left_out))


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
            yield from (f"/{key}{found}" for found in _differ(old[key], new[key], reworded))
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
    given = parser.parse_args(argv)
    if given.task == "compare":
        return 1 if compare(given.a, given.b) else 0
    record(given.tree.resolve(), given.out, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
