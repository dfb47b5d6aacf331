"""Rows of CLIP and SigLIP: they add up to what `transformers` computes, and are each token's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polyview.models.clip import CLIP
from polyview.models.encoders import published
from polyview.models.encoders.rows import ImageRows, TextRows
from tests.published import spread

WORDS, END, CONTEXT = 40, 39, 11
# kind, patch, pixels, width, heads, layers, joint space
LAYOUTS = {
    "ViT-B/32": ("CLIP", 32, 96, 24, 3, 3, 16),
    "ViT-B/16": ("CLIP", 16, 64, 24, 3, 2, 16),
    "SigLIP": ("Siglip", 16, 64, 24, 3, 2, 24),
}
Twin = tuple[Any, ImageRows, TextRows]


@pytest.fixture(params=LAYOUTS)
def twin(request: pytest.FixtureRequest) -> Twin:
    """A network of `transformers` with random weights, and both encoders with the same weights."""
    import transformers

    kind, patch, pixels, width, heads, layers, joint = LAYOUTS[request.param]
    torch.manual_seed(patch + layers)
    shape: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width}
    shape |= {"num_attention_heads": heads, "num_hidden_layers": layers, "projection_dim": joint}
    text: dict[str, Any] = {**shape, "vocab_size": WORDS, "max_position_embeddings": CONTEXT}
    text |= {"bos_token_id": END - 1, "eos_token_id": END, "pad_token_id": 1}
    vision = {**shape, "image_size": pixels, "patch_size": patch}
    sizes = {"text_config": text, "vision_config": vision, "projection_dim": joint}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    network = spread(getattr(transformers, f"{kind}Model")(config))
    vision, text = config.vision_config.to_dict(), config.text_config.to_dict()
    projected = {"projected": True} if kind == "CLIP" else {}
    images = getattr(published, f"{kind}ImageEncoder")(vision, **projected)
    texts = getattr(published, f"{kind}TextEncoder")(text, **projected)
    if kind == "CLIP":
        images.projection.load_state_dict(network.visual_projection.state_dict())
        texts.projection.load_state_dict(network.text_projection.state_dict())
    images.model.load_state_dict(network.vision_model.state_dict())
    texts.model.load_state_dict(network.text_model.state_dict())
    network.set_attn_implementation("eager")  # which returns its attention
    return network, ImageRows(images).eval(), TextRows(texts).eval()


@torch.no_grad()
def test_rows_add_up_to_the_embeddings_of_transformers(twin: Twin) -> None:
    network, images, texts = twin
    pixels, (ids, lengths) = some_pixels(network), some_texts()
    vision, rows = network.config.vision_config, images(pixels)
    side = vision.image_size // vision.patch_size
    assert images.grid(vision.image_size) == (side, side)
    assert rows.shape[1] == 1 + side**2
    whole = network.get_image_features(pixels).pooler_output
    torch.testing.assert_close(rows.sum(1), whole, rtol=0, atol=1e-5)
    for row, own, length in zip(texts(ids, lengths), ids, lengths.tolist(), strict=True):
        assert not row[length:].any()
        whole = network.get_text_features(as_published(network, own[:length])).pooler_output
        torch.testing.assert_close(row.sum(0), whole[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_row_is_what_attention_brings_from_its_token(twin: Twin) -> None:
    network, images, texts = twin
    pixels, (ids, lengths) = some_pixels(network)[:1], some_texts()
    own = as_published(network, ids[1][: lengths[1]])
    siglip, rows = network.config.model_type == "siglip", images(pixels)[0, 1:]
    if siglip:
        expected = naive_probe(network.vision_model, pixels)
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=0)
    else:
        for first, own_rows in ((0, rows), (1, ImageRows(images.encoder, 1)(pixels)[0, 1:])):
            brought, state = naive(network.vision_model, {"pixel_values": pixels}, 0, first)
            held = naive_norm(network.vision_model.post_layernorm, brought[1:], state)
            expected = held @ network.visual_projection.weight.T
            torch.testing.assert_close(own_rows, expected, atol=1e-5, rtol=0)
    brought, state = naive(network.text_model, {"input_ids": own}, own.shape[1] - 1)
    head = network.text_model.head if siglip else network.text_projection
    held = naive_norm(network.text_model.final_layer_norm, brought, state)
    count = int(lengths[1]) - 1  # the last one holds the rest
    expected = (held @ head.weight.T)[:count]
    torch.testing.assert_close(texts(ids, lengths)[1, :count], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_evidence_of_rows_leaves_what_has_no_place_in_the_base(twin: Twin) -> None:
    network, images, texts = twin
    cells, (ids, lengths) = images(some_pixels(network)), some_texts()
    method = CLIP(images.dim, texts.dim, images.dim, rows=True)
    features, mask = texts(ids, lengths), torch.arange(ids.shape[1]) < lengths[:, None]
    everywhere = torch.ones(cells.shape[:2], dtype=torch.bool)
    seen, read = method.encode_image(cells, everywhere), method.encode_text(features, mask)
    scores = method.score(seen, read)
    cosines = torch.cosine_similarity(cells.sum(1)[:, None], features.sum(1), dim=2)
    torch.testing.assert_close(scores, cosines, rtol=0, atol=1e-5)
    for t, length in enumerate(lengths.tolist()):
        text = method.text_parts(features[t : t + 1], mask[t : t + 1])
        split = method.evidence(method.image_parts(cells, everywhere), text)
        torch.testing.assert_close(split.score, scores[:, t], rtol=0, atol=1e-5)
        assert split.cells[:, 1:, : length - 1].abs().max() > 1e-4
        assert not split.cells[:, 0].any()
        assert not split.cells[:, :, length - 1 :].any()


def some_pixels(network: Any) -> Tensor:
    side = network.config.vision_config.image_size
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))


def some_texts() -> tuple[Tensor, Tensor]:
    """Ids (3, 8) that start and end with marks, padded with 0 to different lengths."""
    lengths = torch.tensor([8, 5, 3])
    ids = torch.randint(2, END - 1, (3, 8), generator=torch.Generator().manual_seed(2))
    ids[:, 0] = END - 1
    ids[torch.arange(3), lengths - 1] = END
    return ids.masked_fill(torch.arange(8) >= lengths[:, None], 0), lengths


def as_published(network: Any, ids: Tensor) -> Tensor:
    """One text (1, L) as the authors' code passes it: SigLIP's is padded to its context."""
    if network.config.model_type == "siglip":
        ids = torch.nn.functional.pad(ids, (0, CONTEXT - len(ids)), value=1)
    return ids[None]


def naive(model: Any, inputs: dict[str, Tensor], position: int, first: int = 0) -> list[Tensor]:
    """What each token brings to one token from a layer on (N, h), and that token's state (h,)."""
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    states = output.hidden_states
    brought = torch.zeros_like(states[0][0])
    parts = zip(model.encoder.layers, states, output.attentions, strict=False)
    for layer, state, weights in list(parts)[first:]:
        attention = layer.self_attn
        values = attention.v_proj(layer.layer_norm1(state))[0]  # (N, h)
        for head in range(attention.num_heads):
            own = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            for token in range(len(values)):
                part = attention.out_proj.weight[:, own] @ values[token, own]
                brought[token] += weights[0, head, position, token] * part
    mask = None
    if type(model).__name__ == "CLIPTextModel":  # which is causal
        mask = torch.full((len(brought), len(brought)), -1e9).triu(1)[None, None]
    last = model.encoder(inputs_embeds=states[0], attention_mask=mask).last_hidden_state
    return [brought, last[0, position]]


def naive_norm(norm: torch.nn.LayerNorm, rows: Tensor, state: Tensor) -> Tensor:
    deviation = (((state - state.mean()) ** 2).mean() + norm.eps) ** 0.5
    return torch.stack([norm.weight * (row - row.mean()) / deviation for row in rows])


def naive_probe(model: Any, pixels: Tensor) -> Tensor:
    """What each patch (N, d) brings to the pooling query of SigLIP."""
    hidden, attention = model(pixels).last_hidden_state, model.head.attention
    _, weights = attention(model.head.probe, hidden, hidden, average_attn_weights=False)
    size, width = hidden.shape[2] // attention.num_heads, hidden.shape[2]
    value, bias = attention.in_proj_weight[2 * width :], attention.in_proj_bias[2 * width :]
    values = hidden[0] @ value.T + bias  # (N, d)
    rows = torch.zeros_like(values)
    for head in range(attention.num_heads):
        own = slice(head * size, (head + 1) * size)
        split = values[:, own] @ attention.out_proj.weight[:, own].T
        rows += weights[0, head, 0][:, None] * split
    return rows
