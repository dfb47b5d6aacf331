"""Tiny checkpoints in the formats of the authors' releases, with random weights.

Names and shapes are those that the released code stores; sizes are small. The options' Namespace
comes with them as it does there.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]

EMBED, REGION, WORDS, WORD_DIM = 8, 12, 12, 6
HIDDEN, INNER, PIECES, POSITIONS, HEADS = 8, 12, 30, 24, 2
STEM, WIDTHS, OUTPUTS = 4, (4, 4, 8, 8), (8, 8, 12, 16)
GROUPS = 2
SIZE = 64  # pixels that the grid variants are made to read
WORD_LIST = ("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "cat", "on", "the", "beach", "runs")


def random(*shape: int) -> Tensor:
    return torch.randn(*shape) * 0.4


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> State:
    state = {f"{name}.weight": random(outputs, inputs)}
    return {**state, f"{name}.bias": random(outputs)} if bias else state


def norm(name: str, width: int) -> State:
    return {f"{name}.weight": torch.rand(width) + 0.5, f"{name}.bias": random(width)}


def batch_norm(name: str, width: int) -> State:
    return {
        **norm(name, width),
        f"{name}.running_mean": random(width),
        f"{name}.running_var": torch.rand(width) + 0.5,
        f"{name}.num_batches_tracked": torch.tensor(7),
    }


def gru(name: str, inputs: int, hidden: int, both: bool = True) -> State:
    state: State = {}
    for end in ("", "_reverse") if both else ("",):
        state[f"{name}.weight_ih_l0{end}"] = random(3 * hidden, inputs)
        state[f"{name}.weight_hh_l0{end}"] = random(3 * hidden, hidden)
        state[f"{name}.bias_ih_l0{end}"] = random(3 * hidden)
        state[f"{name}.bias_hh_l0{end}"] = random(3 * hidden)
    return state


def gpo(name: str) -> State:
    return {**gru(f"{name}.gru", 32, 32), **linear(f"{name}.linear", 1, 32, bias=False)}


def mlp(name: str, inputs: int) -> State:
    return {
        **linear(f"{name}.layers.0", EMBED // 2, inputs),
        **linear(f"{name}.layers.1", EMBED, EMBED // 2),
        **batch_norm(f"{name}.bns.0", EMBED // 2),
        **batch_norm(f"{name}.bns.1", EMBED),
    }


def resnet(name: str, groups: int = 1) -> State:
    """Bottlenecks, one in each stage but two in the second."""
    state = {f"{name}conv1.weight": random(STEM, 3, 7, 7) * 0.3, **batch_norm(f"{name}bn1", STEM)}
    inputs = STEM
    for stage, (width, outputs) in enumerate(zip(WIDTHS, OUTPUTS, strict=True)):
        for block in range(2 if stage == 1 else 1):
            at = f"{name}layer{stage + 1}.{block}"
            state[f"{at}.conv1.weight"] = random(width, inputs, 1, 1)
            state[f"{at}.conv2.weight"] = random(width, width // groups, 3, 3)
            state[f"{at}.conv3.weight"] = random(outputs, width, 1, 1)
            for i, size in enumerate((width, width, outputs)):
                state |= batch_norm(f"{at}.bn{i + 1}", size)
            if block == 0 and (stage > 0 or inputs != outputs):
                state[f"{at}.downsample.0.weight"] = random(outputs, inputs, 1, 1)
                state |= batch_norm(f"{at}.downsample.1", outputs)
            inputs = outputs
    return state


def attention_block(
    name: str, parts: Mapping[str, tuple[int, int]], norms: Mapping[str, int]
) -> State:
    state: State = {}
    for part, (outputs, inputs) in parts.items():
        state |= linear(f"{name}.{part}", outputs, inputs)
    for part, width in norms.items():
        state |= norm(f"{name}.{part}", width)
    return state


def bert(name: str) -> State:
    state = {
        f"{name}.embeddings.word_embeddings.weight": random(PIECES, HIDDEN),
        f"{name}.embeddings.position_embeddings.weight": random(POSITIONS, HIDDEN),
        f"{name}.embeddings.token_type_embeddings.weight": random(2, HIDDEN),
        f"{name}.embeddings.position_ids": torch.arange(POSITIONS)[None],
        **norm(f"{name}.embeddings.LayerNorm", HIDDEN),
        **linear(f"{name}.pooler.dense", HIDDEN, HIDDEN),
    }
    square = (HIDDEN, HIDDEN)
    parts = {f"attention.self.{part}": square for part in ("query", "key", "value")}
    parts |= {"attention.output.dense": square, "intermediate.dense": (INNER, HIDDEN)}
    parts |= {"output.dense": (HIDDEN, INNER)}
    norms = {"attention.output.LayerNorm": HIDDEN, "output.LayerNorm": HIDDEN}
    return state | attention_block(f"{name}.encoder.layer.0", parts, norms)


def vit(name: str) -> State:
    state = {
        f"{name}.embeddings.cls_token": random(1, 1, HIDDEN),
        f"{name}.embeddings.position_embeddings": random(1, 17, HIDDEN),
        f"{name}.embeddings.patch_embeddings.projection.weight": random(HIDDEN, 3, 16, 16) * 0.1,
        f"{name}.embeddings.patch_embeddings.projection.bias": random(HIDDEN),
        **norm(f"{name}.layernorm", HIDDEN),
        **linear(f"{name}.pooler.dense", HIDDEN, HIDDEN),
    }
    square = (HIDDEN, HIDDEN)
    parts = {f"attention.attention.{part}": square for part in ("query", "key", "value")}
    parts |= {"attention.output.dense": square, "intermediate.dense": (INNER, HIDDEN)}
    parts |= {"output.dense": (HIDDEN, INNER)}
    norms = {"layernorm_before": HIDDEN, "layernorm_after": HIDDEN}
    return state | attention_block(f"{name}.encoder.layer.0", parts, norms)


def words(both: bool, hidden: int = EMBED) -> State:
    """One row more than the word list has words: VSE-infinity appends <mask>."""
    rows = len(WORD_LIST) + (1 if both else 0)
    return {"embed.weight": random(rows, WORD_DIM), **gru("rnn", WORD_DIM, hidden, both)}


def vse_infty_regions() -> dict[str, Any]:
    image = {**linear("fc", EMBED, REGION), **mlp("mlp", REGION), **gpo("gpool")}
    return saved([image, {**words(both=True), **gpo("gpool")}], no_imgnorm=False)


def vse_infty_grid(source: str = "wsl", factor: float = SIZE / 256) -> dict[str, Any]:
    """A model of images and BERT, wrapped for several GPUs, its CNN stored twice."""
    cnn = resnet("", 1 if source == "detector" else GROUPS)
    base = {"conv1.": "base.0.", "bn1.": "base.1.", "layer1.": "base.4.", "layer2.": "base.5."}
    base |= {"layer3.": "base.6.", "layer4.": "top.0."}
    image = {f"backbone.resnet.{key}": value for key, value in cnn.items()}
    for theirs, copy in base.items():
        found = {key: value for key, value in cnn.items() if key.startswith(theirs)}
        image |= {f"backbone.{copy}{k.removeprefix(theirs)}": v for k, v in found.items()}
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
        **norm(f"{name}.layer_norm", EMBED),
    }


def pvse() -> State:
    """The bare weights, as its evaluation script loads them."""
    wide = OUTPUTS[-1]
    image = {**resnet("cnn."), **linear("fc", EMBED, wide), **pie_net("pie_net", wide)}
    rows = {"embed.weight": random(len(WORD_LIST), WORD_DIM)}
    text = {**rows, **gru("rnn", WORD_DIM, EMBED // 2), **pie_net("pie_net", WORD_DIM)}
    state = {f"img_enc.{key}": value for key, value in image.items()}
    return state | {f"txt_enc.{key}": value for key, value in text.items()}


def pvse_clips() -> State:
    """A model of clips: each frame's pooled feature, and a bi-GRU in place of the linear map."""
    state = {key: value for key, value in pvse().items() if not key.startswith("img_enc.fc.")}
    recurrent = gru("img_enc.rnn", OUTPUTS[-1], EMBED // 2)
    return state | recurrent


def avse() -> dict[str, Any]:
    state = {
        **vit("img_enc.visual_encoder"),
        **linear("img_enc.image_encoder.fc", EMBED + 4, HIDDEN),
        **gpo("img_enc.image_encoder.gpool"),
        **bert("txt_enc.bert"),
        **linear("txt_enc.fc", EMBED + 4, HIDDEN),
        **norm("txt_enc.ln", EMBED + 4),
        **linear("txt_enc.mlp.layers.0", 6, HIDDEN),
        **linear("txt_enc.mlp.layers.1", EMBED + 4, 6),
        **batch_norm("txt_enc.mlp.bns.0", 6),
        **batch_norm("txt_enc.mlp.bns.1", EMBED + 4),
        **gpo("txt_enc.gpool"),
        "sim_enc.bin_score": torch.tensor(0.0),
    }
    return saved(state, img_res=64, vit_type="google/vit-base-patch16-224-in21k")


def saved(model: Any, **options: Any) -> dict[str, Any]:
    """What a release's training script writes."""
    named = argparse.Namespace(embed_size=EMBED, **options)
    return {"epoch": 3, "model": model, "best_rsum": 401.5, "opt": named, "Eiters": 99}


def write_words(path: Path) -> Path:
    """The word list as SCAN published it."""
    numbered = {word: i for i, word in enumerate(WORD_LIST)}
    content = {"word2idx": numbered, "idx2word": {i: w for w, i in numbered.items()}, "idx": 11}
    path.write_text(json.dumps(content))
    return path


def write_pieces(folder: Path, count: int = PIECES) -> Path:
    """BERT's word pieces and its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "beach", "run", "##s"]
    pieces = known + [f"piece{i}" for i in range(count - len(known))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = {
        **{"model_type": "bert", "vocab_size": count, "max_position_embeddings": POSITIONS},
        **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1},
        **{"num_attention_heads": HEADS, "layer_norm_eps": 1e-12},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
