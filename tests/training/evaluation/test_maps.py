"""Maps of transformers against the formulas of their papers, and the comparison of maps."""

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyview.export.clip import build_clip
from polyview.models.encoders.published import CLIPImageEncoder
from polyview.training.evaluate import main
from polyview.training.evaluation.maps import MEASURES, ROWS, _score_sets, compute_maps
from polyview.training.scenes.store import write_split
from tests.export.conftest import LABELS
from tests.published import save_clip, save_image_model, spread
from tests.training.conftest import write_encoder
from tests.training.sample import BUNDLED, write_sample

HEADS = 3
Case = tuple[Any, Tensor, Tensor]


@pytest.fixture
def case() -> Case:
    """A small CLIP of 3 layers and 9 patches, pixels (2, 3, 48, 48), and texts (2, D)."""
    config: dict[str, Any] = {
        **{"hidden_size": 24, "intermediate_size": 48, "num_attention_heads": HEADS},
        **{"num_hidden_layers": 3, "image_size": 48, "patch_size": 16, "projection_dim": 16},
        "model_type": "clip_vision_model",
    }
    torch.manual_seed(0)
    encoder = spread(CLIPImageEncoder(config, projected=True)).double()
    encoder.model.set_attn_implementation("eager")
    return encoder, torch.randn(2, 3, 48, 48).double(), torch.randn(2, encoder.dim).double()


def test_maps_equal_the_papers_formulas(case: Case) -> None:
    """Cosines of patches, attention rollout, Grad-ECLIP and LeGrad."""
    encoder, pixels, texts = case
    layers = encoder.model.encoder.layers
    drawn = compute_maps(*case)
    for row, (image, text) in enumerate(zip(pixels, texts, strict=True)):
        states = states_of(encoder, image)
        for patch, value in zip(states[-1][1:], drawn["patch cosine"][row], strict=True):
            embedding = encoder.projection(encoder.model.post_layernorm(patch))
            assert float(value) == pytest.approx(cosine(embedding, text).item(), abs=1e-6)

        flow = identity = torch.eye(len(states[0])).double()
        for layer, state in zip(layers, states, strict=False):
            queries, keys, _ = attention_of(layer, state)
            flow = (weights_of(queries, keys).mean(dim=0) + identity) / 2 @ flow
        queries, keys, values, finish = reading_of(encoder, states, 2)
        torch.testing.assert_close(drawn["rollout"][row], flow[0, 1:])

        weights = weights_of(queries, keys)[:, :1]  # of [CLS]
        slope = gradient(lambda read: cosine(finish(read), text), attended(weights, values))  # noqa: B023
        alike = torch.cosine_similarity(queries[:1], keys[1:])
        loosened = (alike - alike.min()) / (alike.max() - alike.min())
        expected = (slope * loosened[:, None] * values[1:]).sum(dim=1).relu()
        torch.testing.assert_close(drawn["Grad-ECLIP"][row], expected)
        assert (expected > 1e-3).any()

        expected = torch.zeros(len(states[0])).double()
        for layer in range(len(layers)):
            queries, keys, values, finish = reading_of(encoder, states, layer)

            def score(weights: Tensor) -> Tensor:
                return cosine(finish(attended(weights, values)), text)  # noqa: B023

            slope = gradient(score, weights_of(queries, keys))  # (H, Q, T)
            expected += slope.relu().mean(dim=(0, 1)) / len(layers)
        torch.testing.assert_close(drawn["LeGrad"][row], expected[1:])
        assert (expected > 1e-3).any()


@torch.no_grad()
def test_no_layer_attends_to_deleted_patches(case: Case) -> None:
    encoder, pixels, texts = case
    present = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    present[0], present[1] = True, torch.arange(9) == 4
    scores = _score_sets(encoder, pixels[:1], texts[0], present)
    assert float(scores[0]) == pytest.approx(cosine(encoder(pixels[:1])[0, 0], texts[0]).item())
    state = states_of(encoder, pixels[0])[0]
    for row, value in zip(present, scores, strict=True):
        absent = torch.cat([torch.zeros(1).bool(), ~row])
        mask = torch.zeros(len(absent)).double().masked_fill(absent, -math.inf)
        hidden = encoder.model.encoder(
            inputs_embeds=state[None], attention_mask=mask[None, None, None]
        ).last_hidden_state[0]
        embedding = encoder.projection(encoder.model.post_layernorm(hidden[0]))
        assert float(value) == pytest.approx(cosine(embedding, texts[0]).item(), abs=1e-7)


def test_maps_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Maps of a random CLIP over four scenes; refuses other weights."""
    source = save_clip(tmp_path / "source", size=112)
    scenes = write_sample(tmp_path / "scenes", 4, ["vsepp"])
    build_clip(tmp_path / "pack", str(source), LABELS, scenes / "gallery")
    pack = ["--pack", f"{tmp_path}/pack", "--device", "cpu", "--json", f"{tmp_path}/rows.json"]
    main([*pack, "--evidence"])
    evidence = json.loads((tmp_path / "rows.json").read_text())["methods"]["clip"]
    main([*pack, "--maps", "--csv", str(tmp_path / "maps.csv")])
    rows = json.loads((tmp_path / "rows.json").read_text())["maps"]
    names = ["patch cosine", "rollout", "Grad-ECLIP", "LeGrad", "random"]
    assert set(rows) == {ROWS, f"{ROWS}, last half", *names, "chance"}
    # both commands measure all captions, since there are few
    assert rows[ROWS]["sentence"] == pytest.approx(evidence["evidence_pointing"])
    assert rows[ROWS]["word"] == pytest.approx(evidence["evidence_word_pointing"])
    assert rows["chance"]["sentence"] == pytest.approx(evidence["evidence_chance"])
    assert rows["chance"]["word"] == pytest.approx(evidence["evidence_word_chance"])
    for name in names:
        for measure in MEASURES:
            low, value, high = (rows[name][f"{measure}{end}"] for end in ("_low", "", "_high"))
            assert low <= value <= high
            behind = (rows[ROWS][measure] - value) * (-1 if measure == "deletion" else 1)
            assert rows[name][f"{measure}_behind"] == pytest.approx(behind)
    with (tmp_path / "maps.csv").open(encoding="utf-8") as table:
        lines = {row["map"]: float(row["sentence"]) for row in csv.DictReader(table)}
    sentences = {name: row["sentence"] for name, row in rows.items()}
    assert lines == pytest.approx(sentences, abs=1e-4)
    assert f"| LeGrad | {rows['LeGrad']['sentence']:.1f} (" in capsys.readouterr().out
    other = save_clip(tmp_path / "other", size=112, seed=1)
    with pytest.raises(SystemExit, match="other does not hold the weights of tiny; name"):
        main([*pack, "--maps", str(other)])
    for net in (write_encoder(tmp_path / "net"), save_image_model(tmp_path / "net_2", "resnet")):
        with pytest.raises(SystemExit, match=f"{net} holds another image encoder; choose a pack"):
            main([*pack, "--maps", str(net)])


@pytest.mark.font
@pytest.mark.slow
def test_maps_of_a_clip_from_this_repository_need_no_source(tmp_path: Path) -> None:
    write_split(tmp_path, "val", 2)
    pack = ["--pack", str(BUNDLED.parent / "clip_tiny"), "--device", "cpu", "--split", "val"]
    main([*pack, "--data", str(tmp_path), "--maps", "--json", str(tmp_path / "maps.json")])
    assert set(json.loads((tmp_path / "maps.json").read_text())["maps"]) >= {ROWS, "LeGrad"}


def cosine(first: Tensor, second: Tensor) -> Tensor:
    return first @ second / (first.norm() * second.norm())


def gradient(score: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.detach().requires_grad_()
    (slope,) = torch.autograd.grad(score(at), at)
    return slope


@torch.no_grad()
def states_of(encoder: Any, image: Tensor) -> list[Tensor]:
    """Returns an image's tokens (T, h) before each layer and after the last."""
    return [state[0] for state in encoder.model(image[None], output_hidden_states=True)[-1]]


def attention_of(layer: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    normed, attention = layer.layer_norm1(state), layer.self_attn
    return attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)


def reading_of(
    encoder: Any, states: Sequence[Tensor], number: int
) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Returns a layer's queries (Q, h), keys (T, h), values (T, h), and its continuation.

    The continuation maps the attention output of the first queries to the embedding (D,).
    """
    layer, state = encoder.model.encoder.layers[number], states[number]

    def finish(read: Tensor) -> Tensor:
        hidden = state[: len(read)] + layer.self_attn.out_proj(read)
        hidden = (hidden + layer.mlp(layer.layer_norm2(hidden))).mean(dim=0)
        embedding: Tensor = encoder.projection(encoder.model.post_layernorm(hidden))
        return embedding

    return *attention_of(layer, state), finish


def weights_of(queries: Tensor, keys: Tensor) -> Tensor:
    """Returns the attention (H, Q, T) of each head."""
    pairs = zip(queries.chunk(HEADS, dim=1), keys.chunk(HEADS, dim=1), strict=True)
    products = [query @ key.T / (keys.shape[1] // HEADS) ** 0.5 for query, key in pairs]
    return torch.stack(products).softmax(dim=2)


def attended(heads: Tensor, values: Tensor) -> Tensor:
    """Returns the attention output (Q, h), the heads concatenated."""
    parts = values.chunk(HEADS, dim=1)
    return torch.cat([weights @ part for weights, part in zip(heads, parts, strict=True)], dim=1)
