"""PVSE: several views of an image and of a text, from attention over local features.

Yale Song, Mohammad Soleymani: Polysemous Visual-Semantic Embedding for Cross-Modal Retrieval,
CVPR 2019.

Each side has a PIE-Net: K attention maps over local features (Eq. 2), whose non-linear projections
(Eq. 3) are residuals of one global feature (Eq. 4); the score is the best of the K x K pairs. The
paper minimises the cosine as if it were a distance; the release and this code take the largest.

The local features of a clip are its frames in order of time; its global feature is the last states
of a bi-GRU over the frames (section 3.1), see `image_global`.

The local features of a text are its word vectors (text encoder "words") or the features of another
text encoder; the bi-GRU that computes the global feature belongs to the method. Where the release
differs from the paper, an argument selects the release's behaviour: `legacy_text`, and for clips
`image_global="legacy"`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyview.models.evidence import Parts
from polyview.models.gru import bigru_states
from polyview.models.layers import (
    l2_normalize,
    last_element,
    masked_mean,
    mean_parts,
    require_choice,
)
from polyview.models.method import Method
from polyview.models.views import NamedArray, Views, lengths_to_mask

FUSIONS = ("residual", "concat", "local")
MATCHES = ("max", "concat")
GLOBALS = ("mean", "states", "legacy", "changes")


class PIENet(nn.Module):
    """Polysemous Instance Embedding Network, sections 3.2 and 3.3.

    Args:
        local_dim: width d of the local features (D in the paper).
        global_dim: H, the width of the global feature and of the views.
        views: K, the number of views.
        fusion: "residual", as in the paper; or an ablation of Fig. 6: "concat" concatenates local
            and global features, "local" omits the global feature.
    """

    def __init__(
        self, local_dim: int, global_dim: int, views: int, fusion: str = "residual"
    ) -> None:
        super().__init__()
        self.fusion = fusion
        hidden = max(1, local_dim // 2)  # A = D / 2 in the paper
        self.w1 = nn.Linear(local_dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, views, bias=False)
        self.w3 = nn.Linear(local_dim, global_dim)
        self.norm = nn.LayerNorm(global_dim * 2 if fusion == "concat" else global_dim)

    def forward(
        self, features: Tensor, global_feature: Tensor | None, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes K embeddings of each set of local features (B, N, d), mask (B, N).

        `global_feature` is (B, H), or None with "local". Returns embeddings, locally-guided
        residuals (B, K, H), and attention (B, K, N). Embeddings are (B, K, H), or (B, K, 2 H) with
        "concat", and not normalised to unit length.
        """
        attention = self.attend(features, mask)
        zero_padded = features.masked_fill(~mask[..., None], 0.0)
        residual = torch.sigmoid(self.w3(attention @ zero_padded))  # Eq. (3): (B, K, H)
        embeddings = residual
        if global_feature is not None:
            embeddings = self._fuse(global_feature[:, None], residual)
        return self.norm(embeddings), residual, attention  # Eq. (4)

    def attend(self, features: Tensor, mask: Tensor) -> Tensor:
        """Computes attention (B, K, N) to local features (B, N, d), mask (B, N), Eq. (2)."""
        scores = self.w2(torch.tanh(self.w1(features))).mT  # (B, K, N)
        return scores.masked_fill(~mask[:, None], -torch.inf).softmax(dim=2)

    def parts(self, features: Tensor, global_parts: Parts | None, mask: Tensor) -> Parts:
        """Splits the embeddings of `forward` into contributions of elements.

        The sigmoid is split along its secant from 0: sigmoid(u) = 1/2 + s u, with s held constant.
        `global_parts` are the parts of the global feature, V = 1; None with "local".
        """
        mapped = self.w3(features.masked_fill(~mask[..., None], 0.0))[:, None]  # (B, 1, N, H)
        terms = self.attend(features, mask)[..., None] * mapped  # Eq. (3); attention sums to 1
        u = terms.sum(dim=2, keepdim=True)  # (B, K, 1, H)
        slope = torch.where(u == 0, 0.25, torch.tanh(u / 2) / (2 * u))  # s
        rows = Parts.of(slope * terms, constant=0.5).rows  # (B, K, N + 2, H)
        if global_parts is not None:
            rows = self._fuse(global_parts.rows, rows)
        return Parts(rows).layer_norm(self.norm)  # Eq. (4)

    def _fuse(self, base: Tensor, residual: Tensor) -> Tensor:
        """Adds or concatenates the global feature `base`, shared by all views, and `residual`."""
        base = base.expand_as(residual)
        return torch.cat([base, residual], -1) if self.fusion == "concat" else base + residual


class LastStates(nn.Module):
    """Computes a sequence's global feature: the last states of a bi-GRU, H / 2 in each direction.

    Args:
        in_dim: width of the sequence's elements.
        out_dim: H, even.
        legacy: take the output at the last element, as the released models do; the backward half of
            this output depends on the last element alone.
    """

    def __init__(self, in_dim: int, out_dim: int, legacy: bool = False) -> None:
        super().__init__()
        self.legacy = legacy
        self.gru = nn.GRU(in_dim, out_dim // 2, batch_first=True, bidirectional=True)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Maps sequences (B, M, d), mask (B, M), to (B, H); the GRU skips padding."""
        order = (~mask).long().argsort(dim=1, stable=True)[..., None]  # real elements first
        left_aligned = features.gather(1, order.expand_as(features))
        lengths = mask.sum(dim=1)
        states = bigru_states(self.gru, left_aligned, lengths)  # (B, M, H)
        states_mask = lengths_to_mask(lengths, states.shape[1])
        if self.legacy:
            return last_element(states, states_mask)
        forward_states, backward_states = states.chunk(2, dim=2)
        return torch.cat([last_element(forward_states, states_mask), backward_states[:, 0]], dim=1)

    def parts(self, features: Tensor, mask: Tensor) -> Parts:
        """Splits the output of `forward`; the states belong to the sequence as a whole."""
        state = self(features, mask)[:, None]  # (B, 1, H)
        zeros = state.new_zeros(len(state), 1, mask.shape[1], state.shape[2])
        return Parts.of(zeros, whole=state)


class MeanFeature(nn.Linear):
    """Computes an image's global feature: the average of its cells, mapped linearly to H."""

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Maps features (B, N, d), mask (B, N), to (B, H)."""
        return super().forward(masked_mean(features, mask))

    def parts(self, features: Tensor, mask: Tensor) -> Parts:
        """Splits the output of `forward` into contributions of elements."""
        return Parts.of(mean_parts(super().forward(features), mask)[:, None])


class Changes(nn.Module):
    """A clip's global feature: its mean frame plus a bi-GRU over the differences from the mean.

    This module is not in the paper. If most of a scene does not move, all frames have similar
    features, and a bi-GRU over the frames themselves learns nothing about their order (measured in
    docs/results.md). Both terms use the same linear map of frames. The differences of a clip of one
    frame are 0. `in_dim` is the width of a frame's feature; `out_dim` is H, even.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(in_dim, out_dim)
        self.states = LastStates(out_dim, out_dim)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Maps the features of frames (B, N, d), mask (B, N), to (B, H)."""
        projected = self.project(features)  # (B, N, H)
        mean = masked_mean(projected, mask)  # (B, H)
        return mean + self.states(projected - mean[:, None], mask)

    def parts(self, features: Tensor, mask: Tensor) -> Parts:
        """Splits the output of `forward`; the states belong to the sequence as a whole."""
        projected = self.project(features)
        changes = projected - masked_mean(projected, mask)[:, None]
        frames = mean_parts(projected, mask)[:, None]  # (B, 1, N, H)
        return Parts.of(frames, whole=self.states(changes, mask)[:, None])


class PVSE(Method):
    """PVSE; V = K on both sides.

    Args:
        embed_dim: H, even (the paper tries 512, 1,024 and 2,048).
        views: K; 1 is the paper's "PVSE (K=1)". With 0 the global feature is the only view.
        fusion: see `PIENet`.
        match: "max" takes the best pair; "concat" compares the K concatenated views, the paper's
            ablation "No MIL".
        legacy_text: see `LastStates`.
        image_global: the global feature of an image: "mean" maps the average of its cells
            linearly; "states" takes the last states of a bi-GRU over the frames of a clip;
            "legacy" takes the states of the released models, see `LastStates`; for "changes" see
            `Changes`.
    """

    title = "PVSE"
    paper = "Song and Soleymani, CVPR 2019"
    attention_is = "the attention of each of the K heads"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        views: int = 2,
        fusion: str = "residual",
        match: str = "max",
        legacy_text: bool = False,
        image_global: str = "mean",
    ) -> None:
        super().__init__()
        if views < 0:
            raise ValueError(f"views must be 0 or more, not {views}")
        if embed_dim % 2:
            raise ValueError(f"embed_dim must be even (half per GRU direction), not {embed_dim}")
        require_choice("fusion", fusion, FUSIONS)
        require_choice("match", match, MATCHES)
        require_choice("image_global", image_global, GLOBALS)
        self.views_add_up = match == "concat"
        if match == "concat":
            self.view_scores_are = "the contribution of each view to the score"
        has_global = fusion != "local" or not views
        self.order_matters = has_global and image_global != "mean"
        self.image_global: MeanFeature | LastStates | Changes | None = None
        if has_global and image_global == "mean":
            self.image_global = MeanFeature(image_dim, embed_dim)
        elif has_global and image_global == "changes":
            self.image_global = Changes(image_dim, embed_dim)
        elif has_global:
            self.image_global = LastStates(image_dim, embed_dim, image_global == "legacy")
        self.text_global = LastStates(text_dim, embed_dim, legacy_text) if has_global else None
        self.image_net = PIENet(image_dim, embed_dim, views, fusion) if views else None
        self.text_net = PIENet(text_dim, embed_dim, views, fusion) if views else None

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        """See `Method.encode`; there is no attention if K is 0."""
        net, global_net = getattr(self, f"{side}_net"), getattr(self, f"{side}_global")
        global_feature = None if global_net is None else global_net(features, mask)  # (B, H)
        if net is None:
            assert global_feature is not None  # with K = 0 it is the only view
            return Views(l2_normalize(global_feature)[:, None])
        embeddings, residuals, maps = net(features, global_feature, mask)
        extras = {"residuals": residuals} if self.training else {}
        return Views(l2_normalize(embeddings), maps if attention else None, extras)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.split`; the last states of a bi-GRU belong to the whole set."""
        net, global_net = getattr(self, f"{side}_net"), getattr(self, f"{side}_global")
        parts = None if global_net is None else global_net.parts(features, mask)
        if net is not None:
            parts = net.parts(features, parts, mask)
        assert parts is not None  # with K = 0 the global feature is the only view
        return parts.unit()

    def pair_weights(self, products: Tensor) -> Tensor:
        """See `Method.pair_weights`; "concat" averages over pairs of views with the same index."""
        weights = super().pair_weights(products)
        return weights / products.shape[1] if self.views_add_up else weights

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """See `Method.view_scores`; with "concat", each view's contribution to the score."""
        scores = super().view_scores(images, texts)
        return scores / len(scores) if self.views_add_up else scores

    def inside(self, images: Views, texts: Views | None = None, /, **_: object) -> list[NamedArray]:
        """See `Method.inside`: "view_pairs" holds cosines; the marked ones determine the score."""
        if texts is None or images.embeddings.shape[1] == 1:
            return []
        cosines = images.embeddings[0] @ texts.embeddings[0].T  # (K, K)
        marks = [divmod(int(cosines.argmax()), cosines.shape[1])]  # section 3.4, MIL
        if self.views_add_up:  # the score is the mean of the marked cosines (section 5.3, No MIL)
            marks = [(view, view) for view in range(len(cosines))]
        return [NamedArray("view_pairs", cosines, ("view", "text_view"), tuple(marks))]
