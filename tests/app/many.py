"""A pack of every scoring rule with random heads, over pictures whose truth is known."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import describe_file, load_info, summarize_gallery, write_info
from polyview.models import build
from polyview.models.checkpoint import save_tensors
from tests.export.conftest import settle

# views of each; what is left out has one
ADDED: dict[str, dict[str, Any]] = {
    "mv_vse": {"embed_dim": 16, "views": 3},
    "pvse": {"embed_dim": 16, "views": 2},
    "avse": {"embed_dim": 16, "views": 2, "block_dim": 4, "temperature": 0.2},
    "mvam": {"embed_dim": 8, "views": 16, "code_space": "view"},
}
WIDTH, HEIGHT = 96, 72  # of the drawn pictures
SETTINGS = ("sky", "sand", "dusk")  # of their backgrounds, in turn


def box(index: int, place: int) -> tuple[int, int, int, int]:
    """Where `tests.app.conftest.draw` puts the things of picture `index`, a little larger."""
    left, top = 8 + 44 * place, 12 + index % 5 * 4
    return left, top, left + 35, top + 35


def write_truth(gallery: Path) -> None:
    """Adds masks, boxes, mentions, facts and right images to a gallery of drawn pictures."""
    content = json.loads((gallery / "gallery.json").read_text())
    (gallery / "masks").mkdir()
    written = [[c["text"] for c in image["captions"]] for image in content["images"]]
    for index, image in enumerate(content["images"]):
        image |= {"setting": SETTINGS[index % 3], "time": "night" if index % 4 == 0 else None}
        for caption in image["captions"]:
            caption["relevant"] = [row for row, own in enumerate(written) if caption["text"] in own]
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        for place, entry in enumerate(image["objects"]):
            x0, y0, x1, y1 = box(index, place)
            mask[y0:y1, x0:x1] = place + 1
            entry["box"] = [x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT]
        image["mask"] = f"masks/test-{index:06}.png"
        Image.fromarray(mask).save(gallery / image["mask"])
        for caption, mentions in zip(image["captions"], ([0, 1], [1]), strict=False):
            caption["mentions"] = mentions
    (gallery / "gallery.json").write_text(json.dumps(content))


def write_many(tiny_pack: Path, folder: Path) -> Path:
    """A copy of the tiny pack with more heads, which read the text encoder that is there."""
    shutil.copytree(tiny_pack, folder)
    write_truth(folder / "gallery")
    info = load_info(tiny_pack)
    like = info.methods["vse_infty"]
    methods, files = dict(info.methods), dict(info.files)
    for seed, (name, arguments) in enumerate(ADDED.items()):
        torch.manual_seed(seed)
        method = settle(build(name, like.image_dim, like.text_dim, arguments))
        with torch.no_grad():
            for weight in method.parameters():
                weight.mul_(3)  # otherwise attention is nearly the same everywhere
        head = f"{name}/head.safetensors"
        (folder / name).mkdir()
        save_tensors(folder / head, method.state_dict(), {"kind": "head", "method": name})
        methods[name] = replace(like, arguments=arguments, head=head)
        files[head] = describe_file(folder / head)
    files["gallery/gallery.json"] = describe_file(folder / "gallery/gallery.json")
    info = replace(info, folder=folder, methods=methods, files=files)
    write_info(replace(info, gallery=summarize_gallery(load_gallery(folder))))
    return folder
