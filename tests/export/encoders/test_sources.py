"""Encoders from folders and the Hub compute the features of `transformers`; refusals."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file, save_file

from polyview.export.encoders import sources
from polyview.models.checkpoint import round_to_half
from polyview.models.encoders.huggingface import read_preprocess
from polyview.models.preprocess import Preprocess
from tests import published as twins
from tests.export.hub_server import HubState

ROOT = Path(__file__).parents[3]
TEXTS = ["a red dog on the beach", "two cats"]
PROCESSORS: list[tuple[str, dict[str, Any]]] = [
    ("MobileNetV2ImageProcessor", twins.CROP),
    ("CLIPImageProcessor", {**twins.CROP, "size": {"shortest_edge": twins.SIZE}}),
    ("ViTImageProcessor", twins.STRETCH),
    ("ConvNextImageProcessor", twins.CROP_SHARE),
    ("ConvNextImageProcessor", {**twins.CROP_SHARE, "size": {"shortest_edge": 384}}),
    ("ViTImageProcessor", {**twins.STRETCH, "do_normalize": False}),
    ("ViTImageProcessor", {**twins.STRETCH, "rescale_factor": 1 / 127.5}),
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each published architecture; tests must not change them."""
    root = tmp_path_factory.mktemp("published")
    for kind in twins.IMAGE_MODELS:
        twins.save_image_model(root / kind, kind)
    for kind in twins.TEXT_MODELS:
        twins.save_bert(root / kind, kind)
    twins.save_clip(root / "clip")
    return root


@pytest.fixture
def copied(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published / "vit", tmp_path / "vit"))


def _load(name: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, name).from_pretrained(folder).eval()


@pytest.mark.parametrize("kind", [*twins.IMAGE_MODELS, "clip"])
@torch.no_grad()
def test_image_features_are_equal(published: Path, kind: str) -> None:
    encoder, preprocess, about = sources.load_image_source(published / kind, rounded=False)
    pixels = torch.randn(2, 3, twins.SIZE, twins.SIZE)
    name = "CLIPVision" if kind == "clip" else twins.IMAGE_MODELS[kind][0]
    network = _load(f"{name}Model", published / kind)
    expected = network(pixels).last_hidden_state
    if kind == "clip":
        expected = network.post_layernorm(expected)
    if expected.dim() == 4:
        expected = torch.stack([expected[:, :, y, x] for y in range(2) for x in range(2)], dim=1)
    features = encoder(pixels)
    torch.testing.assert_close(features, expected)
    rows, columns = encoder.grid(twins.SIZE)
    assert features.shape == (2, rows * columns + encoder.summary_token, encoder.dim)
    assert preprocess.size == twins.SIZE
    described = sources.describe_image_source(published / kind) | {"source": about["source"]}
    assert json.loads(json.dumps(about)) == about == described


@pytest.mark.parametrize("kind", twins.TEXT_MODELS)
@torch.no_grad()
def test_token_features_are_those_of_transformers(published: Path, kind: str) -> None:
    encoder, tokenizer, about = sources.load_text_source(published / kind, rounded=False)
    rows = [torch.tensor(tokenizer.encode(text).ids) for text in TEXTS]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    features = encoder(ids, lengths)
    network = _load("AutoModel", published / kind)
    for row, length in enumerate(lengths.tolist()):
        alone = network(ids[row : row + 1, :length]).last_hidden_state
        torch.testing.assert_close(features[row : row + 1, :length], alone)
        assert not features[row, length:].any()
    assert encoder.summary_token
    assert tokenizer.encode(TEXTS[1]).tokens == ["[CLS]", "two", "cat", "##s", "[SEP]"]
    assert about["max_length"] == encoder.max_length == (14 if kind == "roberta" else 16)
    long = tokenizer.encode("dog " * 40).tokens
    assert (len(long), long[-1]) == (about["max_length"], "[SEP]")


@pytest.mark.parametrize("load", [sources.load_image_source, sources.load_text_source])
def test_weights_are_rounded_as_in_packs(published: Path, load: Callable[..., Any]) -> None:
    exact = load(published / "clip", rounded=False)[0].state_dict()
    rounded = load(published / "clip")[0].state_dict()
    torch.testing.assert_close(rounded, round_to_half(exact, "clip"), rtol=0, atol=0)


def test_identity_follows_weights_pixels_and_projection(published: Path, copied: Path) -> None:
    before, same = (sources.describe_image_source(f)["sha256"] for f in (published / "vit", copied))
    assert same == before
    twins.save_processor(copied, "ViTImageProcessor", {**twins.STRETCH, "resample": 3})
    changed = sources.describe_image_source(copied)["sha256"]
    tensors = load_file(copied / "model.safetensors")
    next(iter(tensors.values())).add_(1)
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    assert len({before, changed, sources.describe_image_source(copied)["sha256"]}) == 3
    for describe in (sources.describe_image_source, sources.describe_text_source):
        plain, projected = (describe(f"{published / 'clip'}{end}") for end in ("", "#projected"))
        assert plain["sha256"] != projected["sha256"]


def test_pixels_are_those_of_the_models_own_processor(tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 15, 3), np.uint8))
    images = [small.resize(size) for size in ((97, 131), (300, 200), (40, 50))]
    for place, (kind, values) in enumerate(PROCESSORS):
        folder = tmp_path / str(place)
        twins.save_processor(folder, kind, values)
        preprocess = read_preprocess(folder, "it")
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        step = np.array(preprocess.std).reshape(3, 1, 1)
        for image in images:
            expected = processor(images=image, return_tensors="np")["pixel_values"]
            assert np.abs((preprocess([image]) - expected) * step).max() <= 1.01 / 255, kind
        assert Preprocess.from_json(preprocess.to_json()) == preprocess


def refused(load: Callable[[Path], object], source: Path, sentence: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        load(source)


def test_a_source_that_is_none_is_refused(published: Path) -> None:
    for source, sentence in (
        ("vit#joined", 'unknown suffix; use "#projected"'),
        ("vit#projected", "only CLIP has a projection"),
        ("bert", "not an image encoder that Polyview supports; choose one of mobilenet_v2"),
        ("nothing", "there is no folder"),
        ("", "no best.safetensors, pack.json or config.json"),
    ):
        refused(sources.load_image_source, published / source, sentence)


def test_damaged_folders_are_refused(published: Path, copied: Path) -> None:
    weights = copied / "model.safetensors"
    tensors = load_file(weights)
    lost = next(name for name in sorted(tensors) if "layernorm" in name)
    remaining = {name: tensor for name, tensor in tensors.items() if name != lost}
    save_file(remaining, weights, {"format": "pt"})
    refused(sources.load_image_source, copied, "lacks 1 of the weights of ViTModel, such as model")
    weights.write_bytes(b"damaged")
    refused(sources.load_image_source, copied, "do not load")
    (copied / "preprocessor_config.json").unlink()
    refused(sources.load_image_source, copied, r"has no preprocessor_config\.json")
    torch.save(tensors, copied / "pytorch_model.bin")
    weights.unlink()
    refused(sources.load_image_source, copied, "pytorch_model.bin is a pickle")
    (copied / "config.json").write_text("{")
    refused(sources.load_image_source, copied, r"config\.json cannot be read")
    texts = Path(shutil.copytree(published / "bert", copied / "bert"))
    (texts / "tokenizer.json").unlink()
    refused(sources.load_text_source, texts, "holds no tokenizer; add")
    (texts / "tokenizer.json").write_text("{}")
    refused(sources.load_text_source, texts, "holds no tokenizer that can be read")


@pytest.mark.network
def test_an_image_encoder_is_fetched_and_found_again(
    published: Path, server: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "yours_pack").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="yours_pak; did you mean runs/yours_pack"):
        sources.load_image_source("runs/yours_pak")
    assert not server.requests  # a mistyped folder is not requested from the Hub
    files = {path.name: path.read_bytes() for path in (published / "vit").iterdir()}
    others = {"other.bin": b"large", "onnx/model.onnx": b"no"}
    server.add("owner/net", files | others)
    encoder, _, about = sources.load_image_source("owner/net")
    assert encoder.grid(64) == (4, 4)
    assert about["source"] == "owner/net"
    cached = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/*")}
    assert cached == {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert sources.load_image_source("owner/net@main")[2]["sha256"] == about["sha256"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sources.load_image_source("owner/net")[2] == about
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set; unset it"):
        sources.load_image_source("owner/else")
