"""Compares explanation maps of CLIP on images in which every object has a mask.

A map scores how well each patch of an image matches a text, a direction t of the joint space:

- *exact rows*: the patch's contribution to the score (`models/encoders/rows.py`).
- *exact rows, last half*: the same without the first half of the layers.
- *patch cosine*: the cosine of t and the patch's last state, projected like the image's embedding.
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

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from polyview.export.encoders.sources import CLIP_LOGS, describe_image_source, load_image_source
from polyview.export.runtime import Runtime
from polyview.models.encoders.published import CLIPImageEncoder
from polyview.models.encoders.rows import ImageRows, attention_weights, joint_projection
from polyview.training.data.split import Split
from polyview.training.evaluation import evidence
from polyview.training.evaluation.evidence import Mention
from polyview.training.evaluation.metrics import SEED, mean_interval
from polyview.training.evaluation.report import Rows, format_value, print_rows, write_rows
from polyview.training.evaluation.views import mentioned_cells

MAX_CAPTIONS = 1000  # maximum number of captions with maps
# the sign of each metric: 1 if higher is better, -1 if lower is better
MEASURES = {"sentence": 1, "word": 1, "name": 1, "deletion": -1, "insertion": 1}
ROWS = "exact rows"
_TITLES = ("sentence pointing, %", "word pointing, %", "name pointing, %", "deletion", "insertion")
_BATCH_SIZE = 32  # questions


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """Returns the attention rollout (B, N) of the attentions (B, H, T, T) of all layers.

    The matrix of a layer is the mean over H heads, averaged with the identity for the residual
    connection. The matrices of all layers are multiplied (section 3). Token 0 of T is [CLS].
    """
    flow = identity = torch.eye(attentions[0].shape[2]).to(attentions[0])
    for weights in attentions:
        flow = (weights.mean(dim=1) + identity) / 2 @ flow  # (B, T, T)
    return flow[:, 0, 1:]


def grad_eclip(encoder: CLIPImageEncoder, states: Sequence[Tensor], text: Tensor) -> Tensor:
    """Returns Grad-ECLIP's maps (B, N) of texts (B, D): ReLU(sum_c w_c lambda_i v_ic).

    The sum is over channels. w is the gradient of the cosine with respect to the last attention's
    output for [CLS], before the output projection. v_i is the value of patch i, with all heads
    concatenated. lambda_i is the cosine of query and key, scaled to 0..1. It replaces the softmax,
    which favours few patches.
    """
    layer, state = encoder.model.encoder.layers[-1], states[-2]  # (B, T, h)
    attention, normed = layer.self_attn, layer.layer_norm1(state)
    query = attention.q_proj(normed[:, :1])  # (B, 1, h)
    keys, values = attention.k_proj(normed), attention.v_proj(normed)  # (B, T, h)
    shape = (attention.num_heads, -1)  # (H, e)
    heads = [part.unflatten(2, shape).transpose(1, 2) for part in (query, keys, values)]
    pooled = (attention_weights(*heads[:2]) @ heads[2]).flatten(1)  # (B, h)
    hidden = state[:, 0] + attention.out_proj(pooled)
    hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
    (gradient,) = torch.autograd.grad(_cosine(encoder, hidden, text).sum(), pooled)
    similarity = torch.cosine_similarity(query, keys[:, 1:], dim=2)  # (B, N)
    low, high = similarity.amin(dim=1, keepdim=True), similarity.amax(dim=1, keepdim=True)
    spatial_weights = (similarity - low) / (high - low).clamp_min(1e-12)
    return (values[:, 1:] @ gradient[..., None])[..., 0].mul(spatial_weights).relu()


def legrad(
    encoder: CLIPImageEncoder, states: Sequence[Tensor], attentions: Sequence[Tensor], text: Tensor
) -> Tensor:
    """Returns LeGrad's maps (B, N) of texts (B, D).

    A layer's score is the cosine of the text and the layer's mean token, projected like the
    embedding, as in the authors' code. A map is the positive part of the gradients of the scores
    with respect to the layers' attentions, averaged over heads, queries and layers. The final
    scaling to 0..1 is left out, because it does not change the order.
    """
    gradients = list[Tensor]()
    for state, weights in zip(states[1:], attentions, strict=True):
        score = _cosine(encoder, state.mean(dim=1), text).sum()
        gradients += torch.autograd.grad(score, weights)
    positive = torch.stack([gradient.relu().mean(dim=(1, 2)) for gradient in gradients])
    return positive.mean(dim=0)[:, 1:]


def compute_maps(encoder: CLIPImageEncoder, pixels: Tensor, text: Tensor) -> dict[str, Tensor]:
    """Computes all maps (B, N) but "random" for pixels (B, 3, S, S) and text embeddings (B, D)."""
    output = encoder.model(pixels, output_attentions=True, output_hidden_states=True)
    states, attentions = output.hidden_states, output.attentions
    starts = {ROWS: 0, f"{ROWS}, last half": len(attentions) // 2}
    maps = {
        name: (ImageRows(encoder, first)(pixels)[:, 1:] @ text[..., None])[..., 0]
        for name, first in starts.items()
    }
    maps |= {
        "patch cosine": torch.cosine_similarity(encoder(pixels)[:, 1:], text[:, None], dim=2),
        "rollout": rollout(attentions),
        "Grad-ECLIP": grad_eclip(encoder, states, text),
        "LeGrad": legrad(encoder, states, attentions, text),
    }
    return {name: values.detach() for name, values in maps.items()}


def _cosine(encoder: CLIPImageEncoder, hidden: Tensor, text: Tensor) -> Tensor:
    """Returns the cosines (B,) of projected states (B, h) and texts (B, D)."""
    embeddings = joint_projection(encoder)(encoder.model.post_layernorm(hidden))
    return torch.cosine_similarity(embeddings, text, dim=-1)


def measure_maps(
    runtime: Runtime, data: Split, method: str | None = None, source: str | None = None
) -> dict[str, dict[str, float]]:
    """Measures all maps of a pack of CLIP on images with masks, see the module's docstring.

    `method` is None for the first method of the pack that reads rows. `source` names the pack's
    weights, as in `export.clip`. None stands for the source in `pack.json`, or for the pack itself
    if `training/loop/clip.py` trained it. Returns for each map, and for `chance`, the metrics
    `sentence`, `word` and `name` in percent, and `deletion` and `insertion` in units of the cosine.
    The suffix `_behind` marks the lead of the exact rows over the map; `_low` and `_high` mark the
    bounds of 95 % intervals. Raises ValueError if the pack has no rows, `source` has other weights,
    or no object has a mask.
    """
    name = method or next((n for n, m in runtime.methods.items() if m.features_add_up), None)
    if name is None or not runtime.methods[name].features_add_up:
        reason = f"--maps needs a pack of CLIP with rows, and {runtime.info.name} has none"
        raise ValueError(f"{reason}; python -m polyview clip makes one")
    encoder = _load_encoder(runtime, data, name, source)
    questions = list(_make_questions(runtime, data, name))
    random = torch.Generator().manual_seed(SEED)
    # metric -> pairs of an image's row and a dictionary of each map's value
    samples: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for start in tqdm(range(0, len(questions), _BATCH_SIZE), desc="maps", mininterval=1):
        batch = questions[start : start + _BATCH_SIZE]
        squares = runtime.preprocess([data.images[question.image] for question in batch])
        pixels = torch.from_numpy(squares).to(runtime.device)
        tensors = compute_maps(encoder, pixels, torch.stack([question.text for question in batch]))
        tensors["random"] = torch.rand(tensors[ROWS].shape, generator=random)
        maps = {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
        for row, (kind, image, text, cells, has_areas) in enumerate(batch):
            percent = {key: 100 * evidence.peak_accuracy(maps[key][row], cells) for key in maps}
            samples[kind].append((image, percent | {"chance": 100 * float(cells.mean())}))
            if has_areas:
                tie_breaks = maps["random"][row]
                orders = [np.lexsort((tie_breaks, table[row])).argsort() for table in maps.values()]
                score = partial(_score_sets, encoder, pixels[row : row + 1], text)
                areas = evidence.deletion_areas(score, np.stack(orders)).tolist()  # (2, maps)
                for measure, curves in zip(("deletion", "insertion"), areas, strict=True):
                    samples[measure].append((image, dict(zip(maps, curves, strict=True))))
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for measure in [measure for measure in MEASURES if measure in samples]:
        images, values = zip(*samples[measure], strict=True)
        exact = np.array([value_by_map[ROWS] for value_by_map in values])
        for map_name in values[0]:
            metric = np.array([value_by_map[map_name] for value_by_map in values])
            lead = MEASURES[measure] * (exact - metric)
            for key, numbers in ((measure, metric), (f"{measure}_behind", lead)):
                rows[map_name][key] = float(numbers.mean())
                rows[map_name] |= mean_interval(key, numbers, np.array(images))
    return dict(rows)


def print_maps(rows: Rows, path: Path | None = None) -> None:
    """Prints the metrics of `measure_maps` and the lead of the exact rows.

    If a path is given, also writes all of these as CSV, with a line for each map.
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
        lines = ({key: f"{value:.4f}" for key, value in row.items()} for row in rows.values())
        write_rows(path, [{"map": name, **line} for name, line in zip(rows, lines, strict=True)])


class _Question(NamedTuple):
    """A text and the cells of an image that show the named objects."""

    kind: str  # "sentence", "word" or "name", see the module's docstring
    image: int  # row of the image
    text: Tensor  # (D,)
    cells: np.ndarray  # (cells,) bool
    has_areas: bool = False  # whether deletion and insertion are measured


def _make_questions(runtime: Runtime, data: Split, name: str) -> Iterator[_Question]:
    """Yields questions of all kinds about evenly spaced captions that mention a visible object."""
    covered = mentioned_cells(runtime, data)
    if covered is None or not covered.any():
        scenes = "rendered scenes (a pack's own, or --data with those of python -m polyview scenes)"
        raise ValueError(f"--maps needs masks of the objects in captions; measure {scenes}")
    mention_rows = np.flatnonzero(covered.any(axis=1))
    rows = mention_rows[evidence.subsample_rows(len(mention_rows), MAX_CAPTIONS)]
    area_rows = set(rows[evidence.subsample_rows(len(rows), evidence.AREA_CAPTIONS)].tolist())
    mentions: dict[int, list[Mention]] = {row: [] for row in rows.tolist()}
    for mention in evidence.find_mentions(runtime, data):
        mentions.get(mention.text, []).append(mention)  # drops those of other captions
    names = sorted({mention.name for entries in mentions.values() for mention in entries})
    embeddings = dict(zip(names, runtime.text_features(names, name)[0].sum(dim=1), strict=True))
    for row, entries in mentions.items():
        image = int(data.image_of[row])
        tokens = runtime.text_features([data.captions[row]], name)[0][0]  # (M, D) contributions
        yield _Question("sentence", image, tokens.sum(dim=0), covered[row] > 0, row in area_rows)
        for mention in entries:
            yield _Question("word", image, tokens[mention.tokens].sum(dim=0), mention.cells)
            yield _Question("name", image, embeddings[mention.name], mention.cells)


@torch.no_grad()
def _score_sets(encoder: CLIPImageEncoder, pixels: Tensor, text: Tensor, subsets: Tensor) -> Tensor:
    """Returns cosines (K,) of a text (D,) and an image of only the patches in `subsets` (K, N)."""
    model = encoder.model
    tokens = model.pre_layrnorm(model.embeddings(pixels)[0])  # (T, h)
    subsets = nn.functional.pad(subsets.to(tokens.device), (1, 0), value=True)  # with [CLS]
    counts, scores = subsets.sum(dim=1), tokens.new_empty(len(subsets))
    for count in counts.unique():  # subsets of equal size form a batch without padding
        rows = counts == count
        indices = subsets[rows].nonzero()[:, 1].unflatten(0, (-1, int(count)))
        hidden = model.encoder(inputs_embeds=tokens[indices]).last_hidden_state
        scores[rows] = _cosine(encoder, hidden[:, 0], text[None])
    return scores


def _load_encoder(runtime: Runtime, data: Split, name: str, source: str | None) -> CLIPImageEncoder:
    """Loads the pack's image encoder in torch, with an attention that returns its weights."""
    is_trained = (runtime.info.folder / f"{CLIP_LOGS}/config.toml").is_file()  # by loop/clip.py
    origin = runtime.info.folder if is_trained else runtime.info.methods[name].config["backbone"]
    source = (source or str(origin)).partition("#")[0]
    if describe_image_source(source)["arch"] != "clip_vision":
        reason = f"--maps explains CLIP, and {source} holds another image encoder"
        raise ValueError(f"{reason}; choose a pack of CLIP, or name its source: --maps FROM")
    projected = f"{source}#projected"
    encoder, preprocess, _ = load_image_source(projected, runtime.device, rounded=False)
    assert isinstance(encoder, CLIPImageEncoder)
    if preprocess == runtime.preprocess:  # then compare embeddings
        pixels = preprocess([data.images[0]])
        expected = runtime.pixel_features(pixels, name).sum(dim=1)  # (1, D), by the pack
        with torch.no_grad():
            embedding = encoder(torch.from_numpy(pixels).to(runtime.device))[:, 0]
        same_shape = embedding.shape == expected.shape
        if same_shape and bool((embedding - expected).abs().max() < 1e-3 * expected.abs().max()):
            encoder.model.set_attn_implementation("eager")
            return encoder
    reason = f"{source} does not hold the weights of {runtime.info.name}"
    raise ValueError(f"{reason}; name their source: --maps FROM")
