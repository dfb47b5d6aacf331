"""A pack of every scoring rule with random heads, over pictures whose truth is known."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from app.collection import from_pack
from app.retriever import Retriever
from export.pack import describe_file, load_info, summarize_gallery, write_info
from export.runtime import Runtime
from models import build
from models.checkpoint import save_tensors
from tests.export.conftest import settle

if TYPE_CHECKING:
    from tests.app.conftest import Serve, Server

# views of each; what is left out has one
ADDED: dict[str, dict[str, Any]] = {
    "mv_vse": {"embed_dim": 16, "views": 3},
    "pvse": {"embed_dim": 16, "views": 2},
    "avse": {"embed_dim": 16, "views": 2, "block_dim": 4, "temperature": 0.2},
    "mvam": {"embed_dim": 8, "views": 16},
}
WIDTH, HEIGHT = 96, 72  # of the drawn pictures


def box(index: int, place: int) -> tuple[int, int, int, int]:
    """Where `tests.app.conftest.draw` puts the things of picture `index`, a little larger."""
    left, top = 8 + 44 * place, 12 + index % 5 * 4
    return left, top, left + 35, top + 35


def write_truth(gallery: Path) -> None:
    """Adds masks, boxes and mentions to a gallery of drawn pictures."""
    content = json.loads((gallery / "gallery.json").read_text())
    (gallery / "masks").mkdir()
    for index, image in enumerate(content["images"]):
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        for place, thing in enumerate(image["objects"]):
            x0, y0, x1, y1 = box(index, place)
            mask[y0:y1, x0:x1] = place + 1
            thing["box"] = [x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT]
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
        head = f"{name}/head.safetensors"
        (folder / name).mkdir()
        save_tensors(folder / head, method.state_dict(), {"kind": "head", "method": name})
        methods[name] = replace(like, arguments=arguments, head=head)
        files[head] = describe_file(folder / head)
    files["gallery/gallery.json"] = describe_file(folder / "gallery/gallery.json")
    gallery = summarize_gallery(folder)
    write_info(replace(info, folder=folder, methods=methods, files=files, gallery=gallery))
    return folder


@pytest.fixture(scope="session")
def many_pack(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of six methods; nobody may change it."""
    return write_many(tiny_pack, tmp_path_factory.mktemp("many") / "pack")


@pytest.fixture(scope="session")
def many_retriever(many_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """A filled retriever over that pack's gallery; nobody may change it."""
    runtime, cache = Runtime.load(many_pack, "cpu"), tmp_path_factory.mktemp("cache")
    retriever = Retriever(runtime, from_pack(many_pack), cache)
    retriever.index.start()
    assert retriever.index.wait(60)
    assert retriever.index.progress.stage == "ready"
    return retriever


@pytest.fixture(scope="session")
def many_server(serve: Serve, many_pack: Path) -> Server:
    """The app over that pack, ready to search."""
    server = serve("--pack", many_pack)
    server.ready()
    return server
