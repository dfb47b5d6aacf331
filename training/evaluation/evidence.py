"""Measures whether evidence lies on named objects, and whether the score depends on it.

Evidence splits the score of a caption and its image over image cells and words
(`models/evidence.py`). The metrics are:

- *Pointing*: does the cell with the most evidence, summed over all words, show an object that the
  caption mentions? `training/evaluation/views.py` defines accuracy and chance.
- *Pointing of words*: does the cell with the most evidence for an object's name show an object of
  that kind? Chance is the share of cells that show one.
- *Deletion* and *insertion* (Petsiuk et al., BMVC 2018): cells are removed from the image, or
  added to an empty image, in descending order of evidence; the area is the mean score over the
  steps. A good order has a low deletion area and a high insertion area. Evidence is compared with
  random orders and the winning view's attention map; gains have 95 % intervals over captions.
- *Random heads* (Adebayo et al., NeurIPS 2018): with random head weights over the same features,
  pointing must fall towards chance.
- *Error*: the largest relative difference between a score and the sum of its evidence.

For clips, pointing is measured over time, with frames instead of cells (`moment_metrics`).
"""

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from polyview.export.runtime import Runtime
from polyview.models import Method, Views
from polyview.training.data.split import Split
from polyview.training.evaluation.metrics import mean_interval
from polyview.training.evaluation.report import Rows, print_metrics
from polyview.training.evaluation.views import object_shares

AREA_CAPTIONS = 300  # maximum number of captions for deletion and insertion
_RANDOM_HEAD_CAPTIONS = 1000  # maximum number of captions for random heads
_STEP_COUNT = 10  # number of steps of deletion and insertion
_RANDOM_ORDER_COUNT = 3  # number of random orders of cells for each caption
_BATCH_SIZE = 32  # captions
_COLUMNS = {
    "evidence_pointing": "points at a mentioned object, %", "evidence_chance": "chance",
    "evidence_random_head": "random heads",
    "evidence_word_pointing": "a word points at its object, %", "evidence_word_chance": "chance",
    "deletion": "deletion", "deletion_random": "at random", "deletion_map": "by the paper's map",
    "insertion": "insertion", "insertion_random": "at random",
    "insertion_map": "by the paper's map", "evidence_error": "error",
    "moment_pointing": "peaks in a frame with a mentioned object, %", "moment_chance": "chance",
    "moment_word_pointing": "a word peaks where its object is, %", "moment_word_chance": "chance",
}  # fmt: skip
Peak = tuple[float, float]  # accuracy of the highest cell, and chance, both in 0..1


@dataclass(frozen=True)
class Mention:
    """The visible objects of one kind that a caption names."""

    text: int  # row of the caption
    tokens: list[int]  # positions of the tokens that name the kind
    cells: np.ndarray  # (cells,) bool, whether a cell shows one of the objects
    name: str  # name of the kind


def find_mentions(runtime: Runtime, data: Split) -> list[Mention]:
    """Returns a mention for each caption and each kind of visible object that the caption names.

    Raises ValueError if the pack reads region features, which have no grid.
    """
    if runtime.info.image_encoder.file is None:
        raise ValueError("omit --evidence: it needs a grid of cells, and the pack reads regions")
    objects, mentions = data.objects, list[Mention]()
    if objects is None or not objects.names:
        return []
    images = zip(object_shares(runtime, objects), objects.names, strict=True)
    for image, (shares, names) in enumerate(images):  # shares (cells, 256), names of each object
        for text in np.flatnonzero(data.image_of == image).tolist():
            spans = runtime.reader.read(data.captions[text]).spans
            for forms in dict.fromkeys(names[i] for i in objects.mentions[text]):
                mask_values = [i + 1 for i, other_forms in enumerate(names) if other_forms == forms]
                cells: np.ndarray = shares[:, mask_values].sum(axis=1) > 0
                tokens = find_words(data.captions[text], spans, forms)
                if tokens and cells.any():
                    mentions.append(Mention(text, tokens, cells, forms[0]))
    return mentions


def find_words(text: str, spans: Sequence[tuple[int, int]], forms: Sequence[str]) -> list[int]:
    """Finds the tokens that spell one of `forms`; `spans` locates the tokens in the stripped text.

    >>> find_words("Dog on dogwood", [(0, 0), (0, 2), (2, 3), (4, 6), (7, 14)], ["dog", "dogs"])
    [1, 2]
    """
    options = sorted(map(re.escape, forms), key=len, reverse=True)  # "santa claus" before "santa"
    pattern = rf"\b(?:{'|'.join(options)})\b"
    words = [match.span() for match in re.finditer(pattern, text.strip(), re.IGNORECASE)]
    overlaps = [any(start < last and first < end for first, last in words) for start, end in spans]
    return np.flatnonzero(overlaps).tolist()


def evidence_metrics(
    runtime: Runtime,
    name: str,
    data: Split,
    features: Tensor | np.ndarray,
    covered: np.ndarray | None,
    mentions: Sequence[Mention],
) -> dict[str, float]:
    """Measures a method's evidence over features (N_img, N, d), see the module's docstring.

    `covered` (N_txt, cells) is from `mentioned_cells`; None if objects are unknown. For clips,
    returns `moment_metrics`. Otherwise returns

    - `evidence_error`, a share of the score;
    - if objects are known, `evidence_pointing`, `evidence_chance`, `evidence_random_head`,
      `evidence_word_pointing` and `evidence_word_chance`, in percent;
    - `deletion`, `deletion_random` and `deletion_map`, the same for `insertion`, and intervals of
      the gains, such as `deletion_gain_random_low` and `_high`, in units of the score.
    """
    assert isinstance(features, Tensor)  # `find_mentions` refuses packs of regions
    if data.frames > 1:
        return moment_metrics(runtime, name, data, features)
    head, area_rows = runtime.methods[name], subsample_rows(len(data.captions), AREA_CAPTIONS)
    mention_rows = area_rows if covered is None else np.flatnonzero(covered.any(axis=1))
    mentions_by_text = defaultdict[int, list[Mention]](list)
    for mention in mentions:
        mentions_by_text[mention.text].append(mention)
    texts = np.union1d(mention_rows, area_rows)
    maps, errors, word_peaks = dict[int, np.ndarray](), list[float](), list[Peak]()
    for text, cells, error in _split_scores(runtime, name, head, data, features, texts):
        maps[text] = cells.sum(axis=1)
        errors.append(error)
        for mention in mentions_by_text[text]:
            word_peaks.append(_judge_peak(cells[:, mention.tokens].sum(axis=1), mention.cells))
    values = {"evidence_error": max(errors)}
    if covered is not None:
        peaks = [_judge_peak(maps[text], covered[text] > 0) for text in mention_rows.tolist()]
        values |= _mean_peak("evidence", peaks)
        random_head = copy.deepcopy(head)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            for weight in random_head.parameters():  # new values, same deviations
                weight.normal_(std=float(weight.std()) if weight.numel() > 1 else 1.0)
        sample = mention_rows[subsample_rows(len(mention_rows), _RANDOM_HEAD_CAPTIONS)]
        parts = _split_scores(runtime, name, random_head, data, features, sample)
        peaks = [_judge_peak(cells.sum(axis=1), covered[text] > 0) for text, cells, _ in parts]
        if peaks:
            values["evidence_random_head"] = _mean_peak("evidence", peaks)["evidence_pointing"]
    values |= _mean_peak("evidence_word", word_peaks)
    by_text = {text: maps[text] for text in area_rows.tolist()}
    return values | _measure_areas(runtime, name, data, features, by_text)


def subsample_rows(count: int, max_items: int) -> np.ndarray:
    """Returns at most `max_items` evenly spaced rows out of `count`."""
    return np.linspace(0, count - 1, min(count, max_items)).round().astype(np.int64)


def peak_accuracy(values: np.ndarray, is_right: np.ndarray) -> float:
    """Returns 1 if the cell with the highest value is right, else 0; the average for tied cells."""
    return float(is_right[values == values.max()].mean())


def _judge_peak(values: np.ndarray, is_right: np.ndarray) -> Peak:
    """Returns the accuracy of the highest cell, and chance: the share of cells that are right."""
    return peak_accuracy(values, is_right), float(is_right.mean())


def _mean_peak(key: str, peaks: Sequence[Peak]) -> dict[str, float]:
    """Returns the means `KEY_pointing` and `KEY_chance` in percent; empty without peaks."""
    if not peaks:
        return {}
    accuracy, chance = (100 * np.mean(peaks, axis=0)).tolist()
    return {f"{key}_pointing": accuracy, f"{key}_chance": chance}


@torch.no_grad()
def _split_scores(
    runtime: Runtime, name: str, head: Method, data: Split, features: Tensor, texts: np.ndarray
) -> Iterator[tuple[int, np.ndarray, float]]:
    """Yields for each text its row, evidence (cells or frames, words + 1) and relative error."""
    for start in range(0, len(texts), _BATCH_SIZE):
        rows = texts[start : start + _BATCH_SIZE]
        images = features[data.image_of[rows]].to(runtime.device)  # (B, N, d)
        words, mask = runtime.text_features([data.captions[row] for row in rows], name)
        all_cells = torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
        evidence = head.evidence(head.image_parts(images, all_cells), head.text_parts(words, mask))
        scores = [
            head.score(head.encode_image(images[i : i + 1], all_cells[:1]), head.encode_text(*pair))
            for i, pair in enumerate(zip(words.split(1), mask.split(1), strict=True))
        ]
        score = torch.cat(scores).flatten()  # (B,)
        error = ((evidence.score - score).abs() / score.abs().clamp_min(1e-6)).tolist()
        cells = torch.cat([evidence.cells, evidence.whole_sentence[..., None]], dim=2)
        if data.frames == 1:
            cells = runtime.to_grid(cells.mT).flatten(2).mT  # (B, cells, M + 1)
        yield from zip(rows.tolist(), cells.cpu().numpy(), error, strict=True)


@torch.no_grad()
def _measure_areas(
    runtime: Runtime, name: str, data: Split, features: Tensor, maps: dict[int, np.ndarray]
) -> dict[str, float]:
    """Measures deletion and insertion by evidence (`maps`), at random and by attention."""
    areas, head = [], runtime.methods[name]
    random = np.random.default_rng(0)
    for text, evidence in maps.items():  # (cells,)
        row, query = int(data.image_of[text]), runtime.text_views([data.captions[text]], name)
        image_views = runtime.image_views(features[row : row + 1], name, attention=True)
        orders = [evidence, *(random.random(len(evidence)) for _ in range(_RANDOM_ORDER_COUNT))]
        assert image_views.attention is not None  # every method returns attention if asked to
        winner = int(head.view_scores(image_views, query)[:, 0, 0].argmax())
        orders.append(runtime.to_grid(image_views.attention)[0, winner].flatten().cpu().numpy())
        score = partial(_score_sets, runtime, name, features[row], query)
        areas.append(deletion_areas(score, np.stack(orders)))  # (2, orders)
    values = {}
    curves = zip(("deletion", "insertion"), (-1, 1), np.stack(areas, axis=1), strict=True)
    for curve, sign, table in curves:  # table (captions, orders)
        by_evidence = table[:, 0]
        values[curve] = float(by_evidence.mean())
        for other, area in (("random", table[:, 1:-1].mean(axis=1)), ("map", table[:, -1])):
            values[f"{curve}_{other}"] = float(area.mean())
            values |= mean_interval(f"{curve}_gain_{other}", sign * (by_evidence - area))
    return values


def _score_sets(
    runtime: Runtime, name: str, features: Tensor, query: Views, subsets: Tensor
) -> Tensor:
    """Returns the scores (K,) of an image (N, d) with only the cells in `subsets` (K, cells)."""
    mask = torch.ones(len(subsets), len(features), dtype=torch.bool)
    mask[:, -subsets.shape[1] :] = subsets  # a summary feature before the cells is never removed
    views = runtime.image_views(features.expand(len(subsets), -1, -1), name, mask=mask)
    return runtime.methods[name].score(views, query)[:, 0]


def deletion_areas(score: Callable[[Tensor], Tensor], orders: np.ndarray) -> np.ndarray:
    """Returns the areas (2, O) of deletion and insertion in O orders of the cells.

    An area is the mean score over all steps. `score` maps K non-empty sets of cells (K, cells)
    bool to scores (K,). `orders` (O, cells) hold a value for each cell. Cells are removed or added
    by descending value; the index decides ties.
    """
    count = orders.shape[1]
    ranks = (-orders).argsort(axis=1, kind="stable").argsort(axis=1)  # (O, cells)
    sizes = np.linspace(0, count, _STEP_COUNT + 1).round().astype(int)
    after_deletion = ranks[:, None] >= sizes[:-1, None]  # (O, S steps, cells), never empty
    after_insertion = ranks[:, None] < sizes[1:, None]
    subsets = np.stack([after_deletion, after_insertion]).reshape(-1, count)  # (2 * O * S, cells)
    scores = score(torch.from_numpy(subsets)).cpu().numpy()
    return scores.reshape(2, len(orders), _STEP_COUNT).mean(axis=2)


def moment_metrics(runtime: Runtime, name: str, data: Split, features: Tensor) -> dict[str, float]:
    """Measures how often evidence over time peaks in a frame that shows the named objects.

    Captions and words count only if their objects are visible in some frames but not in all.
    Features are (N_img, frames, d). All metrics are in percent. `moment_pointing` is how often the
    frame with the most evidence over all words shows a mentioned object. `moment_word_pointing` is
    how often the frame with the most evidence for an object's name shows the object.
    `moment_chance` and `moment_word_chance` are the shares of frames that show the objects. Raises
    ValueError if moments are unknown or a frame has several features.
    """
    if data.moments is None or features.shape[1] != data.frames:
        requirement = "clips with known object positions, such as a pack's own"
        raise ValueError(f"evidence over time needs {requirement}, and one feature for each frame")
    head, objects = runtime.methods[name], data.moments
    peaks: dict[str, list[Peak]] = {"moment": [], "moment_word": []}
    texts = np.arange(len(data.captions))
    for text, frames, _ in _split_scores(runtime, name, head, data, features, texts):
        caption, image = data.captions[text], data.image_of[text]
        is_visible, mentions = objects.masks[image], list(objects.mentions[text])
        maps = [("moment", frames.sum(axis=1), is_visible[mentions].any(axis=0))]  # (frames,) each
        spans = runtime.reader.read(caption).spans
        for index in mentions:
            if tokens := find_words(caption, spans, objects.names[image][index]):
                maps.append(("moment_word", frames[:, tokens].sum(axis=1), is_visible[index]))
        for key, values, is_right in maps:
            if is_right.any() and not is_right.all():
                peaks[key].append(_judge_peak(values, is_right))
    return _mean_peak("moment", peaks["moment"]) | _mean_peak("moment_word", peaks["moment_word"])


def print_evidence(rows: Rows) -> None:
    """Prints a row of metrics for each method, and the intervals of the gains."""
    print()
    print_metrics("evidence of", _COLUMNS, rows, strict=False)
    print()
    titles = {"random": "at random", "map": "by the paper's map"}
    for name, row in rows.items():
        for curve, better in (("deletion", "lower"), ("insertion", "higher")):
            keys = {f"{curve}_gain_{other}": title for other, title in titles.items()}
            gains = [
                f"{row[f'{key}_low']:.3f} to {row[f'{key}_high']:.3f} {better} than {title}"
                for key, title in keys.items()
                if f"{key}_low" in row
            ]
            if gains:
                print(f"{name}: {curve} {', '.join(gains)} (95 % intervals)")
