"""Small folders of photographs with Karpathy's JSON, and an image encoder for them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.export.conftest import write_backbone

COLORS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "grey": (128,) * 3}
SIZE, WIDTH = 32, 6  # input size and feature width of the encoder


def write_photographs(
    folder: Path,
    counts: dict[str, int],
    name: str = "flickr8k",
    captions: int = 5,
    folders: dict[str, str] | None = None,
) -> Path:
    """Writes `counts` photographs of one colour per split, with captions that name the colour.

    `folders` is the `filepath` of each split, as in Karpathy's JSON of COCO.
    """
    random, entries = np.random.default_rng(0), list[dict[str, Any]]()
    for split, count in counts.items():
        inside = {"filepath": folders[split]} if folders else {}
        target = folder / "images" / inside.get("filepath", "")
        target.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            i = len(entries)
            color = list(COLORS)[i % len(COLORS)]
            pixels = np.clip(COLORS[color] + random.integers(-30, 30, (30, 40, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(target / f"{i:03}.jpg")
            sentences = [{"raw": f"A {color} field, number {n} ."} for n in range(captions)]
            entry = {"filename": f"{i:03}.jpg", "split": split, "sentences": sentences}
            entries.append(entry | {"imgid": 100 + i} | inside)
    text = json.dumps({"dataset": name, "images": entries})
    (folder / f"dataset_{name}.json").write_text(text, "utf-8")
    return folder


def write_encoder(
    folder: Path, seed: int = 0, widths: tuple[int, ...] = (4, 4, WIDTH), size: int = SIZE
) -> Path:
    """Writes a run of a tiny image encoder; by default 2 x 2 cells with `WIDTH` features."""
    torch.manual_seed(seed)
    return write_backbone(folder, widths, size, trained=False)
