"""Tiny checkpoints in the formats of the authors' releases, with random weights.

Names of weights are those of the released code; sizes are small. As in the releases, the options
are stored as a Namespace.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyview.models.encoders.resnet import ResNet

State = dict[str, Tensor]
EMBED, REGION, WORDS, WORD_DIM = 8, 12, 12, 6
HIDDEN, INNER, PIECES, POSITIONS, HEADS = 8, 12, 30, 24, 2
BERT: dict[str, Any] = {
    **{"vocab_size": PIECES, "max_position_embeddings": POSITIONS, "num_hidden_layers": 1},
    **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS},
}
STEM, WIDTHS, OUTPUTS = 4, (4, 4, 8, 8), (8, 8, 12, 16)
GROUPS = 2
SIZE = 64  # side of the images of the grid models, in pixels
WORD_LIST = ("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "cat", "on", "the", "beach", "runs")


def weights(name: str, module: nn.Module) -> State:
    """Returns random weights for a module; `name` is the prefix of their names, or empty."""
    state: State = {}
    for key, value in module.state_dict().items():
        drawn = torch.full_like(value, 7)
        if value.is_floating_point():
            variance = key.endswith("running_var")
            drawn = torch.rand_like(value) + 0.5 if variance else torch.randn_like(value) * 0.4
        state[f"{name}.{key}".removeprefix(".")] = drawn
    return state


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> State:
    return weights(name, nn.Linear(inputs, outputs, bias))


def gru(name: str, inputs: int, hidden: int, both: bool = True) -> State:
    return weights(name, nn.GRU(inputs, hidden, bidirectional=both))


def gpo(name: str) -> State:
    return {**gru(f"{name}.gru", 32, 32), **linear(f"{name}.linear", 1, 32, bias=False)}


def mlp(name: str, inputs: int, inner: int = EMBED // 2, outputs: int = EMBED) -> State:
    return {
        **linear(f"{name}.layers.0", inner, inputs),
        **linear(f"{name}.layers.1", outputs, inner),
        **weights(f"{name}.bns.0", nn.BatchNorm1d(inner)),
        **weights(f"{name}.bns.1", nn.BatchNorm1d(outputs)),
    }


def resnet(name: str, groups: int = 1) -> State:
    """A ResNet with two blocks in the second stage and one in the others."""
    return weights(name, ResNet(STEM, WIDTHS, OUTPUTS, (1, 2, 1, 1), groups=groups))


def bert(name: str) -> State:
    """BERT with the names of `transformers`, and the position ids that older files store."""
    from transformers import BertConfig, BertModel

    state = weights(name, BertModel(BertConfig(**BERT)))
    return {**state, f"{name}.embeddings.position_ids": torch.arange(POSITIONS)[None]}


def vit(name: str) -> State:
    """A ViT with the names of transformers 4."""
    layer = f"{name}.encoder.layer.0"
    state = {
        f"{name}.embeddings.cls_token": torch.randn(1, 1, HIDDEN),
        f"{name}.embeddings.position_embeddings": torch.randn(1, 17, HIDDEN),
        **weights(f"{name}.embeddings.patch_embeddings.projection", nn.Conv2d(3, HIDDEN, 16)),
        **linear(f"{layer}.intermediate.dense", INNER, HIDDEN),
        **linear(f"{layer}.output.dense", HIDDEN, INNER),
        **linear(f"{name}.pooler.dense", HIDDEN, HIDDEN),
    }
    for part in ("attention.query", "attention.key", "attention.value", "output.dense"):
        state |= linear(f"{layer}.attention.{part}", HIDDEN, HIDDEN)
    for norm in (f"{layer}.layernorm_before", f"{layer}.layernorm_after", f"{name}.layernorm"):
        state |= weights(norm, nn.LayerNorm(HIDDEN))
    return state


def words(both: bool, hidden: int = EMBED) -> State:
    """Word embeddings and a GRU; with `both`, one more row for the <mask> of VSE-infinity."""
    rows = len(WORD_LIST) + (1 if both else 0)
    return {**weights("embed", nn.Embedding(rows, WORD_DIM)), **gru("rnn", WORD_DIM, hidden, both)}


def vse_infty_regions() -> dict[str, Any]:
    image = {**linear("fc", EMBED, REGION), **mlp("mlp", REGION), **gpo("gpool")}
    return saved([image, {**words(both=True), **gpo("gpool")}], no_imgnorm=False)


def vse_infty_grid(source: str = "wsl", factor: float = SIZE / 256) -> dict[str, Any]:
    """A model with a CNN, which is stored twice, and BERT, both wrapped in `DataParallel`."""
    cnn = resnet("", 1 if source == "detector" else GROUPS)
    base = {"conv1.": "base.0.", "bn1.": "base.1.", "layer1.": "base.4.", "layer2.": "base.5."}
    base |= {"layer3.": "base.6.", "layer4.": "top.0."}
    image = {f"backbone.resnet.{key}": value for key, value in cnn.items()}
    for theirs, copy in base.items():
        results = {key: value for key, value in cnn.items() if key.startswith(theirs)}
        image |= {f"backbone.{copy}{k.removeprefix(theirs)}": v for k, v in results.items()}
    image |= linear("backbone.resnet.fc", 10, OUTPUTS[-1])
    image |= {**linear("image_encoder.fc", EMBED + 2, OUTPUTS[-1]), **gpo("image_encoder.gpool")}
    text = {**bert("bert"), **linear("linear", EMBED + 2, HIDDEN), **gpo("gpool")}
    wrapped = [{f"module.{key}": value for key, value in part.items()} for part in (image, text)]
    return saved(wrapped, backbone_source=source, input_scale_factor=factor)


def mv_vse() -> dict[str, Any]:
    image = {**linear("fc_list.0", EMBED, REGION), **linear("fc_list.1", EMBED, REGION)}
    return saved([image, words(both=False)], k="2")


def pie_net(name: str, local: int) -> State:
    return {
        **linear(f"{name}.attention.w_1", local // 2, local, bias=False),
        **linear(f"{name}.attention.w_2", 2, local // 2, bias=False),
        **linear(f"{name}.fc", EMBED, local),
        **weights(f"{name}.layer_norm", nn.LayerNorm(EMBED)),
    }


def pvse() -> State:
    """Only the weights, as PVSE's evaluation script loads them."""
    wide = OUTPUTS[-1]
    image = {**resnet("cnn"), **linear("fc", EMBED, wide), **pie_net("pie_net", wide)}
    rows = weights("embed", nn.Embedding(len(WORD_LIST), WORD_DIM))
    text = {**rows, **gru("rnn", WORD_DIM, EMBED // 2), **pie_net("pie_net", WORD_DIM)}
    state = {f"img_enc.{key}": value for key, value in image.items()}
    return state | {f"txt_enc.{key}": value for key, value in text.items()}


def pvse_clips() -> State:
    """A model of clips: pooled features of frames, and a BiGRU instead of the linear map."""
    state = {key: value for key, value in pvse().items() if not key.startswith("img_enc.fc.")}
    return state | gru("img_enc.rnn", OUTPUTS[-1], EMBED // 2)


def avse() -> dict[str, Any]:
    state = {
        **vit("img_enc.visual_encoder"),
        **linear("img_enc.image_encoder.fc", EMBED + 4, HIDDEN),
        **gpo("img_enc.image_encoder.gpool"),
        **bert("txt_enc.bert"),
        **linear("txt_enc.fc", EMBED + 4, HIDDEN),
        **weights("txt_enc.ln", nn.LayerNorm(EMBED + 4)),
        **mlp("txt_enc.mlp", HIDDEN, 6, EMBED + 4),
        **gpo("txt_enc.gpool"),
        "sim_enc.bin_score": torch.tensor(0.0),
    }
    return saved(state, img_res=64, vit_type="google/vit-base-patch16-224-in21k")


def saved(model: Any, **options: Any) -> dict[str, Any]:
    """Returns a checkpoint as the training script of a release writes it."""
    named = argparse.Namespace(embed_size=EMBED, **options)
    return {"epoch": 3, "model": model, "best_rsum": 401.5, "opt": named, "Eiters": 99}


def write_words(path: Path, words: Sequence[str] = WORD_LIST) -> Path:
    """Writes a word list as SCAN published it."""
    numbered = {word: i for i, word in enumerate(words)}
    content = {"word2idx": numbered, "idx2word": {i: w for w, i in numbered.items()}, "idx": 11}
    path.write_text(json.dumps(content))
    return path


def write_pieces(folder: Path, count: int = PIECES, **settings: Any) -> Path:
    """Writes BERT's word pieces and its configuration with these settings."""
    folder.mkdir(parents=True, exist_ok=True)
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "beach", "run", "##s"]
    pieces = known + [f"piece{i}" for i in range(count - len(known))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = {"model_type": "bert", **BERT, "vocab_size": count, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
