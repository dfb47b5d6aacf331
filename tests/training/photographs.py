"""Small folders of photographs in the field's form, and an image encoder that reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from polyview.models.checkpoint import save_tensors
from polyview.models.encoders.scene_net import SceneNet

COLORS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "grey": (128,) * 3}
SIZE, WIDTH = 32, 6  # of a picture for the encoder, of its features


def write_photographs(
    folder: Path,
    counts: dict[str, int],
    name: str = "flickr8k",
    captions: int = 5,
    folders: dict[str, str] | None = None,
) -> Path:
    """So many photographs of one colour each in each split, with captions that say which.

    `folders` are the splits' `filepath`, as COCO has it.
    """
    random, entries = np.random.default_rng(0), list[dict[str, Any]]()
    for split, count in counts.items():
        inside = {"filepath": folders[split]} if folders else {}
        where = folder / "images" / inside.get("filepath", "")
        where.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            i = len(entries)
            color = list(COLORS)[i % len(COLORS)]
            pixels = np.clip(COLORS[color] + random.integers(-30, 30, (30, 40, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(where / f"{i:03}.jpg")
            sentences = [{"raw": f"A {color} field, number {n} ."} for n in range(captions)]
            entry = {"filename": f"{i:03}.jpg", "split": split, "sentences": sentences}
            entries.append(entry | {"imgid": 100 + i} | inside)
    text = json.dumps({"dataset": name, "images": entries})
    (folder / f"dataset_{name}.json").write_text(text, "utf-8")
    return folder


def write_encoder(
    folder: Path, seed: int = 0, widths: tuple[int, ...] = (4, 4, WIDTH), size: int = SIZE
) -> Path:
    """A run folder with a tiny image encoder; by default 2 x 2 cells of `WIDTH` numbers."""
    torch.manual_seed(seed)
    blocks = (1,) * (len(widths) - 1)
    about = {
        "kind": "image_backbone",
        "arch": "scene_net",
        "arguments": {"widths": list(widths), "blocks": list(blocks)},
        "preprocess": {"size": size, "mean": [0.5] * 3, "std": [0.25] * 3, "fit": "stretch"},
    }
    save_tensors(folder / "best.safetensors", SceneNet(widths, blocks).state_dict(), about)
    return folder
