"""VSE-infinity: GPO, aggregators, encoders, loss and training against loops and the release."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyview.models.aggregators import AGGREGATORS, Aggregator, GraphConvolution, SelfAttention
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.gpo import GPO, build_pooling
from polyview.models.views import lengths_to_mask
from polyview.models.vse_infty import VSEInfinity
from polyview.training.objectives.losses import same_image
from tests.golden import loading as golden
from tests.models.conftest import IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.conftest import hinge_triplet


@pytest.fixture(params=["paper", "release"])
def gpo(request: pytest.FixtureRequest) -> GPO:
    return GPO() if request.param == "paper" else GPO(released=True)


def gpo_pool(gpo: GPO, features: Tensor) -> Tensor:
    """Pools one set (N, D) to (D,), one number at a time: VSE-infinity, Eqs. (2)-(5)."""
    count, dim = features.shape
    encoding = torch.zeros(count, gpo.position_dim)
    for k in range(count):
        position = k + gpo.first_position
        for j in range(gpo.position_dim // 2):
            w = 1.0 / 10000 ** (2 * j / gpo.position_dim)
            encoding[k, 2 * j] = math.sin(w * position)  # Eq. (4)
            encoding[k, 2 * j + 1] = math.cos(w * position)
    states, _ = gpo.gru(encoding[None])
    half = states.shape[-1] // 2
    scores = [gpo.score((s[:half] + s[half:]) / 2).squeeze() / gpo.temperature for s in states[0]]
    theta = torch.stack(scores).softmax(0)  # Eq. (5)
    pooled = torch.zeros(dim)
    for i in range(dim):
        ranked = sorted(features[:, i].tolist(), reverse=True)
        pooled[i] = sum(t * v for t, v in zip(theta.tolist(), ranked, strict=True))  # Eq. (2)
    return pooled


def test_gpo_equals_the_naive_loop_for_any_mask(gpo: GPO) -> None:
    features = torch.randn(4, 7, 5)
    mask = torch.arange(7) < torch.tensor([7, 1, 3, 3])[:, None]
    mask[3] = torch.tensor([False, True, False, True, True, False, False])
    pooled = gpo(features, mask)
    shares = gpo.shares(features, mask, pooled)
    for b, real in enumerate(mask):
        expected = gpo_pool(gpo, features[b, real])
        torch.testing.assert_close(pooled[b], expected, rtol=1e-5, atol=1e-6)
        single = features[b : b + 1, real], torch.ones(1, int(real.sum())).bool()
        torch.testing.assert_close(shares[b, real], gpo.shares(*single, gpo(*single))[0])
    assert (GPO().first_position, GPO().temperature) == (1, 1.0)  # the paper's values


def test_cached_coefficients_are_recomputed_when_the_weights_change(gpo: GPO) -> None:
    runs: list[int] = []
    gpo.gru.register_forward_hook(lambda *_: runs.append(1))
    sizes = torch.tensor([3, 6, 3]), torch.tensor([6, 4])
    with torch.inference_mode():
        stored = [gpo.coefficients(some) for some in (*sizes, *sizes)]
    assert len(runs) == 2  # 3 and 6, then 4
    for some, theta in zip((*sizes, *sizes), stored, strict=True):
        torch.testing.assert_close(theta, gpo.coefficients(some).detach())
    gpo.coefficients(sizes[0])[0, 0].backward()
    torch.optim.AdamW(gpo.parameters(), lr=0.1, fused=True).step()
    with torch.no_grad():
        trained = gpo.coefficients(sizes[0])
        assert not torch.allclose(trained, stored[0])
        next(gpo.gru.parameters()).mul_(3)
        assert not torch.allclose(gpo.coefficients(sizes[0]), trained)


def test_shares_add_up_to_the_squared_length() -> None:
    gpo = GPO(released=True)
    features = torch.rand(1, 6, 4)  # positive, so that no share is cut off at 0
    with torch.no_grad():
        mask = torch.ones(1, 6, dtype=torch.bool)
        pooled = gpo(features, mask)
        shares = gpo.shares(features, mask, pooled)
        theta = gpo.coefficients(torch.tensor([6]))[0]
    expected = torch.zeros(6)
    for i in range(4):
        for k, n in enumerate(features[0, :, i].argsort(descending=True).tolist()):
            expected[n] += theta[k] * features[0, n, i] * pooled[0, i]
    torch.testing.assert_close(shares[0], expected / pooled.square().sum())


def test_an_element_with_a_negative_contribution_has_no_share(gpo: GPO) -> None:
    features, mask = torch.tensor([[[9.0], [-1.0]]]), torch.ones(1, 2, dtype=torch.bool)
    shares = gpo.shares(features, mask, gpo(features, mask))
    torch.testing.assert_close(shares, torch.tensor([[1.0, 0.0]]))


def test_fixed_poolings_by_rank() -> None:
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda x: x.mean(dim=0),
        "max": lambda x: x.amax(dim=0),
        "kmax": lambda x: x.topk(min(2, len(x)), dim=0).values.mean(dim=0),
    }
    features = torch.randn(3, 5, 4)
    mask = lengths_to_mask(torch.tensor([5, 1, 3]), 5)
    for kind, expected in kinds.items():
        pooling = build_pooling(kind, 2)
        pooled = pooling(features, mask)
        for b in range(3):
            torch.testing.assert_close(pooled[b], expected(features[b, mask[b]]))
        assert not pooling.state_dict()


@pytest.mark.parametrize("name", ["gpo_regions", "gpo_varlen", "gpo_short", "gpo_negative_scale"])
def test_golden_gpo(name: str) -> None:
    data = golden.load(name)
    gpo, constants = golden.released_gpo(data, "gpo."), GPO(released=True)
    assert constants.temperature == pytest.approx(float(data["temperature"]))
    assert constants.first_position == int(data["first_position"])
    features = data["features"].requires_grad_()
    mask = lengths_to_mask(data["lengths"], features.shape[1])
    pooled = gpo(features, mask)
    golden.check(pooled, data["pooled"])
    (pooled * data["upstream"]).sum().backward()
    golden.check(golden.grad(features), data["grad_features"])
    golden.check_gradients(gpo, golden.renamed(data, "grad.gpo.", golden.GPO_NAMES))


# names in the release -> names here; the release never uses its second batch norm
NAMES = {
    "img_enc.fc.": "method.project_image.linear.",
    "img_enc.mlp.layers.0.": "method.project_image.mlp.0.",
    "img_enc.mlp.bns.0.": "method.project_image.mlp.1.",
    "img_enc.mlp.layers.1.": "method.project_image.mlp.3.",
    "img_enc.gpool.linear.": "method.pool_image.score.",
    "img_enc.gpool.": "method.pool_image.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.forward_gru.",
    "txt_enc.gpool.linear.": "method.pool_text.score.",
    "txt_enc.gpool.": "method.pool_text.",
}


def weights(data: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Returns weights, or gradients or buffers below a prefix, by the names of a `Stack`."""
    named = {}
    for name, value in golden.renamed(data, prefix, NAMES).items():
        if name.startswith("text.") and name.endswith("_reverse"):
            name = name.replace("forward", "backward").removesuffix("_reverse")
        if name.startswith(("method.", "text.")):
            named[name] = value
    return named


class Stack(nn.Module):
    """The method and its text encoder, with the sizes and weights of a golden file."""

    def __init__(self, data: dict[str, Tensor]) -> None:
        super().__init__()
        image = data.get("img_enc.fc.weight", torch.empty(0, 2))
        words = data.get("txt_enc.embed.weight", torch.empty(3, 2))
        mlp_dim = len(data.get("img_enc.mlp.layers.0.bias", torch.empty(2)))
        dim = data.get("txt_enc.rnn.weight_hh_l0", image.T).shape[1]
        self.text = BiGRUTextEncoder(len(words), words.shape[1], dim)
        options: dict[str, Any] = {"mlp_dim": mlp_dim, "released_gpo": True}
        self.method = VSEInfinity(image.shape[1], dim, dim, pad_statistics=True, **options)
        assert not self.load_state_dict(weights(data), strict=False).unexpected_keys

    def embed_images(self, images: Tensor, lengths: Tensor) -> Tensor:
        """Maps regions (B, N, d) and set sizes (B,) to embeddings (B, D)."""
        mask = lengths_to_mask(lengths, images.shape[1])
        return self.method.encode_image(images, mask).embeddings[:, 0]

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Maps word ids (B, L) and lengths (B,) to embeddings (B, D)."""
        mask = lengths_to_mask(lengths, tokens.shape[1])
        return self.method.encode_text(self.text(tokens, lengths), mask).embeddings[:, 0]

    def check_gradients(self, data: dict[str, Tensor]) -> None:
        """Compares all gradients with those of a golden file."""
        reached = {name: p.grad for name, p in self.named_parameters() if p.grad is not None}
        expected = weights(data, "grad.")
        assert reached.keys() == expected.keys()
        for name, gradient in reached.items():
            golden.check(gradient, expected[name])


def test_golden_image_encoder_training() -> None:
    data = golden.load("vse_image_encoder")
    stack = Stack(data).train()
    embedding = stack.embed_images(data["images"], data["lengths"])
    golden.check(embedding, data["embedding_train"])
    (embedding * data["upstream"]).sum().backward()
    stack.check_gradients(data)
    buffers, after = dict(stack.named_buffers()), weights(data, "after_train.")
    assert after
    for name, value in after.items():
        golden.check(buffers[name], value)


def test_golden_text_encoder() -> None:
    data = golden.load("vse_text_encoder_bigru")
    stack = Stack(data)
    embedding = stack.embed_texts(data["tokens"], data["lengths"])
    golden.check(embedding, data["embedding"])
    (embedding * data["upstream"]).sum().backward()
    stack.check_gradients(data)


def test_golden_training_steps() -> None:
    data = golden.load("vse_training_steps")
    stack = Stack(data).train()
    optimizer = torch.optim.AdamW(
        stack.parameters(),
        lr=float(data["learning_rate"]),
        betas=tuple(data["adam_betas"].tolist()),
        eps=float(data["adam_eps"]),
        weight_decay=float(data["weight_decay"]),
    )
    own = torch.eye(len(data["images"]), dtype=torch.bool)
    for step, hardest in enumerate(data["hardest_used"].tolist()):
        images = stack.embed_images(data["images"], data["image_lengths"])
        texts = stack.embed_texts(data["tokens"], data["caption_lengths"])
        loss = hinge_triplet(images @ texts.T, own, float(data["margin"]), hardest=bool(hardest))
        assert loss.item() == pytest.approx(float(data["losses"][step]), rel=5e-5)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(stack.parameters(), float(data["grad_clip"]))
        assert norm.item() == pytest.approx(float(data["grad_norms_before_clip"][step]), rel=5e-5)
        optimizer.step()
    stack.eval()
    texts = stack.embed_texts(data["tokens"], data["caption_lengths"])
    golden.check(texts, data["caption_embedding_after"], 1e-4)
    images = stack.embed_images(data["images"], data["image_lengths"])
    # the bias before the batch norm has no gradient; Adam moves it by rounding errors
    golden.check(images, data["image_embedding_after"], 2e-3)


@pytest.mark.parametrize("kind", ["sum", "hardest"])
def test_golden_triplet(kind: str) -> None:
    data = golden.load("triplet_vse")
    images, texts = data["images"].requires_grad_(), data["captions"].requires_grad_()
    own = torch.eye(len(images), dtype=torch.bool)
    loss = hinge_triplet(images @ texts.T, own, float(data["margin"]), hardest=kind == "hardest")
    golden.check(loss, data[f"loss_{kind}"])
    loss.backward()
    golden.check(golden.grad(images), data[f"grad_images_{kind}"])
    golden.check(golden.grad(texts), data[f"grad_captions_{kind}"])


@pytest.mark.parametrize("kind", ["sum", "hardest"])
def test_golden_duplicate_images(kind: str) -> None:
    data = golden.load("triplet_duplicate_images")
    scores, margin = data["images"] @ data["captions"].T, float(data["margin"])
    own = torch.eye(len(scores), dtype=torch.bool)
    together = same_image(data["image_ids"])
    released = hinge_triplet(scores, own, margin, hardest=kind == "hardest")
    golden.check(released, data[f"loss_official_{kind}"])
    masked = hinge_triplet(scores, together, margin, hardest=kind == "hardest")
    golden.check(masked, data[f"loss_idmasked_reference_{kind}"])


@torch.no_grad()
def test_the_displayed_curve_has_the_coefficients_of_the_set_size() -> None:
    method = VSEInfinity(IMAGE_DIM, TEXT_DIM, 16)
    pools = method.pool_image, method.pool_text
    for array, pool, size in zip(method.inside(*encoded(method)), pools, (20, 6), strict=True):
        assert isinstance(pool, GPO)
        torch.testing.assert_close(array.values, pool.coefficients(torch.tensor([size])))


NARROW = 6
SIZES = (5, 1, 3)


def aggregator_of(kind: str) -> Aggregator:
    """Builds an aggregator in eval mode with random batch norms."""
    torch.manual_seed(2)
    module = Aggregator(kind, NARROW)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
            part.running_mean = torch.randn(part.num_features)
            part.running_var = torch.rand(part.num_features) + 0.5
    return module.eval()


def graph_layer(layer: GraphConvolution, x: Tensor) -> Tensor:
    """Computes v + BN(W (R g(v))), R = theta(v) phi(v)^T / N, of one set (N, D): VSRN's release."""
    read = torch.zeros_like(x)
    for n in range(len(x)):
        for m in range(len(x)):
            relation = layer.query(x[n]) @ layer.key(x[m]) / len(x)
            read[n] += relation * layer.value(x[m])
    norm = layer.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    normal = (layer.output(read) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return x + normal * norm.weight + norm.bias


def self_attention(layer: SelfAttention, x: Tensor) -> Tensor:
    """Computes x_n + sum_m softmax_m(q_n k_m / sqrt(D)) v_m of one set (N, D)."""
    parts = layer.query(x)[None], layer.key(x)[None], layer.value(x)[None]
    return x + nn.functional.scaled_dot_product_attention(*parts)[0]


def written_out(aggregator: Aggregator, x: Tensor) -> Tensor:
    """Pools one set (N, D) without padding to (D,)."""
    for layer in aggregator.layers:
        if isinstance(layer, SelfAttention):
            x = self_attention(layer, x)
        else:
            assert isinstance(layer, GraphConvolution)
            x = graph_layer(layer, x)
    if aggregator.gru is None:
        return x.mean(dim=0)
    states: Tensor = aggregator.gru(x[None])[0]  # (1, N, D)
    return states[0, -1]


@pytest.mark.parametrize("kind", AGGREGATORS)
@torch.no_grad()
def test_aggregators_equal_loops_for_any_mask(kind: str) -> None:
    aggregator = aggregator_of(kind)
    features, mask = torch.randn(3, 5, NARROW), lengths_to_mask(torch.tensor(SIZES), 5)
    mask[2] = torch.tensor([True, False, True, False, True])  # size augmentation drops anywhere
    pooled = aggregator(features.masked_fill(~mask[..., None], 1e3), mask)
    for row in range(3):
        expected = written_out(aggregator, features[row, mask[row]])
        torch.testing.assert_close(pooled[row], expected, rtol=1e-4, atol=1e-5)
    assert VSEInfinity(NARROW, NARROW, NARROW, pooling=kind).order_matters == ("seq2seq" in kind)


@pytest.mark.parametrize(
    ("kind", "millions"),
    [("seq2seq", 6.3), ("self_attention", 3.1), ("gcn", 4.2), ("gcn_seq2seq", 23.1)],
)
def test_sizes_are_those_of_table_1(kind: str, millions: float) -> None:
    """Millions of parameters; the paper states 3.2 for self-attention."""
    with torch.device("meta"):
        aggregator = Aggregator(kind, 1024)
    count = sum(parameter.numel() for parameter in aggregator.parameters())
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize("kind", AGGREGATORS)
def test_gradients_reach_every_parameter_of_an_aggregator(kind: str) -> None:
    aggregator = aggregator_of(kind).train()
    features, mask = torch.randn(4, 5, NARROW), torch.ones(4, 5, dtype=torch.bool)
    (aggregator(features, mask) * torch.randn(4, NARROW)).sum().backward()
    silent = [n for n, p in aggregator.named_parameters() if p.grad is None or not p.grad.any()]
    assert all(name.endswith("output.bias") for name in silent)  # a bias before a norm
