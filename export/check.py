"""Checks that a pack preprocesses images and texts as its model expects (`polyview check PACK`).

Wrong preprocessing raises no exception; it only lowers retrieval accuracy. The check scores images
and one caption of each with the pack's preprocessing, and again with one step changed.

The *margin* of an image and its caption states how far their score exceeds those of wrong pairs. It
is the score minus the mean score of the image with the other captions, divided by the standard
deviation of those scores. The same number is computed for the caption and the other images, and the
two are averaged. A step is wrong if a variant of the step increases the mean margin by more than
`LIMIT` standard errors.
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

COUNT = 50  # default number of images, each with one caption
MIN_PAIRS = 20  # minimum number of pairs; with fewer, hardly any difference is significant
LIMIT = 3.5  # standard errors; chance alone exceeds this limit in 1 of 2,000 comparisons
NORMALISATIONS = {  # name -> mean and standard deviation of red, green and blue
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

Tokens = list[list[int]]  # token ids of each text


@dataclass(frozen=True)
class Verdict:
    """The comparison of a variant of one preprocessing step with the pack's step."""

    step: str  # name of the step, such as "crop"
    right: bool  # False if the variant is significantly better than the pack's step
    way: str  # the variant, such as "the whole image"; a field of the API
    gain: float  # mean increase of the margins, in standard deviations
    error: float  # standard error of `gain`; 0 if the variant does not change the scores


def check_preprocessing(
    runtime: Runtime, method: str, images: Sequence[Image.Image], texts: Sequence[str]
) -> list[Verdict]:
    """Checks a method's preprocessing on N images of any size and one caption of each.

    Returns a verdict on the best variant of each step. Wrong steps come first, and larger gains
    before smaller ones. Raises ValueError if the pack reads no images, or the method is unknown.
    """
    runtime.require_images()
    head = runtime.methods[method]

    def image_views(pixels: np.ndarray) -> Views:
        return runtime.image_views(runtime.pixel_features(pixels, method), method)

    def text_views(ids: Tokens) -> Views:
        features, mask = runtime.token_features(*pad(ids), method)
        return runtime.encode_batches(head.encode_text, features, mask, attention=False)

    def margins(image_side: Views, text_side: Views) -> np.ndarray:
        return pair_margins(head.score(image_side, text_side).double().cpu().numpy())

    with torch.inference_mode():
        tokens = [runtime.reader.read(text).ids for text in texts]
        pack_images, pack_texts = image_views(runtime.preprocess(images)), text_views(tokens)
        pack_margins, verdicts = margins(pack_images, pack_texts), list[Verdict]()
        for step, variant, pixels in _pixel_variants(runtime.preprocess, images):
            changed_margins = margins(image_views(pixels), pack_texts)
            verdicts.append(_compare(step, variant, pack_margins, changed_margins))
        for step, variant, ids, reference_ids in _token_variants(runtime, texts, tokens):
            reference = text_views(reference_ids) if reference_ids else pack_texts
            baseline = margins(pack_images, reference)
            changed_margins = margins(pack_images, text_views(ids))
            verdicts.append(_compare(step, variant, baseline, changed_margins))
    steps = groupby(verdicts, key=lambda verdict: verdict.step)
    # a variant with error 0 equals the pack's step; any other variant is preferred
    best = [max(group, key=lambda verdict: (verdict.error > 0, verdict.gain)) for _, group in steps]
    return sorted(best, key=lambda verdict: (verdict.right, -verdict.gain))


def _pixel_variants(
    preprocess: Preprocess, images: Sequence[Image.Image]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Preprocesses N images with each variant; yields step, variant and pixels (N, 3, S, S)."""
    for variant, (mean, std) in NORMALISATIONS.items():
        yield "normalisation", variant, replace(preprocess, mean=mean, std=std)(images)
    bgr_images = [Image.merge("RGB", to_rgb(image).split()[::-1]) for image in images]
    yield "channels", "blue, green, red", preprocess(bgr_images)
    central_crop = replace(preprocess, fit="crop", resize=0)
    yield "crop", "the central square", central_crop(images)
    middle_crop = replace(central_crop, resize=preprocess.size * 8 // 7)
    yield "crop", "the middle 7/8 of the central square", middle_crop(images)
    yield "crop", "the whole image", replace(preprocess, fit="stretch", resize=0)(images)
    for resampling in get_args(Filter):
        yield "interpolation", resampling, replace(preprocess, filter=resampling)(images)


def _token_variants(
    runtime: Runtime, texts: Sequence[str], tokens: Tokens
) -> Iterator[tuple[str, str, Tokens, Tokens | None]]:
    """Yields step, variant, its tokens, and the baseline's tokens; None stands for `tokens`."""
    max_length = runtime.info.tokenizer.max_length
    tokenizer = load_tokenizer(runtime.info.folder / runtime.info.tokenizer.file)
    vocabulary = tokenizer.get_vocab()
    names = vocabulary.keys() & {*" ".join(TEMPLATES).split(), *PADDINGS} - {"TEXT"}
    special_ids = {vocabulary[name] for name in names}

    def read(changed_texts: Iterable[str]) -> Tokens:
        return [runtime.reader.read(text).ids for text in changed_texts]

    step = "special tokens and padding"
    word_ids = [[i for i in ids if i not in special_ids] for ids in tokens]
    for template in TEMPLATES:
        start, end = (marks.split() for marks in template.split("TEXT"))
        if vocabulary.keys() >= {*start, *end}:
            max_words = max_length - len(start + end)
            prefix, suffix = ([vocabulary[name] for name in marks] for marks in (start, end))
            yield step, template, [[*prefix, *ids[:max_words], *suffix] for ids in word_ids], None
    # the encoder needs at least one token, so a text of only special tokens keeps them
    without_special = [words or ids for words, ids in zip(word_ids, tokens, strict=True)]
    yield step, "TEXT alone", without_special, None
    for name in sorted(vocabulary.keys() & {*PADDINGS}):
        padded = [ids + [vocabulary[name]] * (max_length - len(ids)) for ids in tokens]
        yield step, f"{name} up to {max_length} tokens", padded, None
    yield "prompt", PROMPT.format("TEXT"), read(map(PROMPT.format, texts)), None
    without_prompt: Tokens = []
    for text, ids in zip(texts, tokens, strict=True):
        # the special tokens at the start and, in reverse order, at the end
        prefix, suffix = ([*takewhile(special_ids.__contains__, i)] for i in (ids, ids[::-1]))
        max_words = max_length - len(prefix + suffix)
        content = tokenizer.encode(text, add_special_tokens=False).ids[:max_words]
        without_prompt.append([*prefix, *content, *suffix[::-1]])
    yield "prompt", "TEXT alone", without_prompt, None
    # compares with upper case, because many captions are already lower-case
    yield "lower case", "lower case", read(map(str.lower, texts)), read(map(str.upper, texts))
    unpunctuated = [" ".join(re.findall(r"\w+", text)) for text in texts]
    # one comma in each text, or a comma after every word if the vocabulary has no comma
    comma_count = 1 if vocabulary.keys() & {",", ",</w>"} else -1
    punctuated = read(f"{text.replace(' ', ', ', comma_count)}." for text in unpunctuated)
    yield "punctuation", "none", read(unpunctuated), punctuated


def pair_margins(scores: np.ndarray) -> np.ndarray:
    """Returns the margins (N,) of the pairs on the diagonal of scores (N, N).

    >>> pair_margins(np.array([[5.0, 0, 2], [0, 5, 3], [1, 4, 5]])).round(2).tolist()
    [6.5, 1.92, 3.33]
    """
    paired, is_wrong_pair = np.diag(scores), ~np.eye(len(scores), dtype=bool)
    others = [matrix[is_wrong_pair].reshape(len(scores), -1) for matrix in (scores, scores.T)]
    margins = [(paired - side.mean(axis=1)) / np.maximum(side.std(axis=1), 1e-9) for side in others]
    return np.mean(margins, axis=0)


def _compare(step: str, variant: str, baseline: np.ndarray, margins: np.ndarray) -> Verdict:
    """Compares the margins (N,) of a variant with the margins (N,) of its baseline."""
    gains = margins - baseline
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / len(gains) ** 0.5)
    return Verdict(step, not gain > LIMIT * error, variant, gain, error)


def choose_pairs(caption_images: Sequence[int], count: int = COUNT) -> dict[int, int]:
    """Chooses at most `count` evenly spaced images; returns image -> index of its first caption.

    `caption_images` lists the image of each caption. Raises ValueError if `count` or the number of
    images with captions is below `MIN_PAIRS`.
    """
    first_captions = {image: caption for caption, image in reversed([*enumerate(caption_images)])}
    images = sorted(first_captions)
    if (available := min(len(images), count)) < MIN_PAIRS:
        raise ValueError(f"a check needs {MIN_PAIRS} images with captions, not {available}")
    positions = np.unique(np.linspace(0, len(images) - 1, count).astype(int))
    return {images[position]: first_captions[images[position]] for position in positions}
