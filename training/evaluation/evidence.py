"""Evidence measured: does it lie where the words say, and does the score depend on it?

For a caption and its own image, evidence says how much of their score each cell of the image finds
in each word (`models/evidence.py`). It is asked:

- *Pointing*: does its highest cell, all words together, show an object that the caption mentions?
  Counted as in `training/evaluation/faithfulness.py`, where the paper's own maps are measured.
- *Pointing of words*: does the highest cell of the words that name a kind of object show an object
  of that kind? Chance is the share of cells that do.
- *Deletion* and *insertion* (Petsiuk et al., BMVC 2018): cells leave the set, or enter it, highest
  evidence first; the area is the mean score over that. A good order is low in deletion and high in
  insertion. Beside it the areas of random orders and of the order of the paper's own map (that of
  the winning view), with the 95 % interval of the gain over them (bootstrap over captions).
- *Renewed deletion*: the same where each step asks anew, because evidence holds attentions and
  ranks as they are, and when cells leave, what they held moves on to others.
- *Random heads* (Adebayo et al., NeurIPS 2018): with heads of random weights over the same
  features, pointing must fall towards chance.
- *Error*: the largest difference between a score and its evidence added up, as a share of it.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from export.runtime import Runtime
from models import Method, Views
from models.evidence import Parts
from training.data.split import SeenObjects, Split
from training.evaluation.faithfulness import value_shares

PAIRS = 300  # captions of which cells are deleted
_STEPS = 10  # of deletion and insertion
_RANDOM_ORDERS = 3
_AT_ONCE = 32  # captions
_DRAWS = 1000


@dataclass(frozen=True)
class Place:
    """Where something is seen that a caption says.

    Attributes:
        text: row of the caption.
        tokens: which of its tokens say it.
        cells: (cells,) bool, where it is seen.
    """

    text: int
    tokens: tuple[int, ...]
    cells: np.ndarray


def named_places(
    objects: SeenObjects,
    words: Sequence[Sequence[str]],
    image_of: np.ndarray,
    grid: tuple[int, int],
) -> list[Place]:
    """What the words of captions name, found by every name that a kind of object goes by.

    Args:
        objects: masks and names of the objects of N_img images, and mentions of N_txt captions.
        words: of each caption, as its encoder reads them.
        image_of: (N_txt,) row of each caption's image.
        grid: rows and columns of the maps.
    """
    places = []
    for image, (mask, names) in enumerate(zip(objects.masks, objects.names, strict=True)):
        shares = value_shares(mask, grid)  # (cells, 256)
        for text in np.flatnonzero(image_of == image).tolist():
            kinds = dict.fromkeys(names[i] for i in objects.mentions[text])
            for kind in kinds:
                values = [i + 1 for i, forms in enumerate(names) if forms == kind]
                cells: np.ndarray = shares[:, values].sum(axis=1) > 0
                tokens = find_words(words[text], kind)
                if tokens and cells.any():
                    places.append(Place(text, tokens, cells))
    return places


def find_words(words: Sequence[str], forms: Sequence[str]) -> tuple[int, ...]:
    """Places in a text of all words of all forms of a name that occur in it."""
    found: set[int] = set()
    for form in forms:
        parts = form.split()
        for start in range(len(words) - len(parts) + 1):
            if list(words[start : start + len(parts)]) == parts:
                found |= set(range(start, start + len(parts)))
    return tuple(sorted(found))


def evidence_metrics(
    runtime: Runtime,
    name: str,
    data: Split,
    features: Tensor,
    covered: np.ndarray | None,
    places: Sequence[Place],
) -> dict[str, float]:
    """Measures a method's evidence, see the module's description.

    Args:
        runtime: a loaded pack.
        name: one of its methods.
        data: captions and which image each is of.
        features: (N_img, N, d) of its images.
        covered: (N_txt, cells) as `mentioned_shares` gives it; None where objects are not known.
        places: as `named_places` gives it.

    Returns:
        `evidence_error`; where objects are known, in percent, `evidence_pointing`, `_chance` and
        `_random_head`, `evidence_word_pointing` and `_chance`; and for deletion and insertion
        `deletion`, `deletion_random`, `deletion_map`, in units of the score, and
        `deletion_gain_random_low`, `_high` (and so on) of what evidence is better by; and
        `deletion_renewed` and `deletion_renewed_map`, with their gain.
    """
    head = runtime.methods[name]
    drawn = _spread(len(data.captions), PAIRS)
    mentioning = drawn if covered is None else np.flatnonzero(covered.any(axis=1))
    of_text: dict[int, list[Place]] = {}
    for place in places:
        of_text.setdefault(place.text, []).append(place)
    maps: dict[int, np.ndarray] = {}
    found, errors = [], []
    asked = np.union1d(mentioning, drawn)
    for text, cells, error in _split(runtime, name, head, data, features, asked):
        maps[text] = cells.sum(axis=1)
        errors.append(error)
        found += [(_points(cells[:, place.tokens].sum(axis=1), place.cells), place.cells.mean())
                  for place in of_text.get(text, [])]  # fmt: skip
    values = {"evidence_error": max(errors)}
    if covered is not None:
        values |= _pointing(maps, mentioning, covered)
        some = mentioning[_spread(len(mentioning), 1000)]
        blind = _split(runtime, name, _with_random_weights(head), data, features, some)
        random = {text: cells.sum(axis=1) for text, cells, _ in blind}
        values["evidence_random_head"] = _pointing(random, some, covered)["evidence_pointing"]
    if found:
        right, chance = 100 * np.mean(found, axis=0)
        values |= {"evidence_word_pointing": float(right), "evidence_word_chance": float(chance)}
    values |= _areas(runtime, name, data, features, {text: maps[text] for text in drawn})
    return values | _renewed(runtime, name, data, features, drawn)


def _spread(count: int, most: int) -> np.ndarray:
    """Rows spread evenly over so many."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def _points(values: np.ndarray, right: np.ndarray) -> float:
    """Whether the highest cell is right; of equals, the share that is."""
    return float(right[values == values.max()].mean())


def _pointing(
    maps: dict[int, np.ndarray], texts: np.ndarray, covered: np.ndarray
) -> dict[str, float]:
    points = [_points(maps[text], covered[text] > 0) for text in texts.tolist()]
    chance = float((covered[texts] > 0).mean())
    return {"evidence_pointing": 100 * float(np.mean(points)), "evidence_chance": 100 * chance}


@torch.no_grad()
def _split(
    runtime: Runtime, name: str, head: Method, data: Split, features: Tensor, texts: np.ndarray
) -> Iterator[tuple[int, np.ndarray, float]]:
    """Of captions: their row, evidence (cells, M + 1), the whole sentence last, and the error."""
    for start in range(0, len(texts), _AT_ONCE):
        rows = texts[start : start + _AT_ONCE]
        read = features[data.image_of[rows]].to(runtime.device)  # (B, N, d)
        real = torch.ones(read.shape[:2], dtype=torch.bool, device=read.device)
        words, mask = runtime.text_features([data.captions[row] for row in rows], name)
        found = head.evidence(head.image_parts(read, real), head.text_parts(words, mask))
        scores = [
            head.score(head.encode_image(read[i : i + 1], real[:1]), head.encode_text(*pair))
            for i, pair in enumerate(zip(words.split(1), mask.split(1), strict=True))
        ]
        score = torch.cat(scores).flatten()  # (B,)
        error = ((found.score - score).abs() / score.abs().clamp_min(1e-6)).tolist()
        cells = torch.cat([found.cells, found.whole_sentence[..., None]], dim=2)  # (B, N, M + 1)
        on_grid = runtime.on_grid(cells.mT).flatten(2).mT.cpu().numpy()  # (B, cells, M + 1)
        yield from zip(rows.tolist(), on_grid, error, strict=True)


@torch.no_grad()
def _areas(
    runtime: Runtime, name: str, data: Split, features: Tensor, maps: dict[int, np.ndarray]
) -> dict[str, float]:
    """Areas of deletion and insertion of captions, by `maps` and by what these are held against."""
    areas = []
    random = np.random.default_rng(0)
    for text, evidence in maps.items():
        head, row = runtime.methods[name], int(data.image_of[text])
        words = runtime.text_views([data.captions[text]], name)
        seen = runtime.image_views(features[row : row + 1], name, attention=True)
        orders = [evidence, *(random.random(len(evidence)) for _ in range(_RANDOM_ORDERS))]
        assert seen.attention is not None  # every method has maps where they are asked for
        won = int(head.view_scores(seen, words)[:, 0, 0].argmax())
        orders.append(runtime.on_grid(seen.attention)[0, won].flatten().cpu().numpy())
        curves = _curves(runtime, name, features[row], words, np.stack(orders))  # (2, O)
        areas.append(curves)
    table = np.stack(areas)  # (P, 2, O)
    values = {}
    for i, (curve, sign) in enumerate((("deletion", -1), ("insertion", 1))):
        ours, at_random = table[:, i, 0], table[:, i, 1:-1].mean(axis=1)
        others = {"random": at_random, "map": table[:, i, -1]}
        values[curve] = float(ours.mean())
        for other, area in others.items():
            low, high = _interval(sign * (ours - area))
            values |= {
                f"{curve}_{other}": float(area.mean()),
                f"{curve}_gain_{other}_low": low,
                f"{curve}_gain_{other}_high": high,
            }
    return values


@torch.no_grad()
def _renewed(
    runtime: Runtime, name: str, data: Split, features: Tensor, texts: np.ndarray
) -> dict[str, float]:
    """Areas of deletion where each step orders the cells that are left anew."""
    head, areas = runtime.methods[name], []
    for start in range(0, len(texts), _AT_ONCE):
        rows = texts[start : start + _AT_ONCE]
        read = features[data.image_of[rows]].to(runtime.device)  # (B, N, d)
        given = runtime.text_features([data.captions[row] for row in rows], name)
        parts, words = head.text_parts(*given), head.encode_text(*given)

        def by_evidence(
            left: Tensor, _: Views, read: Tensor = read, parts: Parts = parts
        ) -> Tensor:
            found = head.evidence(head.image_parts(read, left), parts)
            return found.cells.sum(dim=2) + found.whole_sentence  # (B, N)

        def by_map(_: Tensor, seen: Views, words: Views = words) -> Tensor:
            won = head.view_scores(seen, words).diagonal(dim1=1, dim2=2).argmax(dim=0)  # (B,)
            assert seen.attention is not None  # every method has maps where they are asked for
            return seen.attention[torch.arange(len(won)), won]  # (B, N)

        cells = runtime.grid[0] * runtime.grid[1]
        curves = [_deleted(head, read, words, cells, order) for order in (by_evidence, by_map)]
        areas.append(torch.stack(curves).cpu().numpy())
    ours, theirs = np.concatenate(areas, axis=1)
    low, high = _interval(theirs - ours)
    return {
        "deletion_renewed": float(ours.mean()),
        "deletion_renewed_map": float(theirs.mean()),
        "deletion_renewed_gain_map_low": low,
        "deletion_renewed_gain_map_high": high,
    }


def _deleted(
    head: Method,
    features: Tensor,
    words: Views,
    cells: int,
    order: Callable[[Tensor, Views], Tensor],
) -> Tensor:
    """Mean scores (B,) of sets that lose what is highest in an order of what is left of them."""
    left = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    scores = []
    for size in np.linspace(0, cells, _STEPS + 1).round().astype(int)[1:].tolist():
        seen = head.encode_image(features, left, attention=True)
        scores.append(head.score(seen, words).diagonal())
        values = order(left, seen)[:, -cells:].masked_fill(~left[:, -cells:], torch.inf)
        left[:, -cells:] = values.argsort(dim=1, descending=True).argsort(dim=1) >= size
    return torch.stack(scores).mean(dim=0)


def _curves(
    runtime: Runtime, name: str, features: Tensor, words: Views, orders: np.ndarray
) -> np.ndarray:
    """Mean scores (2, O) of sets that lose, and that gain, the highest cells (O, cells) first."""
    count = orders.shape[1]
    ranks = (-orders).argsort(axis=1, kind="stable").argsort(axis=1)  # (O, cells)
    sizes = np.linspace(0, count, _STEPS + 1).round().astype(int)
    lost = ranks[:, None] >= sizes[:-1, None]  # (O, S, cells): never all
    gained = ranks[:, None] < sizes[1:, None]
    present = np.stack([lost, gained]).reshape(-1, count)  # (2 * O * S, cells)
    mask = torch.ones(len(present), len(features), dtype=torch.bool)
    mask[:, -count:] = torch.from_numpy(present)  # a summary stays
    views = runtime.image_views(features.expand(len(present), -1, -1), name, mask=mask)
    scores = runtime.methods[name].score(views, words)[:, 0]
    found: np.ndarray = scores.cpu().numpy().reshape(2, len(orders), _STEPS).mean(axis=2)
    return found


def _interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of a mean, by bootstrap."""
    count = len(values)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_DRAWS)
    low, high = np.percentile(draws @ values / count, (2.5, 97.5))
    return float(low), float(high)


def _with_random_weights(head: Method) -> Method:
    """The same heads, untrained: every weight drawn anew as its layer begins."""
    blind = copy.deepcopy(head)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for weight in blind.parameters():
            weight.normal_(std=float(weight.std()) if weight.numel() > 1 else 1.0)
    return blind
