"""A pack with random heads of every scoring rule, over images with masks and facts."""

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
from tests.export.conftest import edited, settle

# arguments of the added methods, all of several views
ADDED: dict[str, dict[str, Any]] = {
    "mv_vse": {"embed_dim": 16, "views": 3},
    "pvse": {"embed_dim": 16, "views": 2},
    "avse": {"embed_dim": 16, "views": 2, "block_dim": 4, "temperature": 0.2},
    "mvam": {"embed_dim": 8, "views": 16, "code_space": "view"},
}
WIDTH, HEIGHT = 96, 72  # of the drawn images
SETTINGS = ("sky", "sand", "dusk")  # of the backgrounds, in turn


def write_truth(gallery: Path) -> None:
    """Adds masks, boxes, mentions, facts and right images to a gallery of drawn images."""
    (gallery / "masks").mkdir()
    with edited(gallery / "gallery.json") as content:
        texts = [[c["text"] for c in image["captions"]] for image in content["images"]]
        for index, image in enumerate(content["images"]):
            image |= {"setting": SETTINGS[index % 3], "time": "night" if index % 4 == 0 else None}
            for caption in image["captions"]:
                relevant = [row for row, own in enumerate(texts) if caption["text"] in own]
                caption["relevant"] = relevant
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            for place, entry in enumerate(image["objects"]):
                left, top = 8 + 44 * place, 12 + index % 5 * 4  # as in `draw`
                mask[top : top + 35, left : left + 35] = place + 1
                right, bottom = (left + 35) / WIDTH, (top + 35) / HEIGHT
                entry["box"] = [left / WIDTH, top / HEIGHT, right, bottom]
            image["mask"] = f"masks/test-{index:06}.png"
            Image.fromarray(mask).save(gallery / image["mask"])
            for caption, mentions in zip(image["captions"], ([0, 1], [1]), strict=False):
                caption["mentions"] = mentions


def write_many(tiny_pack: Path, folder: Path) -> Path:
    """Writes a copy of the tiny pack with more heads, which share its text encoder."""
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
                weight.mul_(3)  # otherwise attention is nearly uniform
        head = f"{name}/head.safetensors"
        (folder / name).mkdir()
        save_tensors(folder / head, method.state_dict(), {"kind": "head", "method": name})
        methods[name] = replace(like, arguments=arguments, head=head)
        files[head] = describe_file(folder / head)
    files["gallery/gallery.json"] = describe_file(folder / "gallery/gallery.json")
    info = replace(info, folder=folder, methods=methods, files=files)
    write_info(replace(info, gallery=summarize_gallery(load_gallery(folder))))
    return folder
