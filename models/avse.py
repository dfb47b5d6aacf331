"""AVSE: image embeddings are larger than text embeddings, and both are compared block by block.

Yang Liu, Mengyuan Liu, Shudong Huang, Jiancheng Lv: Asymmetric Visual Semantic Embedding Framework
for Efficient Vision-Language Alignment, AAAI 2025; equations and numbers refer to its first
version, "Learning Asymmetric Visual Semantic Embedding for Image-Text Retrieval".

AVSE extends VSE-infinity: the elements of an image are sampled into n groups, which a shared
encoder turns into n views (section 3.1). Views and text are cut into blocks of d2 dimensions. The
score is the sum, over text blocks, of the largest entry of the Sinkhorn plan among visual blocks
(section 3.2).

Differences from the paper: at test time the paper samples at random; here the sample depends only
on the elements, so scores do not change between calls or with the order of the elements. Where the
release differs from the paper, an argument selects the release's behaviour: `match="maxsim"` (the
release's call of Sinkhorn is commented out, and would take the maximum of the logarithm of the
plan), `released_text`, `block_dim` (256 in the release), `train_share` (0.8) and `sampled_features`
(the release selects the patches nearest to a centre before the transformer, see `SampledViT`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from polyview.models.evidence import Evidence, Parts, split_products
from polyview.models.gpo import build_pooling, pooling_arrays
from polyview.models.layers import (
    FeatureProjection,
    cosine_attention,
    l2_normalize,
    require_choice,
    text_projection,
)
from polyview.models.method import Knob, Method
from polyview.models.sinkhorn import log_plan, match_blocks
from polyview.models.views import NamedArray, Views

MATCHES = ("sinkhorn", "maxsim", "mean")
_PAIRS_PER_STEP = 1 << 14  # pairs scored at once on a CPU; their affinities fit in a core's cache
_IMAGES_PER_PRODUCT = 64  # minimum number of images in a matrix product
_MAX_BATCHED_COLUMNS = 16  # maximum number of text blocks for which a batched product is faster
_MAX_ITERATIONS = 100  # maximum number of iterations that a user may request for display
_MAX_AFFINITIES = 1 << 24  # maximum number of affinities evaluated for an integral
_MIN_NODES, _MAX_NODES = 16, 512  # number of quadrature nodes; low temperatures need more


@dataclass(frozen=True)
class AVSEConfig:
    """Arguments of `AVSE`.

    Attributes:
        embed_dim: d1, width of a view and of the text (paper: 1,024).
        block_dim: d2, must divide d1 (paper: 512); None for half of d1. With "mean", d2 is d1.
        views: n, the number of image views (paper: 2).
        train_share: share of the elements sampled into each group in training (paper: 0.75).
        test_share: share of the elements sampled into each group in evaluation (paper: 0.9).
        match: "sinkhorn"; "maxsim" for the largest affinity of each text block without Sinkhorn; or
            "mean" for a single view, which is the average of the groups and is scored by cosine
            (first rows of Table 3).
        iterations: number of Sinkhorn iterations (paper: 20).
        temperature: temperature of Sinkhorn (the paper specifies none, so 1).
        released_gpo: use the released form of GPO, see `models/gpo.py`.
        released_text: project the text with a residual MLP and apply a layer norm after pooling.
        sampled_features: whether the encoder samples the elements (`SampledViT`). An image feature
            then concatenates an element's features in n views, 0 in views without the element.
        map_text: see `VSEInfinity`.
    """

    embed_dim: int = 1024
    block_dim: int | None = None
    views: int = 2
    train_share: float = 0.75
    test_share: float = 0.9
    match: str = "sinkhorn"
    iterations: int = 20
    temperature: float = 1.0
    released_gpo: bool = False
    released_text: bool = False
    sampled_features: bool = False
    map_text: bool = False

    def __post_init__(self) -> None:
        if self.block_width < 1 or self.embed_dim % self.block_width:
            raise ValueError(f"block_dim {self.block_width} must divide embed_dim {self.embed_dim}")
        for name, share in (("train_share", self.train_share), ("test_share", self.test_share)):
            if not 0 < share <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {share}")
        require_choice("match", self.match, MATCHES)
        if self.views < 1 or self.iterations < 1 or self.temperature <= 0:
            raise ValueError(
                f"views {self.views} and iterations {self.iterations} must be 1 or more, and "
                f"temperature {self.temperature} above 0"
            )
        if self.match == "mean" and self.sampled_features:
            raise ValueError('match "mean" does not support sampled_features; choose another match')

    @property
    def block_width(self) -> int:
        """The width d2 of a block: `block_dim` or, if that is None, half of `embed_dim`."""
        return self.embed_dim // 2 if self.block_dim is None else self.block_dim


class AVSE(Method):
    """AVSE. An image has V = n views, or 1 with "mean"; a text has one. Blocks have unit length."""

    title = "AVSE"
    paper = "Liu et al., AAAI 2025"
    attention_is = "cosine between each cell's projected feature and the view's embedding"
    attention_sums_to_one = False
    row_search = False
    view_scores_are = (
        "the score of each view's blocks alone; the full score may use another view for each block"
    )
    config_type = AVSEConfig
    direction: Tensor

    def __init__(self, image_dim: int, text_dim: int, config: AVSEConfig) -> None:
        super().__init__()
        self.config, self.block_dim = config, config.block_width
        self.uses_mean = config.match == "mean"
        if self.uses_mean:
            self.block_dim, self.row_search = config.embed_dim, True
            self.view_scores_are = Method.view_scores_are
        features_per_element = config.views if config.sampled_features else 1
        view_dim, remainder = divmod(image_dim, features_per_element)
        if remainder:
            raise ValueError(f"image_dim {image_dim} must be a multiple of views {config.views}")
        self.project_image = FeatureProjection(view_dim, config.embed_dim)
        self.pool_image = build_pooling("gpo", released=config.released_gpo)
        self.project_text = text_projection(text_dim, config.embed_dim, always=config.map_text)
        self.pool_text = build_pooling("gpo", released=config.released_gpo)
        self.norm_text: nn.Module = nn.Identity()
        if config.released_text:
            hidden_dim = max(1, config.embed_dim // 2)
            self.project_text = FeatureProjection(text_dim, config.embed_dim, hidden_dim)
            self.norm_text = nn.LayerNorm(config.embed_dim)
        # z, the dustbin's affinity; the release starts it at 0
        self.dustbin = nn.Parameter(torch.zeros(())) if config.match == "sinkhorn" else None
        # a fixed direction for `sample_groups`; a new generator would import much more of torch
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            direction = torch.randn(image_dim, device="cpu")
        self.register_buffer("direction", direction, persistent=False)

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        """See `Method.encode`; in training, the `extras` of images hold the groups' embeddings."""
        if side == "text":
            words = self._project_text(features, mask)  # (B, M, d1)
            pooled = self.norm_text(self.pool_text(words, mask))[:, None]  # (B, 1, d1)
            maps = cosine_attention(words, l2_normalize(pooled), mask) if attention else None
            return Views(self.unit_blocks(pooled), maps)
        projected, masks = self._projected_views(features, mask)
        samples = zip(projected, masks, strict=True)
        pooled = torch.stack([self.pool_image(*sample) for sample in samples], dim=1)  # (B, n, d1)
        groups = l2_normalize(pooled)
        views = l2_normalize(groups.mean(dim=1, keepdim=True)) if self.uses_mean else groups
        maps = None
        if attention and not self.config.sampled_features:  # all views share one projection
            maps = cosine_attention(projected[0], views, mask)
        elif attention:  # 0 for elements that the encoder omits from a view
            triples = zip(projected, views.split(1, dim=1), masks, strict=True)
            maps = torch.cat([cosine_attention(*triple) for triple in triples], dim=1)  # (B, n, N)
        return Views(self.unit_blocks(views), maps, {"groups": groups} if self.training else {})

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        if side == "text":
            word_parts = self.pool_text.parts(self._project_text(features, mask), mask)
            words = Parts.of(word_parts[:, None])
            if isinstance(self.norm_text, nn.LayerNorm):
                words = words.layer_norm(self.norm_text)
            return words.unit(self.block_dim)
        samples = zip(*self._projected_views(features, mask), strict=True)
        parts = [self.pool_image.parts(*sample) for sample in samples]  # (B, N, d1) each
        groups = Parts.of(torch.stack(parts, dim=1)).unit()  # (B, n, N + 2, d1)
        if self.uses_mean:
            groups = Parts(groups.rows.mean(dim=1, keepdim=True))
        return groups.unit(self.block_dim)

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        """See `Method.evidence`; the weights of the affinities are integrated gradients."""
        visual, textual = images.blocks(self.block_dim), texts.blocks(self.block_dim)
        affinity = visual.total @ textual.total.mT  # (B, p, q), Eq. (1)
        group_count = images.rows.shape[1] if per_view else 1
        weights, baseline = self._integrated_gradients(affinity, group_count)
        evidence = split_products(visual, textual, weights, baseline)
        return evidence if per_view else evidence.view(0)

    def _integrated_gradients(self, affinity: Tensor, group_count: int) -> tuple[Tensor, Tensor]:
        """Returns weights (B, R, p, q) of affinities A (B, p, q), and the scalar score at A = 0.

        The p visual blocks form R = `group_count` groups, each with a score, Eq. (2). The weights
        are integrated gradients of the scores (Sundararajan et al., ICML 2017) from A = 0, where
        all blocks score the same. The best visual block of each text block and group is held
        constant. The integrand is smooth, so Gauss-Legendre quadrature is accurate to rounding.
        """
        node_count = _MIN_NODES if self.dustbin is None else math.ceil(4 / self.config.temperature)
        node_count = min(max(node_count, _MIN_NODES), _MAX_NODES)  # S in the shapes below
        nodes, node_weights = np.polynomial.legendre.leggauss(node_count)
        if node_count * group_count * affinity.numel() > _MAX_AFFINITIES:
            raise ValueError(
                f"{tuple(affinity.shape[1:])} blocks of {len(affinity)} pairs at temperature "
                f"{self.config.temperature:g} are too many; explain fewer pairs at once"
            )
        with torch.inference_mode(False), torch.enable_grad():
            blocks = affinity.detach().movedim(0, 2).clone()  # (p, q, B)
            best_rows = self.plan(blocks).unflatten(0, (group_count, -1)).argmax(dim=1)  # (R, q, B)
            group = torch.arange(group_count, device=best_rows.device)[:, None, None]  # (R, 1, 1)
            best_rows += group * (len(blocks) // group_count)  # from index in a group to index in p
            fractions = blocks.new_tensor((nodes + 1) / 2)[:, None]  # (S, 1), in 0..1
            path = (blocks[:, :, None, None] * fractions).repeat(1, 1, group_count, 1, 1)
            plan = self.plan(path.requires_grad_().flatten(2)).view_as(path)  # (p, q, R, S, B)
            best = best_rows.movedim(0, 1)[None, :, :, None].expand_as(plan[:1])  # (1, q, R, S, B)
            (slopes,) = torch.autograd.grad(plan.gather(0, best).sum(), path)
        weights = (slopes * blocks.new_tensor(node_weights / 2)[:, None]).sum(dim=3)  # (p, q, R, B)
        baseline = self.plan(blocks.new_zeros(*blocks.shape[:2], 1)).amax(dim=0).sum()
        return weights.permute(3, 2, 0, 1), baseline

    def _projected_views(self, features: Tensor, mask: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the projected features (B, N, d1) and the element mask (B, N) of each view."""
        if not self.config.sampled_features:
            projected = self.project_image(features, mask)
            return [projected] * self.config.views, list(self.sample_groups(features, mask))
        views = features.unflatten(2, (self.config.views, -1)).unbind(dim=2)  # n tensors (B, N, d)
        masks = [mask & (view != 0).any(dim=2) for view in views]
        return [self.project_image(*pair) for pair in zip(views, masks, strict=True)], masks

    def _project_text(self, features: Tensor, mask: Tensor) -> Tensor:
        """Projects text features (B, M, d) to (B, M, d1)."""
        takes_mask = isinstance(self.project_text, FeatureProjection)
        return self.project_text(features, mask) if takes_mask else self.project_text(features)

    def sample_groups(self, features: Tensor, mask: Tensor) -> Tensor:
        """Samples n groups of elements from each set, section 3.1.

        In training, each group is an independent random sample. Otherwise elements are sorted by a
        fixed random projection of their features, and each group omits a different range of that
        order. Maps features (B, N, d), mask (B, N), to (n, B, N) bool, with a True in each row.
        """
        sizes = mask.sum(dim=1)  # (B,)
        count, share = self.config.views, self.config.test_share
        if self.training:
            keys = torch.rand(count, *mask.shape, device=mask.device)
            drop_starts = sizes.new_zeros(count, len(sizes))
            share = self.config.train_share
        else:
            keys = (features.float() @ self.direction.float()).expand(count, -1, -1)
            group = torch.arange(count, device=mask.device)[:, None]  # (n, 1)
            drop_starts = group * sizes // count  # (n, B), the first rank that a group omits
        drop_counts = sizes - (share * sizes).round().clamp_min(1.0).long()  # (B,)
        ranks = keys.masked_fill(~mask, torch.inf).argsort(dim=2).argsort(dim=2)  # (n, B, N)
        offsets = (ranks - drop_starts[..., None]) % sizes[:, None]
        return mask & (offsets >= drop_counts[:, None])

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """Returns scores (V, B_img, B_txt) of single views: Eq. (2) over the blocks of one view.

        No view score exceeds `score`, which may match each text block to a block of another view.
        """
        return self._group_scores(images, texts, images.embeddings.shape[1])

    def score(self, images: Views, texts: Views) -> Tensor:
        """Returns scores (B_img, B_txt), Eq. (2): sums of the text blocks' largest plan entries."""
        return self._group_scores(images, texts, 1)[0]

    def row_dim(self, views: int, dim: int) -> int:  # noqa: ARG002
        """Returns the width of a block, so that one similar block makes an image a candidate."""
        return self.block_dim

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """See `Method.knobs`: "match" and "iterations" (of Sinkhorn); none if `match` is "mean"."""
        if self.uses_mean:
            return ()
        max_iterations = max(_MAX_ITERATIONS, self.config.iterations)
        return (
            Knob("match", self.config.match, options=("sinkhorn", "maxsim")),
            Knob("iterations", self.config.iterations, low=1, high=max_iterations),
        )

    def inside(
        self, images: Views, texts: Views | None = None, /, **settings: str | int
    ) -> list[NamedArray]:
        """See `Method.inside`: affinities, plan, Sinkhorn and MaxSim scores, GPO's coefficients.

        The plan (section 3.2) of a method without Sinkhorn is computed with a dustbin of 0.
        """
        image_pools, text_pools = [self.pool_image], [self.pool_text]
        gpo_arrays = pooling_arrays(images, texts, image_pools, text_pools, self.config.test_share)
        if texts is None or self.uses_mean:
            return gpo_arrays
        affinity = self._blocks(images)[0] @ self._blocks(texts)[0].T  # (p, q), Eq. (1)
        match_knob, iterations_knob = self.knobs
        match = str(settings.get("match", match_knob.default))
        require_choice("match", match, match_knob.options)
        count = settings.get("iterations", iterations_knob.default)
        if type(count) is not int or not 1 <= count <= iterations_knob.high:
            raise ValueError(f"iterations must be 1 to {iterations_knob.high}, not {count!r}")
        marks, axes = _best_of_columns(affinity), ("block", "text_block")
        arrays = [NamedArray("affinity", affinity, axes, marks if match == "maxsim" else ())]
        dustbin = affinity.new_zeros(()) if self.dustbin is None else self.dustbin
        plan = log_plan(affinity[..., None], dustbin, count, self.config.temperature)
        plan = plan[..., 0].exp()  # (p + 1, q + 1)
        plan_of_blocks = plan[:-1, :-1]  # (p, q), without dustbins
        if match == "sinkhorn":
            arrays.append(NamedArray("plan", plan, axes, _best_of_columns(plan_of_blocks)))
        arrays.append(NamedArray("sinkhorn_score", plan_of_blocks.amax(dim=0).sum()))  # Eq. (2)
        return [*arrays, NamedArray("maxsim_score", affinity.amax(dim=0).sum()), *gpo_arrays]

    def plan(self, affinity: Tensor) -> Tensor:
        """Returns the plans (p, q, C) of affinities (p, q, C); without Sinkhorn, the affinities."""
        if self.dustbin is None:
            return affinity
        return match_blocks(affinity, self.dustbin, self.config.iterations, self.config.temperature)

    def _group_scores(self, images: Views, texts: Views, group_count: int) -> Tensor:
        """Returns scores (R, B_img, B_txt), Eq. (2), of R = `group_count` groups of view blocks."""
        visual = self._blocks(images)  # (B_img, p, d2)
        textual = self._blocks(texts).transpose(0, 1).contiguous()  # (q, B_txt, d2)
        step = max(1, _PAIRS_PER_STEP // textual.shape[1]) if visual.is_cpu else _IMAGES_PER_PRODUCT
        scores = []
        for batch in visual.split(max(step, _IMAGES_PER_PRODUCT)):
            for affinity in _affinities(batch, textual).split(step, dim=2):  # (p, q, step, B_txt)
                plans = self.plan(affinity.flatten(2)).unflatten(0, (group_count, -1))
                best = plans.amax(dim=1)  # (R, q, step * B_txt)
                scores.append(best.sum(dim=1).unflatten(1, affinity.shape[2:]))  # Eq. (2)
        return torch.cat(scores, dim=1)  # (R, B_img, B_txt)

    def _blocks(self, views: Views) -> Tensor:
        """Cuts views (B, V, D) into blocks (B, V * D / d2, d2)."""
        return views.embeddings.unflatten(2, (-1, self.block_dim)).flatten(1, 2)

    def unit_blocks(self, views: Tensor) -> Tensor:
        """Normalises each block of views (..., D) to unit length."""
        return l2_normalize(views.unflatten(-1, (-1, self.block_dim))).flatten(-2)


def _affinities(visual: Tensor, textual: Tensor) -> Tensor:
    """Returns cosines (p, q, B_img, B_txt) of blocks (B_img, p, d2) and (q, B_txt, d2), Eq. (1)."""
    columns = textual.flatten(0, 1).T  # (d2, q * B_txt)
    if columns.shape[1] <= _MAX_BATCHED_COLUMNS:  # bmm is faster: it reads `visual` once
        products = torch.bmm(visual, columns.expand(len(visual), -1, -1))
    else:
        products = visual @ columns  # (B_img, p, q * B_txt)
    return products.unflatten(2, textual.shape[:2]).permute(1, 2, 0, 3)


def _best_of_columns(table: Tensor) -> tuple[tuple[int, int], ...]:
    """Returns (row, column) of the maximum in each column of a (p, q) table."""
    return tuple((row, column) for column, row in enumerate(table.argmax(dim=0).tolist()))
