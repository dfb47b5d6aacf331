"""Tiny checkpoints in the formats of the authors' releases, with random weights.

Modules have the names of the released code; sizes are small. As in the releases, the options are
stored as a Namespace.
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
EMBED, REGION, WORD_DIM = 8, 12, 6
HIDDEN, INNER, PIECES, POSITIONS = 8, 12, 30, 24
BERT: dict[str, Any] = {
    **{"vocab_size": PIECES, "max_position_embeddings": POSITIONS, "num_hidden_layers": 1},
    **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": 2},
}
STEM, WIDTHS, OUTPUTS = 4, (4, 4, 8, 8), (8, 8, 12, 16)
SIZE = 64  # side of the images of the grid models, in pixels
WORD_LIST = ("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "cat", "on", "the", "beach", "runs")


def named(**parts: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(parts)


def weights(module: nn.Module) -> State:
    """Draws the weights of a module, and returns them."""
    state = module.state_dict()
    for name, value in state.items():
        if not value.is_floating_point():
            value.fill_(7)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        else:
            value.normal_(std=0.4)
    return state


def gpo() -> nn.Module:
    return named(gru=nn.GRU(32, 32, bidirectional=True), linear=nn.Linear(32, 1, bias=False))


def mlp(inputs: int, inner: int = EMBED // 2, outputs: int = EMBED) -> nn.Module:
    layers = nn.ModuleList([nn.Linear(inputs, inner), nn.Linear(inner, outputs)])
    return named(layers=layers, bns=nn.ModuleList([nn.BatchNorm1d(inner), nn.BatchNorm1d(outputs)]))


def resnet(groups: int = 1) -> Any:
    """Builds a ResNet with two blocks in the second stage and one in the others."""
    return ResNet(STEM, WIDTHS, OUTPUTS, (1, 2, 1, 1), groups=groups)


def bert() -> nn.Module:
    """Builds a BERT that stores its position ids, as older versions of `transformers` do."""
    from transformers import BertConfig, BertModel

    network = BertModel(BertConfig(**BERT))
    network.embeddings.register_buffer("position_ids", torch.arange(POSITIONS)[None])
    return network


def vit() -> nn.Module:
    """Builds a ViT with the names of transformers 4."""
    square = {name: nn.Linear(HIDDEN, HIDDEN) for name in ("query", "key", "value")}
    output = named(dense=nn.Linear(HIDDEN, HIDDEN))
    layer = named(
        attention=named(attention=named(**square), output=output),
        intermediate=named(dense=nn.Linear(HIDDEN, INNER)),
        output=named(dense=nn.Linear(INNER, HIDDEN)),
        layernorm_before=nn.LayerNorm(HIDDEN),
        layernorm_after=nn.LayerNorm(HIDDEN),
    )
    patches = named(patch_embeddings=named(projection=nn.Conv2d(3, HIDDEN, 16)))
    patches.cls_token = nn.Parameter(torch.empty(1, 1, HIDDEN))
    patches.position_embeddings = nn.Parameter(torch.empty(1, 17, HIDDEN))
    return named(
        embeddings=patches,
        encoder=named(layer=nn.ModuleList([layer])),
        layernorm=nn.LayerNorm(HIDDEN),
        pooler=named(dense=nn.Linear(HIDDEN, HIDDEN)),
    )


def vse_infty_regions() -> dict[str, Any]:
    image = named(fc=nn.Linear(REGION, EMBED), mlp=mlp(REGION), gpool=gpo())
    embed = nn.Embedding(len(WORD_LIST) + 1, WORD_DIM)  # the last row is that of <mask>
    text = named(embed=embed, rnn=nn.GRU(WORD_DIM, EMBED, bidirectional=True), gpool=gpo())
    return saved([weights(image), weights(text)], no_imgnorm=False)


def vse_infty_grid(source: str = "wsl") -> dict[str, Any]:
    """A model with a CNN, which is stored twice, and BERT, both wrapped in `DataParallel`."""
    cnn = resnet(groups=1 if source == "detector" else 2)
    stages = cnn.layer1, cnn.layer2, cnn.layer3
    base = nn.Sequential(cnn.conv1, cnn.bn1, nn.ReLU(), cnn.pool, *stages)
    cnn.fc = nn.Linear(OUTPUTS[-1], 10)
    backbone = named(resnet=cnn, base=base, top=nn.Sequential(cnn.layer4))
    encoder = named(fc=nn.Linear(OUTPUTS[-1], EMBED + 2), gpool=gpo())
    image = named(backbone=backbone, image_encoder=encoder)
    text = named(bert=bert(), linear=nn.Linear(HIDDEN, EMBED + 2), gpool=gpo())
    wrapped = [weights(nn.DataParallel(part)) for part in (image, text)]
    return saved(wrapped, backbone_source=source, input_scale_factor=SIZE / 256)


def mv_vse() -> dict[str, Any]:
    maps = nn.ModuleList([nn.Linear(REGION, EMBED), nn.Linear(REGION, EMBED)])
    text = named(embed=nn.Embedding(len(WORD_LIST), WORD_DIM), rnn=nn.GRU(WORD_DIM, EMBED))
    return saved([weights(named(fc_list=maps)), weights(text)], k="2")


def pie_net(local: int) -> nn.Module:
    first, second = nn.Linear(local, local // 2, bias=False), nn.Linear(local // 2, 2, bias=False)
    attention = named(w_1=first, w_2=second)
    return named(attention=attention, fc=nn.Linear(local, EMBED), layer_norm=nn.LayerNorm(EMBED))


def pvse_clips() -> State:
    """A model of clips: only the weights, as PVSE's evaluation script loads them."""
    wide, half = OUTPUTS[-1], EMBED // 2
    image = named(cnn=resnet(), rnn=nn.GRU(wide, half, bidirectional=True), pie_net=pie_net(wide))
    embed, rnn = nn.Embedding(len(WORD_LIST), WORD_DIM), nn.GRU(WORD_DIM, half, bidirectional=True)
    return weights(
        named(img_enc=image, txt_enc=named(embed=embed, rnn=rnn, pie_net=pie_net(WORD_DIM)))
    )


def avse() -> dict[str, Any]:
    wide = EMBED + 4
    image = named(fc=nn.Linear(HIDDEN, wide), gpool=gpo())
    text = named(
        bert=bert(),
        fc=nn.Linear(HIDDEN, wide),
        ln=nn.LayerNorm(wide),
        mlp=mlp(HIDDEN, 6, wide),
        gpool=gpo(),
    )
    state = weights(named(img_enc=named(visual_encoder=vit(), image_encoder=image), txt_enc=text))
    state["sim_enc.bin_score"] = torch.tensor(0.0)
    return saved(state, img_res=64, vit_type="google/vit-base-patch16-224-in21k")


def saved(model: Any, **options: Any) -> dict[str, Any]:
    """Returns a checkpoint as the training script of a release writes it."""
    namespace = argparse.Namespace(embed_size=EMBED, **options)
    return {"epoch": 3, "model": model, "best_rsum": 401.5, "opt": namespace, "Eiters": 99}


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
