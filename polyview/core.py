"""The functions of the library: `load`, `register`, and the methods of `Model`.

Shape letters are those of `polyview.models.views`: B items, V views of width D, N elements of
an image (grid cells, patches, regions), M words of a text, d the width of a feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

import polyview.models
from polyview.export.hub.packs import resolve
from polyview.export.pack.schema import MANIFEST
from polyview.export.runtime import Runtime
from polyview.export.sessions import Device
from polyview.models import METHODS, Method, Views
from polyview.models.evidence import Evidence

ImageLike = str | Path | Image.Image
Encoded = Views | Tensor | np.ndarray  # embeddings (B, V, D)

_BATCH = 64  # images decoded at once
_LONG = 512  # minimum number of images for a progress bar on a terminal


def bundled() -> Path:
    """The folder of the bundled packs."""
    return Path(polyview.models.__path__[0]).with_name("app") / "bundled"


def load(pack: str | Path, method: str | None = None, *, device: Device = "auto") -> Model:
    """Loads one method of a pack.

    Args:
        pack: a bundled name ("scenes"), a pack's folder, or a Hub id (`owner/name[@revision]`),
            which is fetched once.
        method: name of the method in the pack; None for the best method.
        device: "cpu", "cuda", or "auto" for CUDA if available.

    Raises:
        FileNotFoundError: the pack does not exist.
        ValueError: the pack is damaged, has no such method, or the device cannot be used.
    """
    folder = bundled() / str(pack)
    if not (folder / MANIFEST).is_file():
        folder = resolve(str(pack))
    return Model(Runtime.load(folder, device), method)


def register(name: str, method: type[Method], objective: type[Any] | None = None) -> None:
    """Registers your own method for packs, recipes and commands in this process.

    Args:
        name: name of the method in recipes and packs.
        method: a subclass of `polyview.models.Method`.
        objective: its loss, a subclass of `polyview.training.objectives.Objective`; without a loss,
            the method can be loaded but not trained.

    Raises:
        TypeError: `method` is not a subclass of `Method`.
        ValueError: the name belongs to another class.
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"register takes a subclass of polyview.models.Method, not {method!r}")
    if METHODS.setdefault(name, method) is not method:
        raise ValueError(f'the name "{name}" belongs to {METHODS[name].__name__}; choose another')
    if objective is not None:
        from polyview.training.objectives import OBJECTIVES

        OBJECTIVES[name] = objective


class Model:
    """One method of a pack: encoders, heads and score; thread-safe.

    Attributes:
        name: the method's name in the pack.
        method: its heads and score, a `torch.nn.Module` in eval mode.
        runtime: the pack: encoders, tokenizer, `grid` of cells, `device`.
    """

    def __init__(self, runtime: Runtime, method: str | None = None) -> None:
        self.name = runtime.methods.best if method is None else method
        self.method = runtime.methods.require_single(self.name)
        self.runtime = runtime

    def encode_images(
        self,
        images: ImageLike | Sequence[ImageLike] | np.ndarray | Tensor,
        mask: np.ndarray | Tensor | None = None,
        *,
        features: bool = True,
    ) -> Views:
        """Encodes images into views; shows a progress bar for long lists on a terminal.

        Args:
            images: a path, a PIL image, or a list of them; or features (B, N, d) of another encoder
                with the width d used in training.
            mask: (B, N) bool for features, False on padding; None without padding.
            features: keep features and mask in `extras`, for `evidence`. False saves memory.

        Returns:
            Views with embeddings (B, V, D) and attention (B, V, N).

        Raises:
            TypeError: an item is not an image or path.
            ValueError: there is no image, a file is not readable, or the features have another
                width.
            FileNotFoundError: a file is missing.
        """
        if isinstance(images, np.ndarray | Tensor):
            sets = torch.as_tensor(images, dtype=torch.float32)
            real = None if mask is None else torch.as_tensor(mask, dtype=torch.bool)
            views = self.runtime.image_views(sets, self.name, attention=True, mask=real)
            return _with_features(views, sets, real) if features else views
        items = _as_list(images, (str, Image.Image))
        for item in items:
            if not isinstance(item, str | Path | Image.Image):
                raise TypeError(f"an image is a path or a PIL image, not {_kind(item)}")
            if not isinstance(item, Image.Image) and not Path(item).is_file():
                raise FileNotFoundError(f"there is no image file {item}; check the path")
        if not items:
            raise ValueError("there is no image to encode; pass at least one")
        batches, hidden = [], True if len(items) < _LONG else None  # None: shown on a terminal
        for start in tqdm(range(0, len(items), _BATCH), "images", disable=hidden):
            decoded = [_open_image(item) for item in items[start : start + _BATCH]]
            sets = self.runtime.image_features(decoded, self.name)
            views = self.runtime.image_views(sets, self.name, attention=True)
            batches.append(_with_features(views, sets, None) if features else views)
        maps = [batch.attention for batch in batches if batch.attention is not None]
        extras = {key: torch.cat([b.extras[key] for b in batches]) for key in batches[0].extras}
        return Views(torch.cat([b.embeddings for b in batches]), torch.cat(maps), extras)

    def encode_texts(self, texts: str | Sequence[str]) -> Views:
        """Encodes texts into views; a single string is one text.

        Returns:
            Views with embeddings (B, V, D) and attention (B, V, M); the longest text has M words.

        Raises:
            TypeError: an item is not a string.
            ValueError: there is no text, or a text is empty.
        """
        items = _as_list(texts, str)
        for row, text in enumerate(items):
            if not isinstance(text, str):
                raise TypeError(f"a text is a string, not {_kind(text)}")
            if not text.strip():
                raise ValueError(f"text {row + 1} of {len(items)} is empty; it needs a word")
        sets, mask = self.runtime.text_features(items, self.name)
        with torch.no_grad():
            views = self.runtime.in_batches(self.method.encode_text, sets, mask, attention=True)
        return _with_features(views, sets, mask)

    def words(self, text: str) -> list[str]:
        """The M tokens of a text that the encoder reads, the last axis of evidence."""
        return self.runtime.tokenize(text).words

    @torch.no_grad()
    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """The method's scores (B_img, B_txt), higher is better.

        Raises:
            ValueError: the number or width of the views is wrong.
        """
        return self.method.score(*self._pair(images, texts))

    @torch.no_grad()
    def view_scores(self, images: Encoded, texts: Encoded) -> Tensor:
        """The scores (V, B_img, B_txt) of each view of the images; see `similarity`."""
        return self.method.view_scores(*self._pair(images, texts))

    def attention(self, images: Views) -> Tensor:
        """The attention of each view: (B, V, rows, columns) on the encoder's grid, else (B, V, N).

        Raises:
            ValueError: the views have no attention.
        """
        if images.attention is None:
            raise ValueError("these views have no attention; use views from encode_images")
        rows, columns = self.runtime.grid
        on_grid = images.attention.shape[-1] == len(self.runtime.boxes) and rows * columns > 0
        return self.runtime.on_grid(images.attention) if on_grid else images.attention

    @torch.no_grad()
    def evidence(self, images: Views, texts: Views) -> Evidence:
        """Splits the scores of B pairs exactly over image elements and words.

        Args:
            images: B images from `encode_images`.
            texts: B texts from `encode_texts`, or one for all images.

        Returns:
            Evidence with cells (B, N, M), whole_sentence (B, N) and base (B,), whose sum is the
            score.

        Raises:
            ValueError: the views have no features, the numbers of images and texts differ, or the
                method's score cannot be split.
        """
        if len(texts) not in (1, len(images)):
            raise ValueError(
                f"evidence takes as many texts as images, or one; not {len(texts)} texts for "
                f"{len(images)} images"
            )
        for views, maker in ((images, "encode_images"), (texts, "encode_texts")):
            if "features" not in views.extras:
                raise ValueError(f"these views have no features; use views from {maker}")
        image, text = (views.extras for views in self._pair(images, texts))
        image_parts = self.method.image_parts(image["features"], image["mask"])
        text_parts = self.method.text_parts(text["features"], text["mask"])
        return self.method.evidence(image_parts, text_parts)

    def _pair(self, images: Encoded, texts: Encoded) -> list[Views]:
        pair = [
            side if isinstance(side, Views) else Views(torch.as_tensor(side, dtype=torch.float32))
            for side in (images, texts)
        ]
        image_dim, text_dim = (views.embeddings.shape[2] for views in pair)
        if image_dim != text_dim:
            raise ValueError(
                f"image views have {image_dim} dimensions and text views {text_dim}; encode both "
                "with the same model"
            )
        return [views.to(self.runtime.device) for views in pair]


def _with_features(views: Views, features: Tensor, mask: Tensor | None) -> Views:
    """Adds the features (B, N, d) and mask (B, N) to the views."""
    mask = torch.ones(features.shape[:2], dtype=torch.bool) if mask is None else mask
    extras = {"features": features, "mask": mask}
    return Views(views.embeddings, views.attention, extras).to(views.embeddings.device)


def _open_image(item: ImageLike) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    try:
        with Image.open(item) as image:
            image.load()
            return image
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{item} cannot be read as an image: {error}") from error


def _as_list(values: Any, single: type | tuple[type, ...]) -> list[Any]:
    """Converts an iterable to a list; wraps a `single` type or another value in a list."""
    is_list = isinstance(values, Iterable) and not isinstance(values, single)
    return list(values) if is_list else [values]


def _kind(item: object) -> str:
    return f"{type(item).__name__} {item!r:.60}"
