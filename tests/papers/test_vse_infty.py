"""VSE-infinity: GPO, encoders, loss and training, against loops and the official code."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.gpo import GPO, build_pooling
from polyview.models.views import lengths_to_mask
from polyview.models.vse_infty import VSEInfinity
from polyview.training.objectives.losses import same_image
from tests import reference
from tests.golden.loading import (
    GPO_NAMES,
    check,
    check_gradients,
    grad,
    load,
    load_weights,
    released_gpo,
    renamed,
)
from tests.models.conftest import IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.terms import hinge_triplet


@pytest.fixture(params=["paper", "release"])
def gpo(request: pytest.FixtureRequest) -> GPO:
    return GPO() if request.param == "paper" else GPO.released()


def test_the_paper_counts_from_1_and_has_a_plain_softmax() -> None:
    assert (GPO().first_position, GPO().temperature) == (1, 1.0)


def test_equals_the_naive_loops(gpo: GPO) -> None:
    features = torch.randn(4, 7, 5)
    sizes = [7, 1, 3, 3]
    mask = torch.arange(7) < torch.tensor(sizes)[:, None]
    pooled, _ = gpo(features, mask)
    for b, size in enumerate(sizes):
        expected = reference.gpo_pool(gpo, features[b, :size])
        torch.testing.assert_close(pooled[b], expected, rtol=1e-5, atol=1e-6)


def test_real_elements_may_stand_anywhere(gpo: GPO) -> None:
    features = torch.randn(1, 5, 3)
    mask = torch.tensor([[False, True, False, True, True]])
    pooled, shares = gpo(features, mask, shares=True)
    expected, front = gpo(features[:, [1, 3, 4]], torch.ones(1, 3, dtype=torch.bool), shares=True)
    torch.testing.assert_close(pooled, expected)
    torch.testing.assert_close(shares[:, [1, 3, 4]], front)


def test_coefficients_sum_to_one_and_depend_on_the_size(gpo: GPO) -> None:
    theta = gpo.coefficients(torch.tensor([2, 5, 2]))
    torch.testing.assert_close(theta.sum(1), torch.ones(3))
    assert theta[0, 2:].abs().max() == 0
    assert torch.equal(theta[0], theta[2])
    assert not torch.allclose(theta[0, :2], theta[1, :2])


def test_coefficients_are_generated_again_when_the_weights_change(gpo: GPO) -> None:
    runs: list[int] = []
    gpo.gru.register_forward_hook(lambda *_: runs.append(1))
    sizes = torch.tensor([3, 6, 3]), torch.tensor([6, 4])
    with torch.inference_mode():
        stored = [gpo.coefficients(some) for some in (*sizes, *sizes)]
    assert len(runs) == 2  # 3 and 6, then 4
    for some, theta in zip((*sizes, *sizes), stored, strict=True):
        torch.testing.assert_close(theta, gpo.coefficients(some).detach())
    with torch.no_grad():
        next(gpo.gru.parameters()).mul_(3)
        changed = gpo.coefficients(sizes[0])
        assert not torch.allclose(changed, stored[0])
    optimizer = torch.optim.AdamW(gpo.parameters(), lr=0.1, fused=True)
    gpo.coefficients(sizes[0])[0, 0].backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.allclose(gpo.coefficients(sizes[0]), changed)


def test_shares_add_up_to_the_squared_length() -> None:
    gpo = GPO.released()
    features = torch.rand(1, 6, 4)  # positive, so that nothing pulls the other way
    with torch.no_grad():
        pooled, shares = gpo(features, torch.ones(1, 6, dtype=torch.bool), shares=True)
        theta = gpo.coefficients(torch.tensor([6]))[0]
    order = features[0].argsort(dim=0, descending=True)
    for n in range(6):
        part = sum(
            float(theta[k] * features[0, n, i] * pooled[0, i])
            for i in range(4)
            for k in range(6)
            if order[k, i] == n
        )
        assert float(shares[0, n]) == pytest.approx(part / float(pooled.square().sum()), abs=1e-5)


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
        pooled, _ = pooling(features, mask)
        for b in range(3):
            torch.testing.assert_close(pooled[b], expected(features[b, mask[b]]))
        assert not pooling.state_dict()


@pytest.mark.parametrize("name", ["gpo_regions", "gpo_varlen", "gpo_short", "gpo_negative_scale"])
def test_golden_gpo(name: str) -> None:
    data = load(name)
    gpo, constants = released_gpo(data, "gpo."), GPO.released()
    assert constants.temperature == pytest.approx(float(data["temperature"]))
    assert constants.first_position == int(data["first_position"])
    features = data["features"].requires_grad_()
    mask = lengths_to_mask(data["lengths"], features.shape[1])
    theta = gpo.coefficients(data["lengths"])
    check(theta, data["pool_weights"][:, : theta.shape[1]])
    assert data["pool_weights"][:, theta.shape[1] :].abs().sum() == 0
    pooled, _ = gpo(features, mask)
    check(pooled, data["pooled"])
    (pooled * data["upstream"]).sum().backward()
    check(grad(features), data["grad_features"])
    check_gradients(gpo, renamed(data, "grad.gpo.", GPO_NAMES))


# a second batch-norm is stored by the release and never used
IMAGE_NAMES = {
    "fc.": "project_image.linear.",
    "mlp.layers.0.": "project_image.mlp.0.",
    "mlp.bns.0.": "project_image.mlp.1.",
    "mlp.layers.1.": "project_image.mlp.3.",
    "gpool.linear.": "pool_image.score.",
    "gpool.": "pool_image.",
}


def image_weights(data: dict[str, Tensor], prefix: str = "img_enc.") -> dict[str, Tensor]:
    named = renamed(data, prefix, IMAGE_NAMES)
    return {k: v for k, v in named.items() if not k.startswith("mlp.bns.1.")}


def text_weights(data: dict[str, Tensor], prefix: str = "txt_enc.") -> dict[str, Tensor]:
    """Of the text encoder, `embed` and the two directions' GRUs."""
    weights = {f"embed.{k}": v for k, v in renamed(data, f"{prefix}embed.", {}).items()}
    for name, value in renamed(data, f"{prefix}rnn.", {}).items():
        direction = "backward_gru." if name.endswith("_reverse") else "forward_gru."
        weights[direction + name.removesuffix("_reverse")] = value
    return weights


class Stack(nn.Module):
    """The method and its text encoder, with the sizes of a file's weights."""

    def __init__(self, data: dict[str, Tensor], *, images: bool, texts: bool) -> None:
        super().__init__()
        dims: dict[str, Any] = {"embed_dim": 4, "mlp_dim": 2, "image_dim": 2, "text_dim": 4}
        if images:
            embed_dim, image_dim = data["img_enc.fc.weight"].shape
            mlp_dim = len(data["img_enc.mlp.layers.0.bias"])
            dims |= {"embed_dim": embed_dim, "image_dim": image_dim, "mlp_dim": mlp_dim}
        if texts:
            vocabulary, word_dim = data["txt_enc.embed.weight"].shape
            hidden = data["txt_enc.rnn.weight_hh_l0"].shape[1]
            dims |= {"embed_dim": hidden, "text_dim": hidden}
            self.text = BiGRUTextEncoder(vocabulary, word_dim, hidden)
            load_weights(self.text, text_weights(data))
        self.method = VSEInfinity(**dims, released_gpo=True, pad_statistics=True)
        if images:
            weights = image_weights(data)
            load_weights(self.method.pool_image, below(weights, "pool_image."))
            load_weights(self.method.project_image, below(weights, "project_image."))
        if texts:
            load_weights(self.method.pool_text, renamed(data, "txt_enc.gpool.", GPO_NAMES))

    def embed_images(self, images: Tensor, lengths: Tensor) -> Tensor:
        """(B, N, d) regions and the set sizes to (B, D)."""
        mask = lengths_to_mask(lengths, images.shape[1])
        return self.method.encode_image(images, mask).embeddings[:, 0]

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, L) word ids and the lengths to (B, D)."""
        mask = lengths_to_mask(lengths, tokens.shape[1])
        return self.method.encode_text(self.text(tokens, lengths), mask).embeddings[:, 0]


def below(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def test_golden_image_encoder_training() -> None:
    data = load("vse_image_encoder")
    stack = Stack(data, images=True, texts=False).train()
    embedding = stack.embed_images(data["images"], data["lengths"])
    check(embedding, data["embedding_train"])
    (embedding * data["upstream"]).sum().backward()
    expected = image_weights(data, "grad.img_enc.")
    check_gradients(stack.method.project_image, below(expected, "project_image."))
    check_gradients(stack.method.pool_image, below(expected, "pool_image."))
    after = image_weights(data, "after_train.img_enc.")
    buffers = dict(stack.method.named_buffers())
    assert after
    for name, value in after.items():
        check(buffers[name], value)


def test_golden_text_encoder() -> None:
    data = load("vse_text_encoder_bigru")
    stack = Stack(data, images=False, texts=True)
    embedding = stack.embed_texts(data["tokens"], data["lengths"])
    check(embedding, data["embedding"])
    (embedding * data["upstream"]).sum().backward()
    check_gradients(stack.text, text_weights(data, "grad.txt_enc."))
    check_gradients(stack.method.pool_text, renamed(data, "grad.txt_enc.gpool.", GPO_NAMES))


def test_golden_training_steps() -> None:
    data = load("vse_training_steps")
    stack = Stack(data, images=True, texts=True).train()
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
    check(texts, data["caption_embedding_after"], 1e-4)
    images = stack.embed_images(data["images"], data["image_lengths"])
    # the bias in front of the batch-norm has no gradient, and Adam moves it by rounding noise
    check(images, data["image_embedding_after"], 2e-3)


@pytest.mark.parametrize("kind", ["sum", "hardest"])
def test_golden_triplet(kind: str) -> None:
    data = load("triplet_vse")
    images, texts = data["images"].requires_grad_(), data["captions"].requires_grad_()
    scores = images @ texts.T
    check(scores, data["scores"])
    own = torch.eye(len(images), dtype=torch.bool)
    loss = hinge_triplet(scores, own, float(data["margin"]), hardest=kind == "hardest")
    check(loss, data[f"loss_{kind}"])
    loss.backward()
    check(grad(images), data[f"grad_images_{kind}"])
    check(grad(texts), data[f"grad_captions_{kind}"])


@pytest.mark.parametrize("kind", ["sum", "hardest"])
def test_golden_duplicate_images(kind: str) -> None:
    data = load("triplet_duplicate_images")
    scores, margin = data["images"] @ data["captions"].T, float(data["margin"])
    check(scores, data["scores"])
    own = torch.eye(len(scores), dtype=torch.bool)
    together = same_image(data["image_ids"], data["image_ids"])
    released = hinge_triplet(scores, own, margin, hardest=kind == "hardest")
    check(released, data[f"loss_official_{kind}"])
    masked = hinge_triplet(scores, together, margin, hardest=kind == "hardest")
    check(masked, data[f"loss_idmasked_reference_{kind}"])
    if kind == "hardest":
        check(released, data["avse_loss_official_hardest"])


@torch.no_grad()
def test_the_pooling_curve_is_that_of_the_sets_size() -> None:
    method = VSEInfinity(IMAGE_DIM, TEXT_DIM, 16)
    image, text = method.inside(*encoded(method))
    assert (image.values.shape, text.values.shape) == ((1, 20), (1, 6))
    torch.testing.assert_close(image.values.sum(dim=1), torch.ones(1))
    assert isinstance(method.pool_image, GPO)
    expected = method.pool_image.coefficients(torch.tensor([20]))
    torch.testing.assert_close(image.values, expected)
