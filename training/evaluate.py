"""Measures a pack as it ships.

`python -m training.evaluate --pack app/bundled/scenes --method vse_infty --split test`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from export.pack import load_gallery, resolve, update_metrics
from export.runtime import Runtime
from training.evaluator import CaptionedImages, evaluate_method, image_features
from training.runs import hardware, write_text
from training.scenes.relevance import relevant_images
from training.scenes.store import load_scenes

COLUMNS = {
    "i2t_r1": "i2t R@1",
    "i2t_r5": "R@5",
    "i2t_r10": "R@10",
    "t2i_r1": "t2i R@1",
    "t2i_r5": "R@5",
    "t2i_r10": "R@10",
    "rsum": "rsum",
    "i2t_medr": "i2t MedR",
    "t2i_medr": "t2i MedR",
    "i2t_meanr": "i2t MeanR",
    "t2i_meanr": "t2i MeanR",
    "t2i_rprecision": "t2i R-P",
    "t2i_map_at_r": "t2i mAP@R",
    "i2t_rprecision": "i2t R-P",
    "i2t_map_at_r": "i2t mAP@R",
}


class _Files(Sequence[Image.Image]):
    """Pictures of a gallery, opened when they are asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        return Image.open(self.paths[index])


class _Arrays(Sequence[Image.Image]):
    """Pictures of a rendered split, (N, S, S, 3) uint8."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        return Image.fromarray(self.pixels[index])


def from_pack(pack: Path, split: str) -> CaptionedImages:
    """The gallery that comes with a pack."""
    gallery = load_gallery(pack)
    if gallery.split != split:
        raise ValueError(f'{pack} brings the split "{gallery.split}"; for "{split}" add --data DIR')
    captions = [caption.text for caption in gallery.captions]
    counts = [len(image.captions) for image in gallery.images]
    relevant = [np.array(caption.relevant) for caption in gallery.captions]
    known = any(len(rows) > 1 for rows in relevant)
    files = _Files([gallery.folder / image.file for image in gallery.images])
    rows = np.repeat(np.arange(len(counts)), counts)
    return CaptionedImages(files, captions, rows, relevant if known else None, split)


def from_scenes(data: Path, split: str) -> CaptionedImages:
    """A rendered split of the scenes world."""
    scenes = load_scenes(data / split)
    captions = [caption.text for scene in scenes.scenes for caption in scene.captions]
    counts = [len(scene.captions) for scene in scenes.scenes]
    rows = np.repeat(np.arange(len(counts)), counts)
    return CaptionedImages(
        _Arrays(scenes.images), captions, rows, relevant_images(scenes.scenes), split
    )


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Prints one line a method, as wide as the metrics there are."""
    columns = [key for key in COLUMNS if all(key in row for row in rows.values())]
    print("| method | " + " | ".join(COLUMNS[key] for key in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[key]:.1f}" for key in columns) + " |")


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description="Measure a pack: ONNX encoders and torch heads.")
    parser.add_argument("--pack", required=True, help="folder or Hub id of a pack")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--method", help="one of the pack's methods")
    which.add_argument("--all", action="store_true", help="every method of the pack")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--data", type=Path, help="scenes folder; without it the pack's own gallery"
    )
    parser.add_argument("--folds", type=int, default=1, help="average over so many folds")
    parser.add_argument("--json", type=Path, help="also write the metrics to this file")
    parser.add_argument("--write", action="store_true", help="store the metrics in the pack")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    options = parser.parse_args()
    try:
        rows = _measure(options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    print_table(rows)
    if options.json:
        write_text(options.json, json.dumps(rows, indent=2) + "\n")


def _measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    pack = resolve(options.pack)
    data = (
        from_scenes(options.data, options.split) if options.data else from_pack(pack, options.split)
    )
    runtime = Runtime.load(pack, options.device)
    if options.method and options.method not in runtime.info.methods:
        there = ", ".join(runtime.info.methods)
        raise ValueError(f'{pack} has no method "{options.method}"; choose one of {there}')
    names = list(runtime.info.methods) if options.all else [options.method]
    features = image_features(runtime, data)
    rows = {n: evaluate_method(runtime, n, data, features, options.folds) for n in names}
    if options.write:
        for name, values in rows.items():
            command = (
                f"python -m training.evaluate --pack {_named(options.pack)} "
                f"--method {name} --split {data.split}"
            )
            about = {"split": data.split, "command": command, "hardware": hardware()}
            update_metrics(pack, name, {**about, "values": values})
    return rows


def _named(pack: str) -> str:
    """The pack as typed, unless that tells where it lies on this machine."""
    return Path(pack).name if Path(pack).is_absolute() else pack


if __name__ == "__main__":
    main()
