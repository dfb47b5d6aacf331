"""Rows of CLIP and SigLIP add up to the embeddings of `transformers`; each row is a token's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyview.export.encoders import sources
from polyview.models.clip import CLIP
from polyview.models.encoders.rows import ImageRows, TextRows
from tests import published as twins

Twin = tuple[Any, ImageRows, TextRows]


@pytest.fixture(params=[twins.FIRST, twins.SIGLIP])
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Twin:
    """A published network with random weights, and both encoders with the same weights."""
    import transformers

    source = twins.save_clip(tmp_path, request.param)
    kind: Any = transformers.CLIPModel if request.param == twins.FIRST else transformers.SiglipModel
    network = kind.from_pretrained(source, attn_implementation="eager")  # returns attention
    images: Any = sources.load_image_source(f"{source}#projected", rounded=False)[0]
    texts: Any = sources.load_text_source(f"{source}#projected", rounded=False)[0]
    return network.eval(), ImageRows(images).eval(), TextRows(texts).eval()


@torch.no_grad()
def test_rows_add_up_to_the_embeddings_of_transformers(twin: Twin) -> None:
    network, images, texts = twin
    pixels, (ids, lengths) = some_pixels(network), some_texts(network)
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
def test_a_row_is_the_contribution_of_its_token_through_attention(twin: Twin) -> None:
    network, images, texts = twin
    pixels, (ids, lengths) = some_pixels(network)[:1], some_texts(network)
    own = as_published(network, ids[1][: lengths[1]])
    siglip, rows = network.config.model_type == "siglip", images(pixels)[0, 1:]
    if siglip:
        expected = naive_probe(network.vision_model, pixels)
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=0)
    else:
        for first, own_rows in ((0, rows), (1, ImageRows(images.encoder, 1)(pixels)[0, 1:])):
            summed, state = naive(network.vision_model, {"pixel_values": pixels}, 0, first)
            normed = naive_norm(network.vision_model.post_layernorm, summed[1:], state)
            expected = normed @ network.visual_projection.weight.T
            torch.testing.assert_close(own_rows, expected, atol=1e-5, rtol=0)
    summed, state = naive(network.text_model, {"input_ids": own}, own.shape[1] - 1)
    head = network.text_model.head if siglip else network.text_projection
    normed = naive_norm(network.text_model.final_layer_norm, summed, state)
    count = int(lengths[1]) - 1  # the last row has the remainder
    expected = (normed @ head.weight.T)[:count]
    torch.testing.assert_close(texts(ids, lengths)[1, :count], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_summaries_and_marks_have_no_evidence(twin: Twin) -> None:
    network, images, texts = twin
    cells, (ids, lengths) = images(some_pixels(network)), some_texts(network)
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


def some_texts(network: Any) -> tuple[Tensor, Tensor]:
    """Returns ids (3, 8) with start and end marks, padded with 0, and their lengths (3,)."""
    lengths, end = torch.tensor([8, 5, 3]), network.config.text_config.vocab_size - 1
    ids = torch.randint(2, end - 1, (3, 8), generator=torch.Generator().manual_seed(2))
    ids[:, 0] = end - 1
    ids[torch.arange(3), lengths - 1] = end
    return ids.masked_fill(torch.arange(8) >= lengths[:, None], 0), lengths


def as_published(network: Any, ids: Tensor) -> Tensor:
    """Returns one text (1, L) as in the authors' code, which pads SigLIP's to its context."""
    if network.config.model_type == "siglip":
        context = network.config.text_config.max_position_embeddings
        ids = torch.nn.functional.pad(ids, (0, context - len(ids)), value=1)
    return ids[None]


def naive(model: Any, inputs: dict[str, Tensor], position: int, first: int = 0) -> list[Tensor]:
    """Returns the contributions (N, h) to one token, from a layer on, and its state (h,)."""
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    states = output.hidden_states
    summed = torch.zeros_like(states[0][0])
    parts = zip(model.encoder.layers, states, output.attentions, strict=False)
    for layer, state, weights in list(parts)[first:]:
        attention = layer.self_attn
        values = attention.v_proj(layer.layer_norm1(state))[0]  # (N, h)
        for head in range(attention.num_heads):
            own = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            for token in range(len(values)):
                part = attention.out_proj.weight[:, own] @ values[token, own]
                summed[token] += weights[0, head, position, token] * part
    mask = None
    if type(model).__name__ == "CLIPTextModel":  # causal attention
        mask = torch.full((len(summed), len(summed)), -1e9).triu(1)[None, None]
    last = model.encoder(inputs_embeds=states[0], attention_mask=mask).last_hidden_state
    return [summed, last[0, position]]


def naive_norm(norm: torch.nn.LayerNorm, rows: Tensor, state: Tensor) -> Tensor:
    deviation = (((state - state.mean()) ** 2).mean() + norm.eps) ** 0.5
    return torch.stack([norm.weight * (row - row.mean()) / deviation for row in rows])


def naive_probe(model: Any, pixels: Tensor) -> Tensor:
    """Returns the contribution (N, d) of each patch to SigLIP's pooling query."""
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
