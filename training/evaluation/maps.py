"""Compares explanation maps of CLIP and SigLIP on images in which every object has a mask.

A map scores how well each patch of an image matches a text, given as a direction t in the joint
space:

- *exact rows*: the patch's contribution to the score (`models/encoders/rows.py`); for CLIP also
  that of the *last half* of the layers, because the paper omits the first layers.
- *patch cosine*: the cosine of t and the patch's last state, projected like the whole image.
- *rollout*: Samira Abnar and Willem Zuidema: Quantifying Attention Flow in Transformers, ACL 2020.
  It does not depend on the text.
- *Grad-ECLIP*: Chenyang Zhao et al.: Gradient-based Visual Explanation for Transformer-based CLIP,
  ICML 2024.
- *LeGrad*: Walid Bousselham et al.: LeGrad: An Explainability Method for Vision Transformers via
  Feature Formation Sensitivity, arXiv 2404.03214.
- *random*: a random number for each patch.

t is the embedding of a caption (`sentence`), the contribution of an object's name to it (`word`),
or the embedding of the name as a separate text (`name`). The metrics are *pointing*, as in
`training/evaluation/evidence.py`, and *deletion* and *insertion* by the captions' maps: patches are
removed from or added to the input sequence, and all layers are recomputed. Intervals are from a
bootstrap over images with their captions.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from polyview.export.encoders.sources import CLIP_LOGS, load_image_source
from polyview.export.runtime import Runtime
from polyview.models.encoders.published import CLIPImageEncoder, SiglipImageEncoder
from polyview.models.encoders.rows import (
    ImageRows,
    attention_weights,
    joint_projection,
    probe_heads,
    split_heads,
)
from polyview.models.files import write_whole
from polyview.training.data.split import Split
from polyview.training.evaluation import evidence
from polyview.training.evaluation.evidence import Mention
from polyview.training.evaluation.metrics import SEED, mean_interval
from polyview.training.evaluation.report import Rows, format_value, print_rows
from polyview.training.evaluation.views import mentioned_cells

CAPTIONS = 1000  # captions to compute maps for
MEASURES = {"sentence": 1, "word": 1, "name": 1, "deletion": -1, "insertion": 1}  # -1: lower wins
ROWS = "exact rows"
_TITLES = ("sentence points, %", "word points, %", "name alone points, %", "deletion", "insertion")
_AT_ONCE = 32  # texts per batch

Encoder = CLIPImageEncoder | SiglipImageEncoder


@dataclass(frozen=True)
class Reading:
    """The attention that pools T tokens into an embedding: that of [CLS], or of SigLIP's query."""

    query: Tensor  # (B or 1, H, 1, e)
    keys: Tensor  # (B, H, T, e)
    values: Tensor  # (B, H, T, e)
    finish: Callable[[Tensor], Tensor]  # maps pooled values (B, H * e) to embeddings (B, D)

    @property
    def weights(self) -> Tensor:
        """Attention weights (B, H, 1, T)."""
        return attention_weights(self.query, self.keys)

    def pooled(self, weights: Tensor) -> Tensor:
        """Pools the values with weights (B, H, 1, T) into (B, H * e)."""
        return (weights @ self.values).flatten(1)


def read_clip(encoder: CLIPImageEncoder, state: Tensor) -> Reading:
    """Attention of [CLS] in the last layer, whose input is (B, 1 + N, h)."""
    model, project = encoder.model, joint_projection(encoder)
    layer = model.encoder.layers[-1]
    attention, normed = layer.self_attn, layer.layer_norm1(state)
    inputs = (normed[:, :1], normed, normed)
    parts = zip(inputs, (attention.q_proj, attention.k_proj, attention.v_proj), strict=True)
    query, keys, values = (split_heads(linear(x), attention.num_heads) for x, linear in parts)

    def finish(pooled: Tensor) -> Tensor:
        hidden = state[:, 0] + attention.out_proj(pooled)
        return project(model.post_layernorm(hidden + layer.mlp(layer.layer_norm2(hidden))))

    return Reading(query, keys, values, finish)


def read_siglip(encoder: SiglipImageEncoder, state: Tensor) -> Reading:
    """Attention of the pooling query to the output (B, N, h) of a layer."""
    head = encoder.model.head

    def finish(pooled: Tensor) -> Tensor:
        hidden = head.attention.out_proj(pooled)
        return hidden + head.mlp(head.layernorm(hidden))

    return Reading(*probe_heads(head, encoder.model.post_layernorm(state)), finish)


def rollout(encoder: Encoder, states: Sequence[Tensor], attentions: Sequence[Tensor]) -> Tensor:
    """Attention rollout (B, N) of the attentions (B, H, T, T) of each layer.

    Each layer is the mean of its average attention and the identity, for the residual connection;
    the layers are multiplied (section 3). For SigLIP, the query's attention pools the product.
    """
    identity = torch.eye(attentions[0].shape[2]).to(attentions[0])
    flow = identity
    for weights in attentions:
        flow = (weights.mean(dim=1) + identity) / 2 @ flow  # (B, T, T)
    if isinstance(encoder, CLIPImageEncoder):
        return flow[:, 0, 1:]
    return (read_siglip(encoder, states[-1]).weights.mean(dim=1) @ flow)[:, 0]


def grad_eclip(encoder: Encoder, states: Sequence[Tensor], text: Tensor) -> Tensor:
    """Grad-ECLIP (B, N) of texts (B, D): ReLU(sum_c w_c lambda_i v_ic) over channels c.

    w is the gradient of the cosine with respect to the last attention's output for [CLS], before
    the output projection, and v_i the value of patch i, both over all heads. lambda, the cosine of
    query and key scaled to 0..1, replaces the softmax, which concentrates on few patches. The paper
    covers CLIP; here SigLIP's query takes the place of [CLS].
    """
    if isinstance(encoder, CLIPImageEncoder):
        reading = read_clip(encoder, states[-2])
    else:
        reading = read_siglip(encoder, states[-1])
    pooled, cells = reading.pooled(reading.weights), _cells(encoder, states)
    (gradient,) = torch.autograd.grad(_cosine(reading.finish(pooled), text).sum(), pooled)
    query, keys, values = (
        heads.transpose(1, 2).flatten(2)[:, -cells:]
        for heads in (reading.query, reading.keys, reading.values)
    )  # (B, N, h), of the query (B or 1, 1, h)
    similarity = torch.cosine_similarity(query, keys, dim=2)  # (B, N)
    low, high = similarity.amin(dim=1, keepdim=True), similarity.amax(dim=1, keepdim=True)
    spatial_weights = (similarity - low) / (high - low).clamp_min(1e-12)
    return (values @ gradient[..., None])[..., 0].mul(spatial_weights).relu()


def legrad(
    encoder: Encoder, states: Sequence[Tensor], attentions: Sequence[Tensor], text: Tensor
) -> Tensor:
    """LeGrad (B, N) of texts (B, D): how attention to a patch raises the cosine of each layer.

    The positive part of the gradient of a layer's score with respect to its attention, averaged
    over heads, queries and layers. The score is that of the layer's mean token, projected like the
    embedding, as in the authors' code; for SigLIP, of the layer's tokens pooled by the query. The
    final scaling to 0..1 is left out, because it does not change the order.
    """
    cells, gradients = _cells(encoder, states), list[Tensor]()
    for state, weights in zip(states[1:], attentions, strict=True):
        if isinstance(encoder, CLIPImageEncoder):
            mean = encoder.model.post_layernorm(state.mean(dim=1))
            embedding = joint_projection(encoder)(mean)
        else:
            reading = read_siglip(encoder, state)
            weights = reading.weights
            embedding = reading.finish(reading.pooled(weights))
        gradients += torch.autograd.grad(_cosine(embedding, text).sum(), weights)
    positive = torch.stack([gradient.relu().mean(dim=(1, 2)) for gradient in gradients])
    return positive.mean(dim=0)[:, -cells:]


def draw_maps(encoder: Encoder, pixels: Tensor, text: Tensor) -> dict[str, Tensor]:
    """Computes all maps (B, N) except the random one, of pixels (B, 3, S, S) and texts (B, D)."""
    output = encoder.model(pixels, output_attentions=True, output_hidden_states=True)
    states, attentions = output.hidden_states, output.attentions
    starts = {ROWS: 0}
    if isinstance(encoder, CLIPImageEncoder):
        starts[f"{ROWS}, last half"] = len(attentions) // 2
    maps = {
        name: (ImageRows(encoder, first)(pixels)[:, 1:] @ text[..., None])[..., 0]
        for name, first in starts.items()
    }
    maps |= {
        "patch cosine": torch.cosine_similarity(encoder(pixels)[:, 1:], text[:, None], dim=2),
        "rollout": rollout(encoder, states, attentions),
        "Grad-ECLIP": grad_eclip(encoder, states, text),
        "LeGrad": legrad(encoder, states, attentions, text),
    }
    return {name: values.detach() for name, values in maps.items()}


def _cells(encoder: Encoder, states: Sequence[Tensor]) -> int:
    """Returns the number of patches, without [CLS]."""
    return states[0].shape[1] - isinstance(encoder, CLIPImageEncoder)


def _cosine(embeddings: Tensor, text: Tensor) -> Tensor:
    return torch.cosine_similarity(embeddings, text, dim=-1)


def measure_maps(
    runtime: Runtime, data: Split, method: str | None = None, source: str | None = None
) -> dict[str, dict[str, float]]:
    """Measures all maps for a pack with rows on images with masks, see the module's docstring.

    `method` is None for the first method of the pack that reads rows. `source` names the weights
    that the pack was made of, as in `export.clip`; None for the source that the pack names, or the
    pack itself if it was trained here. Returns for each map, and for `chance`, `sentence`, `word`
    and `name` in percent, `deletion` and `insertion` in units of the cosine; with `_behind`, how
    much better the exact rows are; and all 95 % intervals, `_low` and `_high`. Raises ValueError if
    the pack has no rows, the weights are not its own, or no object has a mask.
    """
    name = method or next((n for n, m in runtime.methods.items() if m.features_add_up), None)
    if name is None or not runtime.methods[name].features_add_up:
        raise ValueError(
            f"--maps explains packs of CLIP or SigLIP that hold rows, and {runtime.info.name} has "
            "none; python -m polyview clip makes one"
        )
    encoder = _load_encoder(runtime, data, name, source)
    questions = list(_ask(runtime, data, name))
    random = torch.Generator().manual_seed(SEED)
    # for each metric: rows of images, each with the value of each map
    samples: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for start in tqdm(range(0, len(questions), _AT_ONCE), desc="maps", mininterval=1):
        batch = questions[start : start + _AT_ONCE]
        squares = runtime.preprocess([data.images[question.image] for question in batch])
        pixels = torch.from_numpy(squares).to(runtime.device)
        tables = draw_maps(encoder, pixels, torch.stack([entry.text for entry in batch]))
        tables["random"] = torch.rand(tables[ROWS].shape, generator=random)
        maps = {entry: table.cpu().numpy() for entry, table in tables.items()}
        for row, (kind, image, text, cells, deleted) in enumerate(batch):
            accuracy = {key: evidence.peak_accuracy(maps[key][row], cells) for key in maps}
            points = {key: 100 * value for key, value in accuracy.items()}
            samples[kind].append((image, points | {"chance": 100 * float(cells.mean())}))
            if deleted:
                ties = maps["random"][row]  # break ties at random
                orders = [np.lexsort((ties, table[row])).argsort() for table in maps.values()]
                score = partial(_score_sets, encoder, pixels[row : row + 1], text)
                areas = evidence.deletion_areas(score, np.stack(orders)).tolist()  # (2, maps)
                for measure, curves in zip(("deletion", "insertion"), areas, strict=True):
                    samples[measure].append((image, dict(zip(maps, curves, strict=True))))
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for measure in [measure for measure in MEASURES if measure in samples]:
        images, values = zip(*samples[measure], strict=True)
        exact = np.array([entry[ROWS] for entry in values])
        for name in values[0]:
            metric = np.array([entry[name] for entry in values])
            behind = MEASURES[measure] * (exact - metric)
            for key, numbers in ((measure, metric), (f"{measure}_behind", behind)):
                rows[name][key] = float(numbers.mean())
                rows[name] |= mean_interval(key, numbers, np.array(images))
    return dict(rows)


def print_maps(rows: Rows, path: Path | None = None) -> None:
    """Prints the metrics of `measure_maps` and the differences to the exact rows.

    With a path also writes them as CSV, one line for each map.
    """
    for title, suffix in (("map", ""), ("behind the exact rows", "_behind")):
        table = []
        for name, row in rows.items():
            cells = [name]
            for measure in MEASURES:
                keys = [f"{measure}{suffix}{end}" for end in ("", "_low", "_high")]
                numbers = [format_value(measure, row[key]) for key in keys if key in row]
                cells.append("{} ({} to {})".format(*numbers) if numbers else "")
            table.append(cells)
        print()
        print_rows([title, *_TITLES], table)
    if path:
        out = io.StringIO()
        writer = csv.DictWriter(out, ["map", *rows[ROWS]], lineterminator="\n")
        writer.writeheader()
        for name, row in rows.items():
            writer.writerow({"map": name} | {key: f"{row[key]:.4f}" for key in row})
        write_whole(path, out.getvalue())


class _Question(NamedTuple):
    """A text and the cells that show the named objects."""

    kind: str
    image: int  # row
    text: Tensor  # (D,)
    cells: np.ndarray  # (cells,) bool
    deleted: bool = False  # whether deletion and insertion are measured


def _ask(runtime: Runtime, data: Split, name: str) -> Iterator[_Question]:
    """Yields evenly spaced captions that mention an object, and the object names in them."""
    covered = mentioned_cells(runtime, data)
    if covered is None or not covered.any():
        raise ValueError(
            "--maps needs masks of the objects that captions mention; measure rendered scenes "
            "(a pack's own, or --data with those of python -m polyview scenes)"
        )
    mentioning = np.flatnonzero(covered.any(axis=1))
    rows = mentioning[evidence.subsample_rows(len(mentioning), CAPTIONS)]
    deleted = set(rows[evidence.subsample_rows(len(rows), evidence.PAIRS)].tolist())
    mentions: dict[int, list[Mention]] = {row: [] for row in rows.tolist()}
    for mention in evidence.find_mentions(runtime, data):
        mentions.get(mention.text, []).append(mention)
    names = sorted({mention.name for each in mentions.values() for mention in each})
    by_name = dict(zip(names, runtime.text_features(names, name)[0].sum(dim=1), strict=True))
    for row, each in mentions.items():
        image = int(data.image_of[row])
        tokens = runtime.text_features([data.captions[row]], name)[0][0]  # (M, D)
        yield _Question("sentence", image, tokens.sum(dim=0), covered[row] > 0, row in deleted)
        for mention in each:
            yield _Question("word", image, tokens[mention.tokens].sum(dim=0), mention.cells)
            yield _Question("name", image, by_name[mention.name], mention.cells)


@torch.no_grad()
def _score_sets(encoder: Encoder, pixels: Tensor, text: Tensor, present: Tensor) -> Tensor:
    """Cosines (K,) of a text (D,) and an image (1, 3, S, S) with K sets of patches (K, N) bool."""
    model, tokens = encoder.model, encoder.model.embeddings(pixels)[0]  # (T, h)
    present = present.to(tokens.device)
    if isinstance(encoder, CLIPImageEncoder):
        tokens = model.pre_layrnorm(tokens)
        present = nn.functional.pad(present, (1, 0), value=True)  # [CLS] is always present
    counts, scores = present.sum(dim=1), tokens.new_empty(len(present))
    for count in counts.unique():  # sets of one size need no padding
        same = counts == count
        indices = present[same].nonzero()[:, 1].unflatten(0, (-1, int(count)))
        hidden = model.encoder(inputs_embeds=tokens[indices]).last_hidden_state
        if isinstance(encoder, CLIPImageEncoder):
            embedding = joint_projection(encoder)(model.post_layernorm(hidden[:, 0]))
        else:
            embedding = model.head(model.post_layernorm(hidden))
        scores[same] = _cosine(embedding, text[None])
    return scores


def _load_encoder(runtime: Runtime, data: Split, name: str, source: str | None) -> Any:
    """Loads the pack's image encoder in torch, with readable attention weights."""
    trained = (runtime.info.folder / f"{CLIP_LOGS}/config.toml").is_file()
    origin = runtime.info.folder if trained else runtime.info.methods[name].config["backbone"]
    source = source or str(origin)
    encoder, preprocess, _ = load_image_source(
        f"{source.partition('#')[0]}#projected", runtime.device, rounded=False
    )
    if isinstance(encoder, Encoder) and preprocess == runtime.preprocess:
        pixels = preprocess([data.images[0]])
        rows = runtime.pixel_features(pixels, name).sum(dim=1)  # (1, D)
        with torch.no_grad():
            own = encoder(torch.from_numpy(pixels).to(runtime.device))[:, 0]
        if own.shape == rows.shape and bool((own - rows).abs().max() < 1e-3 * rows.abs().max()):
            encoder.model.set_attn_implementation("eager")
            return encoder
    raise ValueError(
        f"{source} is not what {runtime.info.name} was made of; name that source: --maps FROM"
    )
