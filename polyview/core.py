"""The Python API: `load`, `bundled`, `register` and `Model`.

Shape letters are those of `polyview.models.views`: B items, V views of width D, N elements of
an image (grid cells, patches, regions), M words of a text, d the width of a feature.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import polyview.models
from polyview.export.hub.packs import resolve
from polyview.export.pack.schema import MANIFEST
from polyview.export.runtime import Runtime
from polyview.export.sessions import Device
from polyview.models import METHODS, Method, Views
from polyview.models.evidence import Evidence

ImageLike = str | os.PathLike[str] | Image.Image
_BATCH = 64  # maximum number of decoded images in memory


def bundled() -> Path:
    """Returns the folder of the bundled packs."""
    return Path(polyview.models.__path__[0]).with_name("app") / "bundled"


def load(pack: str | Path, method: str | None = None, *, device: Device = "auto") -> Model:
    """Loads one method of a pack, by default the best one.

    `pack` is a bundled name ("scenes"), a pack's folder, or a Hub id (`owner/name[@revision]`),
    which is downloaded once. `device` is "cpu", "cuda", or "auto" for CUDA if available. Raises
    FileNotFoundError if the pack does not exist, ValueError if the pack is damaged, cannot be
    downloaded, lacks the method, or cannot run on the device.
    """
    folder = bundled() / str(pack)
    if not (folder / MANIFEST).is_file():
        folder = resolve(str(pack))
    return Model(Runtime.load(folder, device), method)


def register(name: str, method: type[Method], objective: type[Any] | None = None) -> None:
    """Registers your own method for packs, recipes and commands in this process.

    `method` is a subclass of `polyview.models.Method`. `objective` is its loss, a subclass of
    `polyview.training.objectives.Objective`; without a loss, the method can be loaded but not
    trained. Raises TypeError for a wrong `method`, ValueError if another method has the name.
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"register takes a subclass of polyview.models.Method, not {method!r}")
    if METHODS.setdefault(name, method) is not method:
        raise ValueError(f'the name "{name}" belongs to {METHODS[name].__name__}; choose another')
    if objective is not None:
        from polyview.training.objectives import OBJECTIVES

        OBJECTIVES[name] = objective


class Model:
    """One method of a pack, with its encoders, heads and score. Thread-safe.

    Attributes:
        name: the method's name in the pack.
        method: the heads and the score, a `torch.nn.Module` in eval mode.
        runtime: the loaded pack, with its encoders, tokenizer, `grid` (rows, columns) and `device`.
    """

    def __init__(self, runtime: Runtime, method: str | None = None) -> None:
        self.name = runtime.methods.best if method is None else method
        self.method = runtime.methods.require_single(self.name)
        self.runtime = runtime

    @torch.no_grad()
    def encode_images(
        self,
        images: ImageLike | Sequence[ImageLike] | np.ndarray | Tensor,
        mask: np.ndarray | Tensor | None = None,
    ) -> Views:
        """Encodes images into views.

        Args:
            images: a path, a PIL image, or a list of them; or features (B, N, d) of another
                encoder, with the width d of the training features.
            mask: (B, N) bool for features, False for padding; None without padding.

        Returns:
            Views with embeddings (B, V, D) and attention (B, V, N); some methods lack attention.

        Raises:
            TypeError: an item is not an image or path.
            ValueError: the list is empty, a file is damaged, features or mask have wrong shapes, or
                the pack has no image encoder.
            FileNotFoundError: a file is missing.
        """
        if isinstance(images, np.ndarray | Tensor):
            features = torch.as_tensor(images, dtype=torch.float32)
        else:
            items = _as_list(images)
            for item in items:
                if not isinstance(item, str | os.PathLike | Image.Image):
                    kind = type(item).__name__
                    raise TypeError(f"an image is a path or a PIL image, not {kind} {item!r:.60}")
                if not isinstance(item, Image.Image) and not Path(item).is_file():
                    raise FileNotFoundError(f"there is no image file {item}; check the path")
            starts = range(0, max(1, len(items)), _BATCH)
            batches = ([_open_image(item) for item in items[i : i + _BATCH]] for i in starts)
            encoded = [self.runtime.image_features(batch, self.name) for batch in batches]
            features = torch.cat(encoded)
        mask = torch.ones(features.shape[:2]) if mask is None else torch.as_tensor(mask)
        if mask.shape != features.shape[:2]:
            sizes = f"{tuple(mask.shape)} for features {tuple(features.shape)}"
            raise ValueError(f"the mask is {sizes}; pass a mask (B, N)")
        views = self.runtime.image_views(features, self.name, attention=True, mask=mask.bool())
        extras = {"features": features, "mask": mask.bool()}
        return Views(views.embeddings, views.attention, extras).to(self.runtime.device)

    @torch.no_grad()
    def encode_texts(self, texts: str | Sequence[str]) -> Views:
        """Encodes texts into views; a single string is one text.

        Returns embeddings (B, V, D) and, for most methods, attention (B, V, M), where M is the
        number of tokens of the longest text. Raises TypeError for an item that is not a string,
        ValueError for an empty list or an empty text.
        """
        items = _as_list(texts)
        for row, text in enumerate(items, start=1):
            if not isinstance(text, str):
                raise TypeError(f"a text is a string, not {type(text).__name__} {text!r:.60}")
            if not text.strip():
                raise ValueError(f"text {row} of {len(items)} is empty; it needs a word")
        features, mask = self.runtime.text_features(items, self.name)
        views = self.runtime.encode_batches(self.method.encode_text, features, mask, attention=True)
        return Views(views.embeddings, views.attention, {"features": features, "mask": mask})

    def words(self, text: str) -> list[str]:
        """Splits a text into its M tokens, to which the last axis of `evidence` refers."""
        return self.runtime.reader.read(text).words

    @torch.no_grad()
    def similarity(self, images: Views, texts: Views) -> Tensor:
        """Returns scores (B_img, B_txt), higher is better; raises ValueError if widths D differ."""
        return self.method.score(*self._move_pair(images, texts))

    @torch.no_grad()
    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """Returns the scores (V, B_img, B_txt) of each view of the images; see `similarity`."""
        return self.method.view_scores(*self._move_pair(images, texts))

    def attention(self, images: Views) -> Tensor:
        """Returns attention as (B, V, rows, columns) if the encoder has a grid, else (B, V, N).

        Raises ValueError if the views have no attention.
        """
        if images.attention is None:
            raise ValueError("these views have no attention; use encode_images or another method")
        rows, columns = self.runtime.grid
        on_grid = images.attention.shape[-1] == len(self.runtime.boxes) and rows * columns > 0
        return self.runtime.to_grid(images.attention) if on_grid else images.attention

    @torch.no_grad()
    def evidence(self, images: Views, texts: Views) -> Evidence:
        """Splits the scores of B pairs exactly over image elements and words.

        `images` are B images from `encode_images`; `texts` are B texts from `encode_texts`, or one
        text for all images. Returns cells (B, N, M), whole_sentence (B, N) and base (B,), whose sum
        is the score. Raises ValueError if the views have no features, the numbers of images and
        texts differ, or the method's score cannot be split.
        """
        if len(texts) not in (1, len(images)):
            expected = f"pass one text, or one for each of the {len(images)} images"
            raise ValueError(f"{expected}, not {len(texts)} texts")
        for views, encoder in ((images, "encode_images"), (texts, "encode_texts")):
            if "features" not in views.extras:
                raise ValueError(f"these views have no features; use views from {encoder}")
        image, text = (views.extras for views in self._move_pair(images, texts))
        image_parts = self.method.image_parts(image["features"], image["mask"])
        text_parts = self.method.text_parts(text["features"], text["mask"])
        return self.method.evidence(image_parts, text_parts)

    def _move_pair(self, *pair: Views) -> list[Views]:
        """Moves both views to the device; raises ValueError if their widths D differ."""
        image_dim, text_dim = (views.embeddings.shape[2] for views in pair)
        if image_dim != text_dim:
            sizes = f"image views have {image_dim} dimensions and text views {text_dim}"
            raise ValueError(f"{sizes}; encode both with the same model")
        return [views.to(self.runtime.device) for views in pair]


def _as_list(items: Any) -> list[Any]:
    """Returns the items as a list; a string, or an object that is not iterable, is one item."""
    return [items] if isinstance(items, str) or not isinstance(items, Iterable) else list(items)


def _open_image(item: ImageLike) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    try:
        with Image.open(item) as image:
            image.load()
            return image
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{item} cannot be read as an image ({error})") from error
