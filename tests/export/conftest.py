"""Run folders with small random networks, and packs built from them; edits of packs."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from tokenizers import Tokenizer
from torch import nn

from polyview.export.encoders.sources import describe_image_source
from polyview.export.pack.reading import describe_file
from polyview.export.pack.schema import Labels
from polyview.export.to_onnx import export_runs
from polyview.models import argument_defaults, build
from polyview.models.checkpoint import save_tensors
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.scene_net import SceneNet
from polyview.training.data.texts import build_tokenizer
from polyview.training.objectives import OBJECTIVES
from tests.conftest import made_once
from tests.export.hub_server import HubState, running_hub

TRAINED = tuple(OBJECTIVES)  # all methods but CLIP
NAME = TRAINED[0]
SIZE, IMAGE_DIM, TEXT_DIM = 64, 12, 8
CAPTIONS = ["a red dog on the beach", "two apples left of a car", "the cat sleeps at night"]
LABELS = Labels("tiny", "Tiny", "Apache-2.0", "nobody (CC0)", "Random weights for tests.")


def head_arguments(name: str) -> dict[str, Any]:
    """Returns small sizes for the arguments `embed_dim` and `mlp_dim`, if a method has them."""
    known = argument_defaults(name)
    return {key: value for key, value in {"embed_dim": 16, "mlp_dim": 8}.items() if key in known}


def settle(module: Any) -> Any:
    """Gives batch norms random statistics, as after training, and switches to eval mode."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean = torch.randn(part.num_features) * 0.1
            part.running_var = torch.rand(part.num_features) + 0.5
    return module.eval()


def write_backbone(
    folder: Path,
    widths: tuple[int, ...] = (6, 8, IMAGE_DIM),
    size: int = SIZE,
    trained: bool = True,
) -> Path:
    """Writes a run of a tiny image encoder for images of `size` pixels."""
    blocks = (1,) * (len(widths) - 1)
    encoder = SceneNet(widths, blocks)
    about = {
        "kind": "image_backbone",
        "arch": "scene_net",
        "arguments": {"widths": list(widths), "blocks": list(blocks)},
        "preprocess": {"size": size, "mean": [0.5] * 3, "std": [0.25] * 3, "fit": "stretch"},
    }
    state = (settle(encoder) if trained else encoder).state_dict()
    save_tensors(folder / "best.safetensors", state, about)
    (folder / "log.csv").write_text("epoch,loss\n0,1.0\n")
    return folder


def write_run(
    folder: Path,
    name: str,
    backbone: Path,
    captions: Sequence[str] = CAPTIONS,
    image_dim: int = IMAGE_DIM,
    texts: tuple[Any, Tokenizer, dict[str, Any]] | None = None,
) -> Path:
    """Writes a run of a method with random weights, as training does.

    The text encoder is a BiGRU over the words of `captions`, or `texts` of `load_text_source`. A
    run over a text encoder with a `source` does not store the encoder's weights.
    """
    folder.mkdir(parents=True)
    tokenizer = build_tokenizer(captions)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "word_dim": 10, "hidden_dim": TEXT_DIM}
    text, encoder, text_dim = {"arch": "bigru", "arguments": sizes}, None, TEXT_DIM
    if texts is not None:
        encoder, tokenizer, text = texts
        text_dim = encoder.dim
    modules = {"method": settle(build(name, image_dim, text_dim, head_arguments(name)))}
    if "source" not in text:
        modules["text_encoder"] = encoder or BiGRUTextEncoder(**sizes)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        **{"kind": "run", "method": name, "arguments": head_arguments(name)},
        **{"image_dim": image_dim, "text_dim": text_dim, "text_encoder": text},
        **{"config": {"seed": 7, "epochs": 1}},
        "backbone_sha256": describe_image_source(backbone)["sha256"],
        "tokenizer_sha256": describe_file(folder / "tokenizer.json").sha256,
    }
    save_tensors(folder / "best.safetensors", nn.ModuleDict(modules).state_dict(), about)
    (folder / "config.toml").write_text("seed = 7\n")
    (folder / "log.csv").write_text("epoch,loss\n0,1.0\n")
    return folder


def write_gallery(folder: Path, count: int = 6) -> Path:
    """Writes a gallery of noise images; the first has a mask and the ground truth."""
    rng = np.random.default_rng(3)
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    entries: list[dict[str, Any]] = []
    for i in range(count):
        name, pixels = f"images/test-{i:06}.webp", rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name, lossless=True)
        caption = {"text": CAPTIONS[i % len(CAPTIONS)], "relevant": [i]}
        entries.append({"file": name, "captions": [caption]})
    Image.fromarray(np.zeros((SIZE, SIZE), np.uint8)).save(folder / "masks/test-000000.png")
    entries[0] |= {
        **{"mask": "masks/test-000000.png", "setting": "beach", "time": "day", "weather": None},
        "objects": [{"name": "dog", "box": [0.1, 0.2, 0.5, 0.6], "color": "red"}],
    }
    entries[0]["captions"][0] |= {"view": "animal", "mentions": [0], "relevant": [0, 3]}
    content = {"split": "test", "world": "tiny", "images": entries}
    (folder / "gallery.json").write_text(json.dumps(content))
    return folder


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the object in a JSON file, and writes the changed object back."""
    values = json.loads(path.read_text("utf-8"))
    yield values
    path.write_text(json.dumps(values), "utf-8")


def relist(pack: Path, name: str) -> Path:
    """Updates the size and checksum of a changed file in pack.json."""
    with edited(pack / "pack.json") as manifest:
        manifest["files"][name] = asdict(describe_file(pack / name))
    return pack


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubState]:
    """A running Hub server; the client uses only this server and an empty cache."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_hub() as state:
        for name, value in {
            "ENDPOINT": state.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": state.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "no-token"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        yield state


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`backbone/`, a run folder of each method, and `gallery/`; tests must not change them."""

    def make(root: Path) -> None:
        torch.manual_seed(0)
        backbone = write_backbone(root / "backbone")
        for name in TRAINED:
            write_run(root / name, name, backbone)
        write_gallery(root / "gallery")

    return made_once(tmp_path_factory, "runs", make)


@pytest.fixture(scope="session")
def pack(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of all methods with a gallery; tests must not change it."""

    def make(place: Path) -> None:
        methods = [runs / name for name in TRAINED]
        export_runs(place / "tiny", runs / "backbone", methods, LABELS, runs / "gallery")

    return made_once(tmp_path_factory, "packs", make) / "tiny"


@pytest.fixture(scope="session")
def small_pack(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one method without a gallery; tests must not change it."""

    def make(place: Path) -> None:
        export_runs(place / "small", runs / "backbone", [runs / NAME], LABELS)

    return made_once(tmp_path_factory, "small", make) / "small"


@pytest.fixture
def copied(pack: Path, tmp_path: Path) -> Path:
    """A copy of the pack, which a test may change."""
    return Path(shutil.copytree(pack, tmp_path / "copied"))
