"""Splits the embeddings of CLIP and SigLIP into rows, the contributions of patches and words.

Yossi Gandelsman, Alexei Efros, Jacob Steinhardt: Interpreting CLIP's Image Representation via
Text-Based Decomposition, ICLR 2024. The state of the summary token t is a sum over layers:

    x_L[t] = x_0[t] + sum_l (sum_i c[l, i] + b[l]) + sum_l mlp[l]
    c[l, i] = sum_h a[l, h, t, i] * v[l, h, i] @ W_O[l, h]

where a is the attention of head h from t to token i, and v the value of i. With the standard
deviation of the final layer norm held constant, norm and projection are linear, and the row of i is
the projection of sum_l c[l, i]. The remainder is the embedding minus all rows: the token's own
embedding, MLPs, biases, [CLS], padding. The paper omits the first layers; the default includes all.

SigLIP pools patches by the attention of one learned query. The output of this attention is split;
the MLP that follows belongs to the remainder. SigLIP's text is split like CLIP's, at the last
position. Through earlier layers, each row depends on other patches or words.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.encoders.published import (
    CLIPImageEncoder,
    CLIPTextEncoder,
    SiglipImageEncoder,
    SiglipTextEncoder,
)
from polyview.models.views import lengths_to_mask

_MASK = -1e30  # added to masked attention; packs may not contain infinity


class ImageRows(ImageEncoder):
    """Computes the contributions of patches to the image embedding; row 0 is the remainder.

    Args:
        encoder: SigLIP, or CLIP with its projection.
        first_layer: the first layer of CLIP whose attention is attributed to patches; earlier
            layers belong to the remainder. Unused for SigLIP, where only the pooling is split.
    """

    summary_token: ClassVar[bool] = True

    def __init__(
        self, encoder: CLIPImageEncoder | SiglipImageEncoder, first_layer: int = 0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.first_layer = first_layer
        self.dim = encoder.dim

    def grid(self, size: int) -> tuple[int, int]:
        return self.encoder.grid(size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns rows (B, 1 + N, D) that add up to the image embedding before normalisation."""
        if isinstance(self.encoder, CLIPImageEncoder):
            embedding, rows = self._clip(self.encoder, pixels)  # (B, D), (B, N, D)
        else:
            embedding, rows = self._siglip(self.encoder, pixels)
        return torch.cat([embedding[:, None] - rows.sum(dim=1, keepdim=True), rows], dim=1)

    def _clip(self, encoder: CLIPImageEncoder, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns CLIP's image embedding (B, D) and the rows of the patches (B, N, D)."""
        model, projection = encoder.model, joint_projection(encoder)
        hidden = model.pre_layrnorm(model.embeddings(pixels))  # (B, 1 + N, h)
        token_index = torch.zeros_like(hidden[:, 0, 0], dtype=torch.int64)  # (B,)
        layers, first_layer = model.encoder.layers, self.first_layer
        state, contributions = split_token(layers, hidden, token_index, first_layer=first_layer)
        rows = norm_rows(model.post_layernorm, contributions[:, 1:], state)
        return projection(model.post_layernorm(state)), projection(rows)

    def _siglip(self, encoder: SiglipImageEncoder, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns SigLIP's image embedding (B, d) and the rows of the patches (B, N, d)."""
        head, hidden = encoder.model.head, encoder.model(pixels).last_hidden_state
        attention: nn.MultiheadAttention = head.attention
        weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
        inputs = zip((head.probe, hidden, hidden), weights, biases, strict=True)
        projected = (nn.functional.linear(*arguments) for arguments in inputs)
        # query (1, H, 1, d / H); keys and values (B, H, N, d / H)
        query, keys, values = (split_heads(tokens, attention.num_heads) for tokens in projected)
        shares = attention_weights(query, keys)[:, :, 0]  # (B, H, N)
        rows = _contributions(shares, values, attention.out_proj.weight)  # (B, N, d)
        pooled = rows.sum(dim=1) + attention.out_proj.bias  # (B, d)
        return pooled + head.mlp(head.layernorm(pooled)), rows


class TextRows(TextEncoder):
    """Computes tokens' contributions to a text's embedding; the last row includes the remainder."""

    def __init__(self, encoder: CLIPTextEncoder | SiglipTextEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.dim, self.max_length = encoder.dim, encoder.max_length

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Returns rows (B, L, D), 0 on padding, that sum to the unnormalised text embedding."""
        encoder, model, length = self.encoder, self.encoder.model, ids.shape[1]
        last_index = lengths - 1  # (B,)
        if isinstance(encoder, CLIPTextEncoder):
            projection, token_index = joint_projection(encoder), last_index
            hidden = model.embeddings(input_ids=ids)  # (B, L, h)
            positions = torch.arange(length, device=ids.device)
            # the causal mask also hides the padding, which follows [EOS]
            is_future = positions[None] > positions[:, None]  # (L, L)
            mask = torch.zeros_like(is_future, dtype=hidden.dtype).masked_fill(is_future, _MASK)
        else:
            projection, mask = model.head, None
            hidden = model.embeddings(input_ids=encoder.pad(ids, lengths))  # (B, max_length, h)
            token_index = torch.full_like(lengths, hidden.shape[1] - 1)
        state, contributions = split_token(model.encoder.layers, hidden, token_index, mask)
        normed = norm_rows(model.final_layer_norm, contributions[:, :length], state)
        embedding = projection(model.final_layer_norm(state))  # (B, D)
        rows = nn.functional.linear(normed, projection.weight)  # (B, L, D)
        rows = rows * lengths_to_mask(lengths, length)[..., None]
        is_last = torch.arange(length, device=ids.device) == last_index[:, None]  # (B, L)
        return rows + is_last[..., None] * (embedding - rows.sum(dim=1))[:, None]


def split_token(
    layers: Iterable[Any],
    hidden: Tensor,
    position: Tensor,
    mask: Tensor | None = None,
    first_layer: int = 0,
) -> tuple[Tensor, Tensor]:
    """Runs the layers of CLIP or SigLIP and splits the last state of one token.

    `hidden` (B, N, h) holds the embedded tokens. `position` (B,) is the index of the token in each
    sequence. `mask` (N, N) is added to the products of queries and keys. Returns the token's state
    (B, h), and the contribution (B, N, h) of each token to this state through the attention of the
    layers from `first_layer` on. Contributions do not include the biases of `out_proj`.
    """
    *_, last = layers
    contributions = torch.zeros_like(hidden)
    batch = torch.arange(hidden.shape[0], device=hidden.device)  # (B,)
    for number, layer in enumerate(layers):
        attention, normed = layer.self_attn, layer.layer_norm1(hidden)
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        query, keys, values = (split_heads(p(normed), attention.num_heads) for p in projections)
        weights = attention_weights(query, keys, mask)  # (B, H, N, N)
        token_weights = weights.transpose(1, 2)[batch, position]  # (B, H, N)
        contribution = _contributions(token_weights, values, attention.out_proj.weight)  # (B, N, h)
        if number >= first_layer:
            contributions = contributions + contribution
        if layer is last:  # only the state of the token is needed
            hidden = hidden[batch, position][:, None]  # (B, 1, h)
            attention_output = contribution.sum(dim=1, keepdim=True) + attention.out_proj.bias
        else:
            attention_output = attention.out_proj((weights @ values).transpose(1, 2).flatten(2))
        hidden = hidden + attention_output
        hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
    return hidden[:, 0], contributions


def norm_rows(norm: nn.LayerNorm, rows: Tensor, state: Tensor) -> Tensor:
    """Applies a layer norm, without its bias, to rows (B, N, h) that are parts of a state (B, h).

    The state's standard deviation is held constant, so the norm is linear in the rows.
    """
    deviation = (state.var(dim=1, correction=0) + norm.eps).sqrt()[:, None, None]
    centred = rows - rows.mean(dim=2, keepdim=True)
    return centred / deviation * norm.weight


def attention_weights(query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns attention (B, H, Q, N) of queries (B, H, Q, e) to keys (B, H, N, e) of H heads.

    `mask` is added to the scaled products of queries and keys.
    """
    products = query @ keys.transpose(2, 3) * query.shape[3] ** -0.5
    return (products if mask is None else products + mask).softmax(dim=-1)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Reshapes token states (B, N, h) to (B, H, N, h / H) for H = `heads` attention heads."""
    return tokens.unflatten(2, (heads, -1)).transpose(1, 2)


def _contributions(weights: Tensor, values: Tensor, out_weight: Tensor) -> Tensor:
    """Multiplies values (B, H, N, h / H) by attention (B, H, N), then projects to (B, N, h)."""
    products = (weights[..., None] * values).transpose(1, 2).flatten(2)  # (B, N, h)
    return nn.functional.linear(products, out_weight)


def joint_projection(encoder: CLIPImageEncoder | CLIPTextEncoder) -> nn.Linear:
    """Returns CLIP's projection to the joint space; raises ValueError if the encoder has none."""
    if encoder.projection is None:
        raise ValueError("this CLIP has no projection; build it with projected=True")
    return encoder.projection
