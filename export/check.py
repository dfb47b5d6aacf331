"""Checks that a pack preprocesses images and texts as its model expects.

Used by `python -m polyview check PACK` and by the app's collection menu.

Fifty images and a caption of each are ranked among themselves as the pack reads them, and again
with one step changed. Such steps are what integrations of CLIP and SigLIP get wrong most often, and
such errors raise no exception: they only lower retrieval accuracy.

A pair's *margin* is how far its score lies above those of its image with other captions and of its
caption with other images, in their standard deviations. A step is wrong if another way gives the
same pairs higher margins: by more than `LIMIT` standard errors of the mean difference.
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
from polyview.models.preprocess import Filter, to_rgb

PAIRS = 50
FEWEST = 20  # pairs; among fewer hardly any difference is certain
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
    """What another way of one step of reading gains.

    Attributes:
        step: such as "crop".
        right: whether this way is not certainly better than what the pack does.
        way: what was done instead.
        gain: mean gain of the pairs' margins, in standard deviations.
        error: its standard error; 0 if this way reads every pair as the pack does.
    """

    step: str
    right: bool
    way: str
    gain: float
    error: float


class PackCheck:
    """A pack's method with N images of any size and the caption of each."""

    def __init__(
        self, runtime: Runtime, method: str, images: Sequence[Image.Image], texts: Sequence[str]
    ) -> None:
        runtime.require_images()
        self.runtime, self.method, self.images, self.texts = runtime, method, images, texts
        self.limit = runtime.info.tokenizer.max_length
        self.tokenizer = load_tokenizer(runtime.info.path(runtime.info.tokenizer.file))
        self.vocabulary = self.tokenizer.get_vocab()
        names = self.vocabulary.keys() & {*" ".join(TEMPLATES).split(), *PADDINGS} - {"TEXT"}
        self.marks = {self.vocabulary[name] for name in names}

    def verdicts(self) -> list[Verdict]:
        """The best other way of each step: those of wrong steps first, then by falling gain."""
        read = [self.runtime.tokenize(text).ids for text in self.texts]
        images = self._image_views(self.runtime.preprocess(self.images))
        texts = self._text_views(read)
        own, compared = self._margins(images, texts), list[Verdict]()
        for step, way, pixels in self._other_pixels():
            margins = self._margins(self._image_views(pixels), texts)
            compared.append(_compare(step, way, own, margins))
        for step, way, typed, other in self._other_tokens(read):
            before = own if typed is read else self._margins(images, self._text_views(typed))
            margins = self._margins(images, self._text_views(other))
            compared.append(_compare(step, way, before, margins))
        steps = groupby(compared, key=lambda verdict: verdict.step)
        # an error of 0: the same input
        best = [max(ways, key=lambda way: (way.error > 0, way.gain)) for _, ways in steps]
        return sorted(best, key=lambda verdict: (verdict.right, -verdict.gain))

    def _image_views(self, pixels: np.ndarray) -> Views:
        """Views of pixels (N, 3, S, S)."""
        features = self.runtime.pixel_features(pixels, self.method)
        return self.runtime.image_views(features, self.method)

    @torch.inference_mode()
    def _text_views(self, tokens: Tokens) -> Views:
        words = self.runtime.token_features(*pad(tokens), self.method)
        encode = self.runtime.methods[self.method].encode_text
        return self.runtime.in_batches(encode, *words, False)

    @torch.inference_mode()
    def _margins(self, images: Views, texts: Views) -> np.ndarray:
        scores = self.runtime.methods[self.method].score(images, texts)
        return pair_margins(scores.double().cpu().numpy())

    def _other_pixels(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Step, way and pixels (N, 3, S, S) of each variant of the images."""
        own = self.runtime.preprocess
        for way, (mean, std) in NORMALISATIONS.items():
            yield "normalisation", way, replace(own, mean=mean, std=std)(self.images)
        turned = [Image.merge("RGB", to_rgb(image).split()[::-1]) for image in self.images]
        yield "channels", "blue, green, red", own(turned)
        for name, resize in (("the central square", 0), ("its middle 7/8", own.size * 8 // 7)):
            yield "crop", name, replace(own, fit="crop", resize=resize)(self.images)
        yield "crop", "the whole image", replace(own, fit="stretch", resize=0)(self.images)
        for kind in get_args(Filter):
            yield "interpolation", kind, replace(own, filter=kind)(self.images)

    def _other_tokens(self, own: Tokens) -> Iterator[tuple[str, str, Tokens, Tokens]]:
        """Step, way, the pack's tokens and other ones, of each variant of the texts."""
        texts, limit, known, marks = self.texts, self.limit, self.vocabulary, self.marks

        def read(others: Iterable[str]) -> Tokens:
            return [self.runtime.tokenize(text).ids for text in others]

        words = [[i for i in ids if i not in marks] for ids in own]
        for template in TEMPLATES:
            start, end = (part.split() for part in template.split("TEXT"))
            if known.keys() >= {*start, *end}:
                room = limit - len(start + end)
                before, behind = ([known[mark] for mark in part] for part in (start, end))
                other = [[*before, *ids[:room], *behind] for ids in words]
                yield "marks and padding", template, own, other
        yield "marks and padding", "TEXT alone", own, [ids or own[0] for ids in words]
        for name in sorted(known.keys() & set(PADDINGS)):
            other = [ids + [known[name]] * (limit - len(ids)) for ids in own]
            yield "marks and padding", f"{name} up to {limit} tokens", own, other
        yield "prompt", PROMPT.format("TEXT"), own, read(map(PROMPT.format, texts))
        bare: Tokens = []
        for text, ids in zip(texts, own, strict=True):
            before, behind = ([*takewhile(marks.__contains__, s)] for s in (ids, ids[::-1]))
            words_alone = self.tokenizer.encode(text, add_special_tokens=False).ids
            bare.append([*before, *words_alone[: limit - len(before + behind)], *behind[::-1]])
        yield "prompt", "TEXT alone", own, bare
        yield "lower case", "lower case", read(map(str.upper, texts)), read(map(str.lower, texts))
        plain = [" ".join(re.findall(r"\w+", text)) for text in texts]
        commas = 1 if known.keys() & {",", ",</w>"} else -1  # everywhere if they would be unknown
        typed = read(f"{text.replace(' ', ', ', commas)}." for text in plain)
        yield "punctuation", "none", typed, read(plain)


def pair_margins(scores: np.ndarray) -> np.ndarray:
    """The margins (N,) of matching pairs in scores (N, N), in standard deviations.

    >>> pair_margins(np.array([[5.0, 0, 2], [0, 5, 3], [1, 4, 5]])).round(2).tolist()
    [6.5, 1.92, 3.33]
    """
    own, others = np.diag(scores), ~np.eye(len(scores), dtype=bool)
    sides = [matrix[others].reshape(len(scores), -1) for matrix in (scores, scores.T)]
    above = [(own - side.mean(axis=1)) / np.maximum(side.std(axis=1), 1e-9) for side in sides]
    return np.mean(above, axis=0)


def _compare(step: str, way: str, before: np.ndarray, after: np.ndarray) -> Verdict:
    gains = after - before
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / len(gains) ** 0.5)
    return Verdict(step, not gain > LIMIT * error, way, gain, error)


def choose_pairs(owners: Sequence[int], count: int = PAIRS) -> dict[int, int]:
    """Images at equal distances in a collection, and the first caption of each.

    Args:
        owners: the image of each caption, ascending.
        count: the highest number of pairs.

    Raises:
        ValueError: fewer than `FEWEST` images have captions.
    """
    first = {image: row for row, image in reversed([*enumerate(owners)])}
    images = sorted(first)
    if len(images) < FEWEST:
        raise ValueError(
            f"a check needs {FEWEST} images with captions, and these have {len(images)}"
        )
    places = np.unique(np.linspace(0, len(images) - 1, count).astype(int))
    return {images[place]: first[images[place]] for place in places}
