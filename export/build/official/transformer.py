"""BERT and ViT as transformers 4 named their weights."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from export.build.official.checkpoint import OfficialError, State
from export.build.official.keys import Table, shape_of
from export.pack.validation import read_json
from models.encoders.pretrained_text import BertTextEncoder
from models.encoders.sampled_vit import SampledViT

HEADS, EPSILON = 12, 1e-12  # the library's defaults, which base models have

_LAYER = "encoder.layer.*."
# The pooler is not called; files of transformers before 4.31 also store positions, 0, 1, 2 ...
BERT = Table(
    {
        "embeddings.word_embeddings.": "embeddings.word_embeddings.",
        "embeddings.position_embeddings.": "embeddings.position_embeddings.",
        "embeddings.token_type_embeddings.": "embeddings.token_type_embeddings.",
        "embeddings.LayerNorm.": "embeddings.LayerNorm.",
        f"{_LAYER}attention.self.query.": f"{_LAYER}attention.self.query.",
        f"{_LAYER}attention.self.key.": f"{_LAYER}attention.self.key.",
        f"{_LAYER}attention.self.value.": f"{_LAYER}attention.self.value.",
        f"{_LAYER}attention.output.dense.": f"{_LAYER}attention.output.dense.",
        f"{_LAYER}attention.output.LayerNorm.": f"{_LAYER}attention.output.LayerNorm.",
        f"{_LAYER}intermediate.dense.": f"{_LAYER}intermediate.dense.",
        f"{_LAYER}output.dense.": f"{_LAYER}output.dense.",
        f"{_LAYER}output.LayerNorm.": f"{_LAYER}output.LayerNorm.",
    },
    ("pooler.", "embeddings.position_ids"),
)
# The release reads the last layer's states, without the norm and the pooler behind them.
VIT = Table(
    {
        "embeddings.cls_token": "embeddings.cls_token",
        "embeddings.position_embeddings": "embeddings.position_embeddings",
        "embeddings.patch_embeddings.projection.": "embeddings.patch_embeddings.projection.",
        f"{_LAYER}attention.attention.query.": "layers.*.attention.q_proj.",
        f"{_LAYER}attention.attention.key.": "layers.*.attention.k_proj.",
        f"{_LAYER}attention.attention.value.": "layers.*.attention.v_proj.",
        f"{_LAYER}attention.output.dense.": "layers.*.attention.o_proj.",
        f"{_LAYER}intermediate.dense.": "layers.*.mlp.fc1.",
        f"{_LAYER}output.dense.": "layers.*.mlp.fc2.",
        f"{_LAYER}layernorm_before.": "layers.*.layernorm_before.",
        f"{_LAYER}layernorm_after.": "layers.*.layernorm_after.",
    },
    ("layernorm.", "pooler."),
)


def build_bert(
    state: State, prefix: str, config: dict[str, Any] | None, source: str
) -> BertTextEncoder:
    """The BERT that the shapes describe, with random weights.

    Args:
        state: released weights.
        prefix: of its keys.
        config: what its `config.json` says, or None for the library's defaults.
        source: where the weights are from, for messages.

    Raises:
        OfficialError: a weight that sizes are read from is missing, or the configuration is another
            network's.
    """
    words = shape_of(state, f"{prefix}embeddings.word_embeddings.weight", source)
    inner = shape_of(state, f"{prefix}encoder.layer.0.intermediate.dense.weight", source)[0]
    sizes = {
        "vocab_size": words[0],
        "hidden_size": words[1],
        "intermediate_size": inner,
        "num_hidden_layers": _layers(state, prefix),
        "max_position_embeddings": shape_of(
            state, f"{prefix}embeddings.position_embeddings.weight", source
        )[0],
        "type_vocab_size": shape_of(
            state, f"{prefix}embeddings.token_type_embeddings.weight", source
        )[0],
    }
    return BertTextEncoder(_config("bert", sizes, config, source, "--text-backbone"))


def build_sampled_vit(
    state: State,
    prefix: str,
    config: dict[str, Any] | None,
    source: str,
    size: int,
    centres: tuple[int, ...] | None,
) -> SampledViT:
    """The ViT that the shapes describe, with random weights, reading images of `size` pixels.

    See `build_bert`; `centres` are those of `SampledViT`.
    """
    patches = shape_of(state, f"{prefix}embeddings.patch_embeddings.projection.weight", source, 4)
    inner = shape_of(state, f"{prefix}encoder.layer.0.intermediate.dense.weight", source)[0]
    if size % patches[2]:
        raise OfficialError(
            f"{source}: pictures of {size} pixels cannot be cut into patches of {patches[2]}"
        )
    sizes = {
        "hidden_size": patches[0],
        "intermediate_size": inner,
        "num_hidden_layers": _layers(state, prefix),
        "patch_size": patches[2],
        "num_channels": patches[1],
    }
    full = _config("vit", sizes, config, source, "--image-backbone")
    return SampledViT({**full, "image_size": size}, centres)


def resized_positions(state: State, prefix: str, encoder: SampledViT, source: str) -> State:
    """The weights with as many positions as the encoder has patches.

    The release enlarges them in every pass where images are larger than those its ViT was
    trained on; here that is done once, in the same way (bicubic).
    """
    key = f"{prefix}embeddings.position_embeddings"
    stored = shape_of(state, key, source, 3)
    side = round((stored[1] - 1) ** 0.5)
    if side == encoder.side or side**2 + 1 != stored[1]:
        return state  # what does not fit is named when weights are loaded
    first, rest = state[key][:, :1], state[key][:, 1:]  # (1, 1, h), (1, side * side, h)
    square = rest.float().mT.unflatten(2, (side, side))  # (1, h, side, side)
    wanted = (encoder.side, encoder.side)
    larger = nn.functional.interpolate(square, wanted, mode="bicubic", align_corners=False)
    return {**state, key: torch.cat([first.float(), larger.flatten(2).mT], dim=1)}


def read_config(folder: Path) -> dict[str, Any] | None:
    """What the `config.json` in a folder says; None where there is none.

    Raises:
        OfficialError: it cannot be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        return None
    config = read_json(path)
    if not isinstance(config, dict):
        raise OfficialError(f"{path} is no configuration: {json.dumps(config)[:60]}")
    return config


def _config(
    kind: str, sizes: dict[str, Any], config: dict[str, Any] | None, source: str, option: str
) -> dict[str, Any]:
    """A Hugging Face configuration from shapes, and the rest from a file or the defaults."""
    given = config or {}
    for key, size in sizes.items():
        if key in given and given[key] != size:
            raise OfficialError(
                f"{option} says {key} {given[key]}, but {source} holds a {kind} with {size}; "
                "name the backbone it was trained from"
            )
    width, heads = sizes["hidden_size"], given.get("num_attention_heads", HEADS)
    if type(heads) is not int or heads < 1 or width % heads:
        raise OfficialError(
            f"{source} does not store how many attention heads its {kind} has, and {heads} do not "
            f"divide its width {width}; name a folder whose config.json says num_attention_heads "
            f"with {option}"
        )
    return {
        "model_type": kind,
        **sizes,
        "num_attention_heads": heads,
        "layer_norm_eps": given.get("layer_norm_eps", EPSILON),
        "hidden_act": given.get("hidden_act", "gelu"),
    }


def _layers(state: State, prefix: str) -> int:
    pattern = re.escape(prefix) + r"encoder\.layer\.(\d+)\."
    return len({match[1] for key in state if (match := re.match(pattern, key))})
