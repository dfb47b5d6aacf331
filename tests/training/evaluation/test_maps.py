"""Maps of transformers against their papers' formulas, written as loops, and the comparison."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyview.export.clip import build_clip
from polyview.models.encoders.published import CLIPImageEncoder, SiglipImageEncoder
from polyview.training.evaluate import main
from polyview.training.evaluation.maps import MEASURES, ROWS, _score_sets, draw_maps
from tests.clip_twins import VIT_B_32, save_twin, spread
from tests.export.conftest import LABELS
from tests.training.sample import BUNDLED, write_sample

HEADS, STEP = 3, 1e-4
Case = tuple[Any, Tensor, Tensor]


@pytest.fixture(params=["clip", "siglip"])
def case(request: pytest.FixtureRequest) -> Case:
    """A small encoder of 3 layers and 9 patches, pixels (2, 3, 48, 48), and texts (2, D)."""
    config: dict[str, Any] = {
        **{"hidden_size": 24, "intermediate_size": 48, "num_attention_heads": HEADS},
        **{"num_hidden_layers": 3, "image_size": 48, "patch_size": 16, "projection_dim": 16},
        "model_type": f"{request.param}_vision_model",
    }
    torch.manual_seed(0)
    encoder: Any
    if request.param == "clip":
        encoder = CLIPImageEncoder(config, projected=True)
    else:
        encoder = SiglipImageEncoder(config)
    encoder = spread(encoder).double()
    encoder.model.set_attn_implementation("eager")
    return encoder, torch.randn(2, 3, 48, 48).double(), torch.randn(2, encoder.dim).double()


def test_patches_are_compared_as_the_whole_image_is(case: Case) -> None:
    encoder, pixels, texts = case
    for image, text, drawn in zip(pixels, texts, draw_maps(*case)["patch cosine"], strict=True):
        state = states_of(encoder, image)[-1]
        for patch, value in zip(state[is_clip(encoder) :], drawn, strict=True):
            if is_clip(encoder):
                embedding = finish_clip(encoder, patch)
            else:  # as if the query attended to this patch alone
                embedding = encoder.model.head(encoder.model.post_layernorm(patch)[None, None])[0]
            assert float(value) == pytest.approx(cosine(embedding, text), abs=1e-6)


def test_rollout_follows_attention_from_layer_to_layer(case: Case) -> None:
    encoder, pixels, _ = case
    for image, drawn in zip(pixels, draw_maps(*case)["rollout"], strict=True):
        states = states_of(encoder, image)
        count = len(states[0])
        flow = [[float(i == j) for j in range(count)] for i in range(count)]
        for layer, state in zip(encoder.model.encoder.layers, states, strict=False):
            heads = weights_of(*attention_of(layer, state)[:2])
            passed = [
                [(sum(float(h[i, j]) for h in heads) / HEADS + (i == j)) / 2 for j in range(count)]
                for i in range(count)
            ]
            flow = [
                [sum(passed[i][k] * flow[k][j] for k in range(count)) for j in range(count)]
                for i in range(count)
            ]
        if is_clip(encoder):
            expected = flow[0][1:]
        else:
            query, keys, _ = probe_of(encoder, states[-1])
            read = [
                float(sum(h[0, k] for h in weights_of(query, keys))) / HEADS for k in range(count)
            ]
            expected = [sum(read[k] * flow[k][j] for k in range(count)) for j in range(count)]
        assert drawn.tolist() == pytest.approx(expected)


def test_grad_eclip_weighs_values_by_gradient_and_loosened_attention(case: Case) -> None:
    encoder, pixels, texts = case
    for image, text, drawn in zip(pixels, texts, draw_maps(*case)["Grad-ECLIP"], strict=True):
        states = states_of(encoder, image)
        if is_clip(encoder):
            layer, state = encoder.model.encoder.layers[-1], states[-2]
            query, keys, values = attention_of(layer, state)
            query = query[:1]
        else:
            query, keys, values = probe_of(encoder, states[-1])

        def score(read: Tensor) -> float:
            if not is_clip(encoder):
                return cosine(finish_siglip(encoder, read), text)  # noqa: B023
            hidden = state[0] + layer.self_attn.out_proj(read)  # noqa: B023
            hidden = hidden + layer.mlp(layer.layer_norm2(hidden))  # noqa: B023
            return cosine(finish_clip(encoder, hidden), text)  # noqa: B023

        read = attended(weights_of(query, keys), values)[0]
        steps = STEP * torch.eye(len(read)).double()
        gradient = [(score(read + step) - score(read - step)) / (2 * STEP) for step in steps]
        first = is_clip(encoder)
        alike = [cosine(query[0], key) for key in keys[first:]]
        expected = []
        for value, each in zip(values[first:], alike, strict=True):
            loosened = (each - min(alike)) / (max(alike) - min(alike))
            channels = zip(gradient, value.tolist(), strict=True)
            expected.append(max(0, sum(w * loosened * v for w, v in channels)))
        assert drawn.tolist() == pytest.approx(expected, abs=1e-6)
        assert max(expected) > 1e-3


def test_legrad_adds_up_positive_gradients_of_every_layer(case: Case) -> None:
    encoder, pixels, texts = case
    layers = encoder.model.encoder.layers
    for image, text, drawn in zip(pixels, texts, draw_maps(*case)["LeGrad"], strict=True):
        states = states_of(encoder, image)
        expected = torch.zeros(len(states[0]))
        for layer, before, after in zip(layers, states, states[1:], strict=False):
            source = before if is_clip(encoder) else after
            parts = attention_of(layer, before) if is_clip(encoder) else probe_of(encoder, after)
            heads = weights_of(*parts[:2])

            def score(head: int, row: int, place: int, step: float) -> float:
                changed = [weights.clone() for weights in heads]  # noqa: B023
                changed[head][row, place] += step
                read = attended(changed, parts[2])  # noqa: B023
                if not is_clip(encoder):
                    return cosine(finish_siglip(encoder, read[0]), text)  # noqa: B023
                hidden = source + layer.self_attn.out_proj(read)  # noqa: B023
                hidden = hidden + layer.mlp(layer.layer_norm2(hidden))  # noqa: B023
                return cosine(finish_clip(encoder, hidden.mean(dim=0)), text)  # noqa: B023

            rows, columns = heads[0].shape
            for head in range(HEADS):
                for row in range(rows):
                    for place in range(columns):
                        up, down = (score(head, row, place, step) for step in (STEP, -STEP))
                        part = max(0, (up - down) / (2 * STEP)) / (HEADS * rows * len(layers))
                        expected[place] += part
        first = is_clip(encoder)
        assert drawn.tolist() == pytest.approx(expected[first:].tolist(), abs=1e-6)
        assert float(expected.max()) > 1e-3


@torch.no_grad()
def test_deleted_patches_are_seen_by_no_layer(case: Case) -> None:
    encoder, pixels, texts = case
    present = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    present[0], present[1] = True, torch.arange(9) == 4
    scores = _score_sets(encoder, pixels[:1], texts[0], present)
    assert float(scores[0]) == pytest.approx(cosine(encoder(pixels[:1])[0, 0], texts[0]))
    state = states_of(encoder, pixels[0])[0]
    for row, value in zip(present, scores, strict=True):
        first = is_clip(encoder)
        absent = torch.cat([torch.zeros(int(first)).bool(), ~row])
        mask = torch.zeros(len(absent)).double().masked_fill(absent, -math.inf)
        hidden = encoder.model.encoder(
            inputs_embeds=state[None], attention_mask=mask[None, None, None]
        ).last_hidden_state[0]
        if first:
            embedding = finish_clip(encoder, hidden[0])
        else:
            query, keys, values = probe_of(encoder, hidden)
            heads = [part.masked_fill(absent, 0) for part in weights_of(query, keys)]
            heads = [part / part.sum() for part in heads]
            embedding = finish_siglip(encoder, attended(heads, values)[0])
        assert float(value) == pytest.approx(cosine(embedding, texts[0]), abs=1e-7)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The weights of a random CLIP, and the pack made of them over a few scenes."""
    root = tmp_path_factory.mktemp("maps")
    source = save_twin(root / "source", VIT_B_32)
    scenes = write_sample(root / "scenes", 12)
    build_clip(root / "pack", str(source), LABELS, scenes / "gallery")
    return source, root / "pack"


def test_maps_are_compared(
    twin: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = ["--pack", str(twin[1]), "--device", "cpu", "--json", str(tmp_path / "rows.json")]
    main([*pack, "--evidence"])
    evidence = json.loads((tmp_path / "rows.json").read_text())["methods"]["clip"]
    main([*pack, "--maps", "--csv", str(tmp_path / "maps.csv")])
    rows = json.loads((tmp_path / "rows.json").read_text())["maps"]
    names = [f"{ROWS}, last half", "patch cosine", "rollout", "Grad-ECLIP", "LeGrad", "random"]
    assert set(rows) == {ROWS, *names, "chance"}
    # all captions are few enough, so that both commands measure the same ones
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
        lines = {row.pop("map"): row for row in csv.DictReader(table)}
    assert {name: float(line["sentence"]) for name, line in lines.items()} == pytest.approx(
        {name: row["sentence"] for name, row in rows.items()}, abs=1e-4
    )
    assert lines["chance"]["deletion"] == ""
    assert f"| LeGrad | {rows['LeGrad']['sentence']:.1f} (" in capsys.readouterr().out


def test_other_packs_and_weights_are_refused(twin: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="scenes has none; python -m polyview clip makes one"):
        main(["--pack", str(BUNDLED), "--device", "cpu", "--maps"])
    other = save_twin(tmp_path / "other", VIT_B_32, seed=1)
    with pytest.raises(SystemExit, match="other is not what tiny was made of; name that source"):
        main(["--pack", str(twin[1]), "--device", "cpu", "--maps", str(other)])


def test_a_clip_that_was_trained_here_is_read_from_its_pack(
    scenes_folder: Path, tmp_path: Path
) -> None:
    pack = ["--pack", str(BUNDLED.parent / "clip_tiny"), "--device", "cpu", "--split", "val"]
    main([*pack, "--data", str(scenes_folder), "--maps", "--json", str(tmp_path / "maps.json")])
    assert set(json.loads((tmp_path / "maps.json").read_text())["maps"]) >= {ROWS, "LeGrad"}


def is_clip(encoder: Any) -> bool:
    return isinstance(encoder, CLIPImageEncoder)


def cosine(first: Tensor, second: Tensor) -> float:
    return (first @ second / (first.norm() * second.norm())).item()


@torch.no_grad()
def states_of(encoder: Any, image: Tensor) -> list[Tensor]:
    """An image's tokens (T, h) before each layer and behind the last one."""
    return [state[0] for state in encoder.model(image[None], output_hidden_states=True)[-1]]


def attention_of(layer: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (T, h) of a layer."""
    normed, attention = layer.layer_norm1(state), layer.self_attn
    return attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)


def probe_of(encoder: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """SigLIP's query (1, h), and the keys and values (T, h) of a layer's tokens."""
    head, tokens = encoder.model.head, encoder.model.post_layernorm(state)
    width, attention = tokens.shape[1], head.attention
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    query = head.probe[0] @ weight[:width].T + bias[:width]
    keys = tokens @ weight[width : 2 * width].T + bias[width : 2 * width]
    return query, keys, tokens @ weight[2 * width :].T + bias[2 * width :]


def weights_of(queries: Tensor, keys: Tensor) -> list[Tensor]:
    """Each head's attention (Q, T)."""
    size = keys.shape[1] // HEADS
    parts = [slice(head * size, (head + 1) * size) for head in range(HEADS)]
    products = [queries[:, own] @ keys[:, own].T / size**0.5 for own in parts]
    return [each.detach().softmax(dim=1) for each in products]


def attended(heads: list[Tensor], values: Tensor) -> Tensor:
    """What queries read (Q, h), head beside head."""
    parts = values.chunk(HEADS, dim=1)
    return torch.cat([weights @ part for weights, part in zip(heads, parts, strict=True)], dim=1)


def finish_clip(encoder: Any, hidden: Tensor) -> Tensor:
    embedding: Tensor = encoder.projection(encoder.model.post_layernorm(hidden))
    return embedding


def finish_siglip(encoder: Any, read: Tensor) -> Tensor:
    head = encoder.model.head
    hidden = head.attention.out_proj(read)
    embedding: Tensor = hidden + head.mlp(head.layernorm(hidden))
    return embedding
