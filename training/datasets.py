"""Captioned features and the batches made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from models.preprocess import Preprocess
from training.features import Extraction, cached_features, has_summary, photograph_features
from training.karpathy import karpathy_file, load_karpathy
from training.pictures import PictureArrays, PictureFiles, Pixels
from training.precomputed import is_precomputed, load_precomputed
from training.scenes.store import load_scenes
from training.scenes.world import Scene
from training.tokenizer import PAD_ID, UNKNOWN_ID


@dataclass(frozen=True)
class Batch:
    """B image-text pairs of I images, I <= B.

    Attributes:
        features: (I, N, d) float32 image features, or pixels (I, 3, S, S).
        mask: (I, N) bool; N is 0 for pixels, as only their encoder knows it.
        rows: (B,) int64, which of the I images a pair has.
        ids: (B, L) int64 word ids, 0 beyond the text.
        lengths: (B,) int64.
        image_ids: (B,) int64, equal where the batch holds an image twice.
    """

    features: Tensor
    mask: Tensor
    rows: Tensor
    ids: Tensor
    lengths: Tensor
    image_ids: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


class Copies:
    """Features of images, and of other looks at the same images; by index, those of the first.

    Args:
        parts: (N, n, d) each.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = parts
        self.shape = parts[0].shape

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        found: np.ndarray = self.parts[0][rows]
        return found

    def drawn(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """A random look (B, n, d) at each of some images (B,)."""
        looks = random.integers(len(self.parts), size=len(rows))
        return np.stack([self.parts[look][row] for look, row in zip(looks, rows, strict=True)])


@dataclass(frozen=True)
class CaptionedFeatures:
    """A split ready for training: features, captions, and which image each caption describes.

    Attributes:
        features: (N_img, n, d) float, often float16 and memory-mapped; or pictures, for an image
            encoder that is trained along. `Copies` show another look in every batch.
        captions: N_txt texts.
        image_of: (N_txt,) int64 row of each caption's image; given, never inferred.
        summary_token: the first of an image's n features sums up the others ([CLS]).
        boxes: (N_img, n, 4) places of the features in relative xyxy, where they differ from image
            to image.
    """

    features: np.ndarray | Pixels | Copies
    captions: list[str]
    image_of: np.ndarray
    summary_token: bool = False
    boxes: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Refuses features that disagree with the captions."""
        if len(self.captions) != len(self.image_of):
            raise ValueError(f"{len(self.captions)} captions, but {len(self.image_of)} image rows")
        if len(self.image_of) == 0 or self.image_of.max() >= len(self.features):
            raise ValueError(
                f"captions name image {self.image_of.max(initial=-1)}, "
                f"but there are features of {len(self.features)} images"
            )


def load_split(
    data: Path,
    split: str,
    backbone: str | Path,
    limit: int = 0,
    extraction: Extraction | None = None,
    copies: int = 1,
) -> CaptionedFeatures:
    """Captions of a split with the features of a frozen image encoder.

    Args:
        data: folder that holds the split: rendered scenes, photographs with captions
            (`training/karpathy.py`), or captions with ready-made features
            (`training/precomputed.py`).
        split: "train", "val" or "test".
        backbone: source of the image encoder, see `models/sources.py`; not read where the features
            are ready-made.
        limit: use only the first so many images; 0 for all.
        extraction: how features are made, and where those of photographs are kept.
        copies: how many looks at each photograph there are, the photograph itself among them.

    Raises:
        FileNotFoundError: the folder holds no such split.
        ValueError: what it holds does not fit together.
    """
    photographs = not is_precomputed(data) and karpathy_file(data) is not None
    if copies > 1 and not photographs:
        raise ValueError(
            f"feature_copies={copies} crops photographs, and {data} holds none; leave it at 1"
        )
    if is_precomputed(data):
        ready = load_precomputed(data, split, limit)
        return CaptionedFeatures(ready.features, ready.captions, ready.image_of, boxes=ready.boxes)
    if photographs:
        return _load_photographs(data, split, backbone, limit, extraction, copies)
    if not (data / split).is_dir():
        raise FileNotFoundError(
            f'{data} holds neither a rendered split "{split}" (python -m training.scenes makes it) '
            "nor ready-made features (train_ims.npy and so on, see training/precomputed.py) "
            "nor photographs (dataset_flickr8k.json and images/, see training/karpathy.py)"
        )
    captions, rows = _scene_captions(load_scenes(data / split).scenes[: limit or None])
    features = cached_features(data / split, backbone, extraction)[: limit or None]
    return CaptionedFeatures(features, captions, rows, has_summary(backbone))


def load_pictures(
    data: Path, split: str, preprocess: Preprocess, summary_token: bool, limit: int = 0
) -> CaptionedFeatures:
    """Captions of a split with its pictures, for an image encoder that is trained along.

    Args:
        data: folder of rendered scenes or of photographs, see `load_split`.
        split: "train", "val" or "test".
        preprocess: the image encoder's.
        summary_token: whether the encoder's features begin with a summary.
        limit: use only the first so many images; 0 for all.

    Raises:
        FileNotFoundError: the folder holds no such split.
        ValueError: it holds features, no pictures.
    """
    if is_precomputed(data):
        raise ValueError(
            f"{data} holds ready-made features, with which no image encoder can be trained; set "
            "backbone_frozen=true, or name a folder with pictures"
        )
    pictures: Sequence[Image.Image]
    if karpathy_file(data) is not None:
        photographs = load_karpathy(data, split, limit)
        pictures = PictureFiles(photographs.paths)
        captions, rows = photographs.captions, photographs.image_of
    else:
        scenes = load_scenes(data / split)
        pictures = PictureArrays(scenes.images[: limit or None])
        captions, rows = _scene_captions(scenes.scenes[: limit or None])
    return CaptionedFeatures(Pixels(pictures, preprocess), captions, rows, summary_token)


def _scene_captions(scenes: Sequence[Scene]) -> tuple[list[str], np.ndarray]:
    """All captions, and (N_txt,) which scene each describes."""
    captions = [caption.text for scene in scenes for caption in scene.captions]
    counts = [len(scene.captions) for scene in scenes]
    return captions, np.repeat(np.arange(len(scenes)), counts)


def _load_photographs(
    data: Path,
    split: str,
    backbone: str | Path,
    limit: int,
    extraction: Extraction | None,
    copies: int,
) -> CaptionedFeatures:
    whole = load_karpathy(data, split)
    name = f"{data.resolve().name}/{split}"
    features, photographs, _ = photograph_features(whole, name, backbone, extraction)
    others = [
        photograph_features(whole, name, backbone, extraction, copy)[0] for copy in range(1, copies)
    ]
    used = min(limit or len(photographs), len(photographs))
    texts = int(np.searchsorted(photographs.image_of, used))
    looks = Copies([part[:used] for part in (features, *others)]) if others else features[:used]
    return CaptionedFeatures(
        looks,
        photographs.captions[:texts],
        photographs.image_of[:texts],
        has_summary(backbone),
    )


class Table(Protocol):
    """All captions of a split as numbers for an encoder to read, 0 beyond each text.

    Attributes:
        lengths: (N_txt,) how many numbers each caption has.
    """

    lengths: np.ndarray

    def rows(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (B, longest) and lengths (B,) of some captions."""


class TokenTable:
    """All captions of a split as word ids, padded once.

    Args:
        tokenizer: without padding or truncation of its own.
        captions: texts; each must hold at least one word.
    """

    def __init__(self, tokenizer: Tokenizer, captions: list[str]) -> None:
        encoded = [e.ids for e in tokenizer.encode_batch(captions)]
        self.lengths = np.array([len(ids) for ids in encoded])
        if not self.lengths.all():
            empty = captions[int(np.argmin(self.lengths))]
            raise ValueError(f'the caption "{empty}" holds no word')
        self.ids = np.full((len(encoded), self.lengths.max()), PAD_ID, np.int64)
        for row, ids in zip(self.ids, encoded, strict=True):
            row[: len(ids)] = ids

    def rows(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (B, longest) and lengths (B,) of some captions."""
        lengths = self.lengths[index]
        return self.ids[index, : lengths.max()], lengths


def batches(
    data: CaptionedFeatures,
    table: Table,
    batch_size: int,
    seed: tuple[int, int],
    unknown_rate: float = 0.0,
    share: tuple[int, int] = (0, 1),
    together: int = 1,
) -> Iterator[Batch]:
    """Shuffled batches over all captions, the incomplete last one left out.

    Args:
        data: the split.
        table: its tokenized captions.
        batch_size: B.
        seed: (run seed, epoch); the order depends on nothing else, so that a resumed run sees it
            again.
        unknown_rate: share of words replaced by [UNK].
        share: (rank, processes): of each batch only this process's consecutive part; B must divide
            evenly.
        together: so many captions of an image, drawn anew each time, stand in a batch, where the
            image is encoded once for all of them; with 1 each pair has its own image.
    """
    rank, world = share
    part = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
    random = np.random.default_rng(seed)
    order = caption_order(data.image_of, together, random)
    for start in range(0, len(order) - batch_size + 1, batch_size):
        index = order[start : start + batch_size]
        ids, lengths = table.rows(index)
        if unknown_rate:
            lost = (random.random(ids.shape) < unknown_rate) & (ids != PAD_ID)
            ids = np.where(lost, UNKNOWN_ID, ids)
        images = data.image_of[index][part]
        unique, rows = np.unique(images, return_inverse=True)
        if together == 1:
            unique, rows = images, np.arange(len(images))
        if isinstance(data.features, Copies):
            found = data.features.drawn(unique, random)
        else:
            found = data.features[unique]
        features = torch.from_numpy(found).float()  # (I, n, d) or (I, 3, S, S)
        elements = features.shape[1] if features.dim() == 3 else 0
        yield Batch(
            features,
            torch.ones(len(features), elements, dtype=torch.bool),
            torch.from_numpy(rows),
            torch.from_numpy(ids[part]),
            torch.from_numpy(lengths[part].astype(np.int64)),
            torch.from_numpy(images),
        )


def caption_order(image_of: np.ndarray, together: int, random: np.random.Generator) -> np.ndarray:
    """All captions in random order, but up to `together` of an image one after the other.

    >>> order = caption_order(np.array([0, 0, 1, 1]), 2, np.random.default_rng(0))
    >>> sorted(order[:2].tolist()) in ([0, 1], [2, 3])
    True
    """
    order = random.permutation(len(image_of))
    if together == 1:
        return order
    order = order[np.argsort(image_of[order], kind="stable")]  # by image, mixed within each
    owner = image_of[order]
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])  # where an image begins
    counts = np.diff(np.r_[first, len(order)])
    within = np.arange(len(order)) - np.repeat(first, counts)
    starts = np.flatnonzero(within % together == 0)
    groups = np.split(order, starts[1:])
    return np.concatenate([groups[g] for g in random.permutation(len(groups))])


def ahead(stream: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, the next of them made in a thread while one is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, stream, None)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(next, stream, None)
            yield batch
