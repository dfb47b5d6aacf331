"""VSE-infinity's encoders, loss and training against the official ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.encoders.bigru import BiGRUTextEncoder
from models.views import lengths_to_mask
from models.vse_infty import VSEInfinity
from tests.golden.loading import GPO_NAMES, check, check_gradients, load, load_weights, renamed
from training.objectives.losses import Hinge, hinge_triplet, own_scores, rivals, same_image

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
    named = renamed(data, prefix, {})
    out = {}
    for key, value in named.items():
        if key.startswith("rnn."):
            direction = "backward_gru." if key.endswith("_reverse") else "forward_gru."
            out[direction + key.removeprefix("rnn.").removesuffix("_reverse")] = value
        elif key.startswith("embed."):
            out[key] = value
    return out


def pool_weights(data: dict[str, Tensor], prefix: str = "txt_enc.gpool.") -> dict[str, Tensor]:
    return renamed(data, prefix, GPO_NAMES)


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
            load_weights(self.method.pool_image, _below(weights, "pool_image."))
            load_weights(self.method.project_image, _below(weights, "project_image."))
        if texts:
            load_weights(self.method.pool_text, pool_weights(data))

    def embed_images(self, images: Tensor, lengths: Tensor) -> Tensor:
        """(B, N, d) regions and the set sizes to (B, D)."""
        mask = lengths_to_mask(lengths, images.shape[1])
        return self.method.encode_image(images, mask).embeddings[:, 0]

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, L) word ids and the lengths to (B, D)."""
        mask = lengths_to_mask(lengths, tokens.shape[1])
        return self.method.encode_text(self.text(tokens, lengths), mask).embeddings[:, 0]


def _below(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def test_golden_image_encoder_eval() -> None:
    data = load("vse_image_encoder")
    stack = Stack(data, images=True, texts=False).eval()
    mask = lengths_to_mask(data["lengths"], data["images"].shape[1])
    projected = stack.method.project_image(data["images"], mask)
    check(projected[mask], data["projected_eval"][mask])
    check(stack.embed_images(data["images"], data["lengths"]), data["embedding_eval"])


def test_golden_image_encoder_training() -> None:
    data = load("vse_image_encoder")
    stack = Stack(data, images=True, texts=False).train()
    embedding = stack.embed_images(data["images"], data["lengths"])
    check(embedding, data["embedding_train"])
    (embedding * data["upstream"]).sum().backward()
    expected = image_weights(data, "grad.img_enc.")
    check_gradients(stack.method.project_image, _below(expected, "project_image."))
    check_gradients(stack.method.pool_image, _below(expected, "pool_image."))
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
    check_gradients(stack.method.pool_text, pool_weights(data, "grad.txt_enc.gpool."))


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
    assert images.grad is not None
    assert texts.grad is not None
    check(images.grad, data[f"grad_images_{kind}"])
    check(texts.grad, data[f"grad_captions_{kind}"])


def test_golden_hardest_costs() -> None:
    data = load("triplet_vse")
    scores = data["images"].double() @ data["captions"].double().T
    cost, own = Hinge(float(data["margin"])), own_scores(scores)
    texts, images = rivals(scores, torch.eye(len(scores), dtype=torch.bool))
    check(cost(own, texts)[:, 0], data["hardest_caption_cost_per_image"], 1e-6)
    check(cost(own, images)[:, 0], data["hardest_image_cost_per_caption"], 1e-6)


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
