"""DivE: learned slots compete for the elements of a set, and sets are compared by all their pairs.

Dongwon Kim, Namyup Kim, Suha Kwak: Improving Cross-Modal Retrieval with Set of Diverse Embeddings,
CVPR 2023.

It adds to PVSE, on both sides, a set prediction module: K slots attend to the elements again and
again, by an attention that is shared out among the slots, so that an element that one slot explains
is none for the others; and the smooth-Chamfer similarity in place of the largest cosine, so that
every pair of views learns. The last slots are residuals of a global feature.

Left open are the encoders' own projections and which pooling makes the global feature: here one
linear map (`FeatureProjection`, `text_projection`) and GPO. The release has four heads of attention
and normalises behind each step as well; here there is one head, and slots are normalised before
each step, so that what an element brings can be told (`image_parts`).

`match="assignment"` compares sets by their best one-to-one matching instead, after MaxMatch (Hani
Alomari, Anushka Sivakumar, Andrew Zhang, Chris Thomas: Maximal Matching Matters, ACL 2025), whose
two losses are not here: the mean over pairs of one view each, exact over all K! matchings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import torch
from torch import Tensor, nn

from models.evidence import Evidence, Parts, split_products
from models.gpo import GPO
from models.layers import FeatureProjection, cosine_scores, l2_normalize, text_projection
from models.method import Method
from models.views import Views

MATCHES = ("chamfer", "assignment")
_MOST_MATCHED = 6  # views, of which there are 720 matchings
_FEWEST_NODES, _MOST_NODES = 16, 256  # of a quadrature whose integrand is a softmax of alpha


class SetPrediction(nn.Module):
    """The set prediction module, section 3.2: K slots gather what elements hold.

    Args:
        dim: D, of elements and slots.
        views: K.
        iterations: how often the slots, with the same weights, attend.
    """

    def __init__(self, dim: int, views: int, iterations: int) -> None:
        super().__init__()
        slots = torch.empty(views, dim)
        if not slots.is_meta:  # of sizes alone; drawing them would load half of torch
            slots.normal_()
        self.slots = nn.Parameter(slots)
        self.iterations = iterations
        self.norm_elements, self.norm_slots = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.key, self.query = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.value, self.gather = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        )
        self.norm_last = nn.LayerNorm(dim)

    def forward(self, elements: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Slots (B, K, D) after the last step, normalised, and their last attention (B, K, N).

        Args:
            elements: (B, N, D).
            mask: (B, N) bool.
        """
        slots, steps, _ = self._steps(elements, mask)
        return self.norm_last(slots), steps[-1]

    def parts(self, elements: Tensor, mask: Tensor) -> Parts:
        """What each element brings to the slots of `forward`.

        With attention held, a step adds a weighted sum of values; what the step's MLP adds to that
        comes from all elements together.
        """
        slots, steps, together = self._steps(elements, mask)
        attention = torch.stack(list(steps)).sum(dim=0)  # (B, K, N); each step's sums to 1
        brought = self.gather(self.value(self.norm_elements(elements)))  # (B, N, D)
        rows = attention[..., None] * brought[:, None]  # (B, K, N, D)
        begun = slots - together - rows.sum(dim=2)
        return Parts.of(rows, together, begun).layer_norm(self.norm_last)

    def _steps(self, elements: Tensor, mask: Tensor) -> tuple[Tensor, Sequence[Tensor], Tensor]:
        """Slots (B, K, D), the attention (B, K, N) of each step, and what all MLPs have added."""
        normed = self.norm_elements(elements)
        keys, values = self.key(normed), self.value(normed)  # (B, N, D)
        slots = self.slots.expand(len(elements), -1, -1)  # (B, K, D)
        together, steps = torch.zeros_like(slots), []
        for _ in range(self.iterations):
            queries = self.query(self.norm_slots(slots))
            shares = (queries @ keys.mT / keys.shape[2] ** 0.5).softmax(dim=1)  # of each element
            shares = shares.masked_fill(~mask[:, None], 0.0)  # (B, K, N)
            attention = shares / shares.sum(dim=2, keepdim=True).clamp_min(1e-12)
            slots = slots + self.gather(attention @ values)
            added = self.mlp(slots)
            slots, together = slots + added, together + added
            steps.append(attention)
        return slots, steps, together


class DivE(Method):
    """DivE; V = K on both sides.

    Args:
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        embed_dim: D of the joint space (paper: 1,024).
        views: K (paper: 4).
        iterations: of the slots (paper: 4).
        alpha: of the smooth-Chamfer similarity (paper: 16).
        match: "chamfer" for that similarity, or "assignment", see above; with at most six views.
        mlp_dim: hidden width of the residual MLP of `FeatureProjection`; 0 for none.
        released_gpo: build the poolings as VSE-infinity's release does, see `models/gpo.py`.
    """

    title = "DivE"
    paper = "Kim et al., CVPR 2023"
    attention_is = "the last attention of each slot; slots share out each cell among them"
    row_search = False
    view_scores_are = "each view's best cosine with the text's views; the score blends all pairs"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        views: int = 4,
        iterations: int = 4,
        alpha: float = 16.0,
        mlp_dim: int = 0,
        released_gpo: bool = False,
        match: str = "chamfer",
    ) -> None:
        super().__init__()
        if match not in MATCHES:
            raise ValueError(f'match must be one of {", ".join(MATCHES)}, not "{match}"')
        if match == "assignment" and views > _MOST_MATCHED:
            raise ValueError(f"match assignment takes up to {_MOST_MATCHED} views, not {views}")
        if views < 1 or iterations < 1 or alpha <= 0:
            raise ValueError(
                f"views {views} and iterations {iterations} must be 1 or more, and alpha {alpha} "
                "above 0"
            )
        self.alpha = alpha
        self.assigned = match == "assignment"
        if self.assigned:
            self.view_scores_are = "what each view adds to the score, by its partner of the text's"
        self.project_image = FeatureProjection(image_dim, embed_dim, mlp_dim)
        self.project_text: nn.Module = text_projection(text_dim, embed_dim, always=True)
        self.pool_image, self.pool_text = GPO.build(released_gpo), GPO.build(released_gpo)
        self.set_image = SetPrediction(embed_dim, views, iterations)
        self.set_text = SetPrediction(embed_dim, views, iterations)
        self.norm_image, self.norm_text = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_image`."""
        elements = self.project_image(features, mask)  # (B, N, D)
        whole = self.norm_image(self.pool_image(elements, mask)[0])  # (B, D)
        return self._views(self.set_image, elements, whole, mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_text`."""
        elements = self.project_text(features)  # (B, M, D)
        whole = self.norm_text(self.pool_text(elements, mask)[0])
        return self._views(self.set_text, elements, whole, mask, attention)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.image_parts`."""
        elements = self.project_image(features, mask)
        whole = Parts.of(self.pool_image.parts(elements, mask)[:, None])
        return self._joined(self.set_image, elements, whole.layer_norm(self.norm_image), mask)

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.text_parts`."""
        elements = self.project_text(features)
        whole = Parts.of(self.pool_text.parts(elements, mask)[:, None])
        return self._joined(self.set_text, elements, whole.layer_norm(self.norm_text), mask)

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """See `Method.view_scores`; with "assignment" what each view adds to the score."""
        if not self.assigned:
            return super().view_scores(images, texts)
        cosines = cosine_scores(images.embeddings, texts.embeddings)  # (V, W, B_img, B_txt)
        partners = best_assignment(cosines.detach())[:, None]  # (V, 1, B_img, B_txt)
        return cosines.gather(1, partners)[:, 0] / len(cosines)

    def pair_weights(self, pairs: Tensor) -> Tensor:
        """See `Method.pair_weights`; with "assignment" each view with its partner."""
        if not self.assigned:
            return super().pair_weights(pairs)
        partners = best_assignment(pairs.movedim(0, 2)).T  # (B, V)
        return nn.functional.one_hot(partners, pairs.shape[2]).to(pairs) / pairs.shape[1]

    def score(self, images: Views, texts: Views) -> Tensor:
        """The smooth-Chamfer similarity, section 3.3, or the mean of the best matching."""
        if self.assigned:
            return self.view_scores(images, texts).sum(dim=0)
        return smooth_chamfer(cosine_scores(images.embeddings, texts.embeddings), self.alpha)

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        """See `Method.evidence`; cosines count by the integrated gradient of the score.

        From cosines of 0 on (Sundararajan et al., ICML 2017): what they add up to is the score
        minus that of views that have nothing in common, which is not 0 and goes to the base.
        """
        if per_view:
            return super().evidence(images, texts, per_view=True)
        pairs = images.total @ texts.total.mT  # (B, V, W)
        if self.assigned:
            return split_products(images, texts, self.pair_weights(pairs)[:, None]).view(0)
        pairs = pairs.movedim(0, 2)[..., None]  # (V, W, B, 1)
        count = min(max(math.ceil(self.alpha), _FEWEST_NODES), _MOST_NODES)
        nodes, lengths = np.polynomial.legendre.leggauss(count)
        path = pairs * pairs.new_tensor((nodes + 1) / 2) * self.alpha  # (V, W, B, S)
        slopes = path.softmax(dim=1) / len(path) + path.softmax(dim=0) / path.shape[1]
        weights = (slopes * pairs.new_tensor(lengths / 4)).sum(dim=3)  # (V, W, B)
        start = smooth_chamfer(torch.zeros_like(pairs), self.alpha)[:, 0]  # (B,)
        offset = start[:, None]  # (B, 1), of the one sum there is
        return split_products(images, texts, weights.movedim(2, 0)[:, None], offset).view(0)

    def _views(
        self, slots: SetPrediction, elements: Tensor, whole: Tensor, mask: Tensor, attention: bool
    ) -> Views:
        """The slots as residuals of the global feature (B, D)."""
        residuals, maps = slots(elements, mask)  # (B, K, D), (B, K, N)
        extras = {"residuals": residuals} if self.training else {}
        return Views(l2_normalize(residuals + whole[:, None]), maps if attention else None, extras)

    def _joined(self, slots: SetPrediction, elements: Tensor, whole: Parts, mask: Tensor) -> Parts:
        return Parts(slots.parts(elements, mask).rows + whole.rows).unit()


def smooth_chamfer(cosines: Tensor, alpha: float) -> Tensor:
    """The smooth-Chamfer similarity of sets of views: their best pairs, with soft maxima.

    Args:
        cosines: (V, W, ...) of every two views of two sets.
        alpha: how sharp the maxima are.

    Returns:
        (...).
    """
    first = (alpha * cosines).logsumexp(dim=1).mean(dim=0)
    return (first + (alpha * cosines).logsumexp(dim=0).mean(dim=0)) / (2 * alpha)


def best_assignment(scores: Tensor) -> Tensor:
    """The one-to-one matching of two sets of views whose scores add up to most, tried one by one.

    Args:
        scores: (V, W, ...) of every two views of two sets; the first is not the larger one.

    Returns:
        (V, ...) int64, which view of the second set is matched with each of the first.

    >>> best_assignment(torch.tensor([[0.9, 0.8], [0.7, 0.1]])).tolist()
    [1, 0]
    """
    count, others = scores.shape[:2]
    matchings = list(permutations(range(others), count))
    best = torch.full(scores.shape[2:], -torch.inf, dtype=scores.dtype, device=scores.device)
    chosen = torch.zeros(scores.shape[2:], dtype=torch.int64, device=scores.device)
    for place, partners in enumerate(matchings):
        total = torch.stack([scores[view, other] for view, other in enumerate(partners)]).sum(dim=0)
        chosen = torch.where(total > best, place, chosen)
        best = torch.maximum(total, best)
    return torch.tensor(matchings, device=scores.device)[chosen].movedim(-1, 0)
