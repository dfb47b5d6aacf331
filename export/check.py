"""Checks that a pack preprocesses images and texts as its model expects.

Used by `python -m polyview check PACK` and by the app's collection menu.

Scores fifty images and one caption of each with the pack's preprocessing, and again with one step
changed. Wrong steps are the most common error in integrations of CLIP and SigLIP; they raise no
exception but lower retrieval accuracy.

A pair's *margin* is its score minus the mean score of its image with other captions (and of its
caption with other images), in standard deviations. A step is wrong if a variant increases the mean
margin by more than `LIMIT` standard errors.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import get_args

import numpy as np
import torch
from PIL import Image

from polyview.export.runtime import Runtime
from polyview.export.texts import load_tokenizer, pad
from polyview.models import Views
from polyview.models.preprocess import Filter, Preprocess, to_rgb

PAIRS = 50
FEWEST = 20  # minimum number of pairs; with fewer, hardly any difference is significant
LIMIT = 3.5  # standard errors; chance exceeds it in 1 of 2,000 comparisons
NORMALISATIONS = {
    "mean 0.5, std 0.5": ((0.5,) * 3, (0.5,) * 3),
    "CLIP's mean and std": ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)),
    "ImageNet's mean and std": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "pixels of 0 to 1": ((0.0,) * 3, (1.0,) * 3),
    "pixels of 0 to 255": ((0.0,) * 3, (1 / 255,) * 3),
}
_CLIP = "<|startoftext|> TEXT <|endoftext|>"
TEMPLATES = "<start> TEXT <end>", _CLIP, "[CLS] TEXT [SEP]", "TEXT </s>", "TEXT <eos>"
PADDINGS = "[PAD]", "<pad>", "</s>", "<|endoftext|>"
PROMPT = "a photo of {}"

Tokens = list[list[int]]  # ids of each text


@dataclass(frozen=True)
class Verdict:
    """The comparison of a variant of one preprocessing step with the pack's step."""

    step: str  # name of the step, such as "crop"
    right: bool  # whether the variant is not significantly better than the pack's step
    way: str  # the variant, such as "the whole image"
    gain: float  # mean gain of the pairs' margins, in standard deviations
    error: float  # standard error of `gain`; 0 if the variant changes no input


def check_preprocessing(
    runtime: Runtime, method: str, images: Sequence[Image.Image], texts: Sequence[str]
) -> list[Verdict]:
    """Checks a method's preprocessing on N images of any size and one caption of each.

    Returns the best variant of each step: wrong steps first, then by descending gain. Raises
    ValueError if the pack reads no images, or the method is unknown.
    """
    runtime.require_images()
    head = runtime.methods[method]

    def image_views(pixels: np.ndarray) -> Views:
        return runtime.image_views(runtime.pixel_features(pixels, method), method)

    def text_views(ids: Tokens) -> Views:
        words = runtime.token_features(*pad(ids), method)
        return runtime.in_batches(head.encode_text, *words, attention=False)

    def margins(image_side: Views, text_side: Views) -> np.ndarray:
        return pair_margins(head.score(image_side, text_side).double().cpu().numpy())

    with torch.inference_mode():
        tokens = [runtime.reader.read(text).ids for text in texts]
        pack_images, pack_texts = image_views(runtime.preprocess(images)), text_views(tokens)
        pack_margins, results = margins(pack_images, pack_texts), list[Verdict]()
        for step, way, pixels in _other_pixels(runtime.preprocess, images):
            changed_margins = margins(image_views(pixels), pack_texts)
            results.append(_compare(step, way, pack_margins, changed_margins))
        for step, way, changed, reference in _other_tokens(runtime, texts, tokens):
            baseline = margins(pack_images, text_views(reference)) if reference else pack_margins
            changed_margins = margins(pack_images, text_views(changed))
            results.append(_compare(step, way, baseline, changed_margins))
    steps = groupby(results, key=lambda verdict: verdict.step)
    # prefers variants that change the input (error > 0)
    best = [max(ways, key=lambda way: (way.error > 0, way.gain)) for _, ways in steps]
    return sorted(best, key=lambda verdict: (verdict.right, -verdict.gain))


def _other_pixels(
    preprocess: Preprocess, images: Sequence[Image.Image]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields step, variant and changed pixels (N, 3, S, S)."""
    for way, (mean, std) in NORMALISATIONS.items():
        yield "normalisation", way, replace(preprocess, mean=mean, std=std)(images)
    swapped = [Image.merge("RGB", to_rgb(image).split()[::-1]) for image in images]
    yield "channels", "blue, green, red", preprocess(swapped)
    crops = {
        "the central square": 0,
        "the middle 7/8 of the central square": preprocess.size * 8 // 7,
    }
    for way, resize in crops.items():
        yield "crop", way, replace(preprocess, fit="crop", resize=resize)(images)
    yield "crop", "the whole image", replace(preprocess, fit="stretch", resize=0)(images)
    for kind in get_args(Filter):
        yield "interpolation", kind, replace(preprocess, filter=kind)(images)


def _other_tokens(
    runtime: Runtime, texts: Sequence[str], tokens: Tokens
) -> Iterator[tuple[str, str, Tokens, Tokens | None]]:
    """Yields step, variant, changed tokens, and those to compare with instead of `tokens`."""
    limit = runtime.info.tokenizer.max_length
    tokenizer = load_tokenizer(runtime.info.folder / runtime.info.tokenizer.file)
    vocabulary = tokenizer.get_vocab()
    names = vocabulary.keys() & {*" ".join(TEMPLATES).split(), *PADDINGS} - {"TEXT"}
    special = {vocabulary[name] for name in names}

    def read(others: Iterable[str]) -> Tokens:
        return [runtime.reader.read(text).ids for text in others]

    step = "special tokens and padding"
    words = [[i for i in ids if i not in special] for ids in tokens]
    for template in TEMPLATES:
        start, end = (part.split() for part in template.split("TEXT"))
        if vocabulary.keys() >= {*start, *end}:
            remaining = limit - len(start + end)
            prefix, suffix = ([vocabulary[name] for name in part] for part in (start, end))
            yield step, template, [[*prefix, *ids[:remaining], *suffix] for ids in words], None
    yield step, "TEXT alone", [ids or tokens[0] for ids in words], None
    for name in sorted(vocabulary.keys() & {*PADDINGS}):
        padded = [ids + [vocabulary[name]] * (limit - len(ids)) for ids in tokens]
        yield step, f"{name} up to {limit} tokens", padded, None
    yield "prompt", PROMPT.format("TEXT"), read(map(PROMPT.format, texts)), None
    bare: Tokens = []
    for text, ids in zip(texts, tokens, strict=True):
        prefix, suffix = ([*takewhile(special.__contains__, s)] for s in (ids, ids[::-1]))
        content_ids = tokenizer.encode(text, add_special_tokens=False).ids
        bare.append([*prefix, *content_ids[: limit - len(prefix + suffix)], *suffix[::-1]])
    yield "prompt", "TEXT alone", bare, None
    yield "lower case", "lower case", read(map(str.lower, texts)), read(map(str.upper, texts))
    plain = [" ".join(re.findall(r"\w+", text)) for text in texts]
    # one comma of each text, or a comma after every word if commas are unknown
    count = 1 if vocabulary.keys() & {",", ",</w>"} else -1
    punctuated = read(f"{text.replace(' ', ', ', count)}." for text in plain)
    yield "punctuation", "none", read(plain), punctuated


def pair_margins(scores: np.ndarray) -> np.ndarray:
    """The margins (N,) of matching pairs in scores (N, N), in standard deviations.

    >>> pair_margins(np.array([[5.0, 0, 2], [0, 5, 3], [1, 4, 5]])).round(2).tolist()
    [6.5, 1.92, 3.33]
    """
    paired, others = np.diag(scores), ~np.eye(len(scores), dtype=bool)
    sides = [matrix[others].reshape(len(scores), -1) for matrix in (scores, scores.T)]
    margins = [(paired - side.mean(axis=1)) / np.maximum(side.std(axis=1), 1e-9) for side in sides]
    return np.mean(margins, axis=0)


def _compare(step: str, way: str, baseline: np.ndarray, margins: np.ndarray) -> Verdict:
    gains = margins - baseline
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / len(gains) ** 0.5)
    return Verdict(step, not gain > LIMIT * error, way, gain, error)


def choose_pairs(owners: Sequence[int], count: int = PAIRS) -> dict[int, int]:
    """Chooses at most `count` evenly spaced images; returns image -> row of its first caption.

    `owners` holds the image of each caption, ascending. Raises ValueError if fewer than `FEWEST`
    images have captions.
    """
    first_captions = {image: row for row, image in reversed([*enumerate(owners)])}
    images = sorted(first_captions)
    if len(images) < FEWEST:
        raise ValueError(f"a check needs {FEWEST} images with captions, not {len(images)}")
    positions = np.unique(np.linspace(0, len(images) - 1, count).astype(int))
    return {images[position]: first_captions[images[position]] for position in positions}
