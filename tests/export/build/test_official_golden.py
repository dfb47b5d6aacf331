"""The authors' formats: each stored checkpoint, through a real pack, against their code."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyview.export.official import main
from polyview.export.runtime import Runtime
from polyview.models import Views
from polyview.models.views import lengths_to_mask
from tests.export.releases import write_pieces
from tests.golden.loading import check

FOLDER = Path(__file__).parents[4] / "shared" / "golden" / "checkpoints"
pytestmark = pytest.mark.shared
# of the stored transformers
SIZES = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"vocab_size": 60, "max_position_embeddings": 40},
}
Data = dict[str, Tensor]


def load(name: str) -> Data:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}


def convert(folder: Path, family: str, name: str, *options: str) -> Runtime:
    """The command on a stored checkpoint, and its pack on the CPU."""
    arguments = ["--from", family, str(FOLDER / f"{name}.pth"), "--out", str(folder / "pack")]
    assert main([*arguments, *options, "--force"]) == 0
    return Runtime.load(folder / "pack", "cpu")


def words(folder: Path, name: str, key: str, part: int | None = 1, without: int = 0) -> str:
    """A word list as long as a stored table of embeddings, or shorter."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    model = content.get("model", content)
    count = len((model if part is None else model[part])[key]) - without
    listed = ["<pad>", "<start>", "<end>", "<unk>", *(f"word{i}" for i in range(count - 4))]
    path = folder / "words.json"
    path.write_text(json.dumps({"word2idx": {word: i for i, word in enumerate(listed)}}))
    return str(path)


def pieces(folder: Path, data: Data, kind: str = "bert") -> str:
    """A backbone's folder with the sizes of a stored checkpoint."""
    write_pieces(folder, SIZES["vocab_size"])
    config = {
        **SIZES,
        "model_type": kind,
        "num_attention_heads": int(data[f"{kind}_num_attention_heads"]),
        "layer_norm_eps": float(data[f"{kind}_layer_norm_eps"]),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def texts(runtime: Runtime, method: str, data: Data, lengths: str = "caption_lengths") -> Views:
    features, mask = runtime.token_features(data["tokens"].numpy(), data[lengths].numpy(), method)
    return runtime.methods[method].encode_text(features, mask)


@pytest.mark.parametrize("name", ["vse_infty_bigru", "vse_infty_bert"])
def test_vse_infty(name: str, tmp_path: Path) -> None:
    data = load(name)
    if name == "vse_infty_bigru":
        # the list lacks the <mask> that the release appends
        options = ["--vocab", words(tmp_path, name, "embed.weight", without=1)]
    else:
        options = ["--text-backbone", pieces(tmp_path / "bert", data)]
    runtime = convert(tmp_path, "vse_infty", name, *options)
    mask = lengths_to_mask(data["image_lengths"], data["images"].shape[1])
    images = runtime.image_views(data["images"], "vse_infty", mask=mask)
    check(images.embeddings[:, 0], data["image_embedding"])
    check(texts(runtime, "vse_infty", data).embeddings[:, 0], data["caption_embedding"])


def test_mv_vse(tmp_path: Path) -> None:
    data = load("mvvse")
    vocabulary = words(tmp_path, "mvvse", "embed.weight")
    runtime = convert(tmp_path, "mv_vse", "mvvse", "--vocab", vocabulary)
    images = runtime.image_views(data["images"], "mv_vse").embeddings
    check(images.transpose(0, 1), data["view_embeddings"])
    check(texts(runtime, "mv_vse", data).embeddings[:, 0], data["caption_embedding"])


@pytest.mark.parametrize("name", ["pvse", "pvse_eval_bare", "pvse_legacy_container"])
def test_pvse(name: str, tmp_path: Path) -> None:
    data = load("pvse")
    vocabulary = words(tmp_path, name, "txt_enc.embed.weight", None)
    runtime = convert(tmp_path, "pvse", name, "--vocab", vocabulary)
    features = runtime.pixel_features(data["images_half"].float().numpy())
    check(features.mT, data["cnn_feature_map"].flatten(2))
    images: Any = runtime.image_views(features, "pvse", attention=True)
    check(images.embeddings, data["image_embedding"])
    check(images.attention.mT, data["image_attention"])
    check(texts(runtime, "pvse", data, "lengths").embeddings, data["caption_embedding"])


def unit_blocks(embeddings: Tensor, views: int, block: int) -> Tensor:
    """Stored embeddings as the method holds them: (B, V, D) with blocks of unit length."""
    blocks = embeddings.unflatten(1, (views, -1, block))
    return (blocks / blocks.norm(dim=-1, keepdim=True)).flatten(2)


def test_avse(tmp_path: Path) -> None:
    data = load("avse")
    block, counts = int(data["block_dim"]), data["view_centres"]
    options = ["--text-backbone", pieces(tmp_path / "bert", data)]
    options += ["--image-backbone", pieces(tmp_path / "vit", data, "vit")]
    options += ["--block-dim", str(block), "--centres"]
    # the release drew centres for each image; a pack has fixed ones
    for centres in counts.unique(dim=0):
        runtime = convert(tmp_path, "avse", "avse", *options, *map(str, centres.tolist()))
        same = (counts == centres).all(dim=1)
        features = runtime.pixel_features(data["images"][same].numpy())
        images: Any = runtime.image_views(features, "avse", attention=True)
        check(images.embeddings, unit_blocks(data["image_embedding"], 2, block)[same])
        captions = texts(runtime, "avse", data)
        check(captions.embeddings, unit_blocks(data["caption_embedding"], 1, block))
        check(runtime.methods["avse"].score(images, captions), data["scores"][same])
        # what a view left out has no part in it
        seen = images.attention[..., 1:] != 0  # (B, V, patches)
        for image_seen, remaining in zip(seen, data["selected_patches"][same], strict=True):
            for view, patches in zip(image_seen, remaining, strict=True):
                assert set(view.nonzero()[:, 0].tolist()) == set(patches.tolist())
