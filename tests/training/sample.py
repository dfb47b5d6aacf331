"""A sample of the bundled pack, and the recorded metrics of its methods on the sample.

Evaluating the whole pack takes most of a minute. After rebuilding the pack, run `make soak`, which
compares the metrics of the whole pack, then `python -m tests.training.sample`, which writes
`sample.json`.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import describe_file, summarize_gallery
from polyview.export.pack.schema import FOLDER, INDEX, MANIFEST
from polyview.training.evaluate import main
from tests.export.conftest import edited

BUNDLED = Path(__file__).parents[2] / "app" / "bundled" / "scenes"
SCENES = 50
TABLES = ("--views", "--foils")
NUMBERS = Path(__file__).with_name("sample.json")


def write_sample(out: Path, scenes: int = SCENES, methods: Sequence[str] = ()) -> Path:
    """Copies the pack with its first scenes and some methods, by default all.

    The captions' `relevant` images are limited to these scenes.
    """

    def left_out(_: str, names: list[str]) -> list[str]:
        """Selects images and masks of other scenes, such as "test-000303.webp"."""
        return [name for name in names if name[:5] == "test-" and int(name[5:11]) >= scenes]

    pack = Path(shutil.copytree(BUNDLED, out, ignore=left_out))
    index = pack / FOLDER / INDEX
    with edited(index) as content:
        content["images"] = content["images"][:scenes]
        for image in content["images"]:
            for caption in image["captions"]:
                caption["relevant"] = [row for row in caption["relevant"] if row < scenes]
    with edited(pack / MANIFEST) as info:
        for name in [name for name in info["methods"] if methods and name not in methods]:
            del info["methods"][name]
            for file in ("head.safetensors", "text_encoder.onnx"):
                del info["files"][f"{name}/{file}"]
        info["files"][f"{FOLDER}/{INDEX}"] = asdict(describe_file(index))
        info["gallery"] = asdict(summarize_gallery(load_gallery(pack)))
    return pack


def read_numbers() -> dict[str, dict[str, float]]:
    return json.loads(NUMBERS.read_text("utf-8"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = write_sample(Path(folder) / "scenes")
        out = Path(folder) / "measured.json"
        main(["--pack", str(made), "--all", *TABLES, "--device", "cpu", "--json", str(out)])
        measured = json.loads(out.read_text("utf-8"))["methods"]
        lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in measured.items()]
        NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
