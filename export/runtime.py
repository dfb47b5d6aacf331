"""Runs the methods of a pack: images and texts to features (ONNX), features to views (torch).

An image, a text and their score:

    runtime = Runtime.load(Path("app/bundled/scenes"))
    images = runtime.image_views(runtime.image_features([image]), "vse_infty")  # (1, V, D)
    texts = runtime.text_views(["a dog on the beach"], "vse_infty")  # (1, V, D)
    score = runtime.methods["vse_infty"].score(images, texts)  # (1, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview import models
from polyview.export.pack.gallery import regions_of
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import PackError
from polyview.export.sessions import Device, Sessions
from polyview.export.texts import TextReader, load_tokenizer
from polyview.models import Method, Views
from polyview.models.checkpoint import check_fit, load_strict, load_tensors
from polyview.models.evidence import Parts
from polyview.models.views import grid_boxes, lengths_to_mask

IMAGE_BATCH_SIZE, TEXT_BATCH_SIZE, HEAD_BATCH_SIZE = 32, 128, 128
MAX_PART_VALUES = 1 << 28  # maximum number of float32 values in `Parts`: 1 GiB
Encode = Callable[..., Views]  # `Method.encode_image` or `Method.encode_text`


class Methods(dict[str, Method]):
    """A pack's methods by name; names joined by "+" are an ensemble, whose scores are averaged.

    An unknown name raises ValueError. `ranked_names` orders the names by descending rsum; methods
    without metrics come last, in the reverse order of pack.json. `best` is the first name.
    """

    def __init__(self, methods: dict[str, Method], info: PackInfo) -> None:
        super().__init__(methods)
        rsum = {n: m.metrics.values.get("rsum", 0.0) for n, m in info.methods.items() if m.metrics}
        by_rsum = sorted(rsum, key=lambda name: rsum[name], reverse=True)
        self.ranked_names = (*by_rsum, *(n for n in reversed(info.methods) if n not in rsum))
        self.best = self.ranked_names[0]

    def __missing__(self, name: str) -> Method:
        name, names = str(name)[:80], ", ".join(self)
        raise ValueError(f'there is no method "{name}" in this pack; choose one of {names}')

    def names(self, spec: str) -> tuple[str, ...]:
        """Splits "a" or "a+b" into names; raises ValueError if a name is unknown or repeated."""
        names = tuple(name.strip() for name in str(spec).split("+"))
        for name in names:
            self[name]  # raises for an unknown name
        if len(set(names)) < len(names):
            raise ValueError(f'the ensemble "{spec[:80]}" names a method twice; name each once')
        return names

    def require_single(self, name: str) -> Method:
        """Returns the method of a name; raises ValueError for an unknown name or an ensemble."""
        first, *others = self.names(name)
        if others:
            raise ValueError(f'"{name[:80]}" names {len(others) + 1} methods; choose one of them')
        return self[first]

    def title(self, spec: str) -> str:
        """Returns the display name of a method or an ensemble."""
        return " + ".join(self[name].title for name in self.names(spec))


class Runtime:
    """A loaded pack, from `Runtime.load`; thread-safe. ONNX sessions start at their first use."""

    def __init__(self, info: PackInfo, device: Device) -> None:
        self.info = info  # the content of pack.json
        self._sessions = Sessions(info.folder, device)
        self.device: torch.device = self._sessions.device  # device of heads and returned tensors
        # name -> heads and score, in eval mode, float32, on `device`
        heads = {name: load_head(info, name).to(self.device) for name in info.methods}
        self.methods = Methods(heads, info)
        self.preprocess = info.preprocess  # turns images into pixels
        self.grid = info.image_encoder.grid  # rows and columns of the image features
        # (N, 4) relative xyxy boxes of the features in the square image that the encoder sees
        self.boxes = grid_boxes(*self.grid)
        if info.image_encoder.summary_token:
            self.boxes = torch.cat([grid_boxes(1, 1), self.boxes])
        self.threads = self._sessions.threads  # processor threads of one ONNX session
        self.regions = regions_of(info)  # region features of the pack's gallery; None in most packs
        encoder = next(iter(info.methods.values())).text_encoder
        session = self._sessions.start(encoder, ["ids", "lengths"], self.device.type == "cpu")
        # the providers in use, best first: onnxruntime may fall back to the CPU silently
        self.providers: list[str] = session.get_providers()
        tokenizer = load_tokenizer(info.folder / info.tokenizer.file)
        self.reader = TextReader(tokenizer, info.tokenizer.max_length)  # turns texts into tokens

    @classmethod
    def load(cls, pack: Path, device: Device = "auto") -> Runtime:
        """Checks and loads the pack in a folder.

        "cuda" requires CUDA; "auto" falls back to the CPU. Raises FileNotFoundError if a file is
        missing, PackError if the pack is damaged or has an unknown method, ValueError if the device
        cannot be used.
        """
        return cls(load_info(pack), device)

    def image_encoder_of(self, method: str | None) -> str | None:
        """Returns the ONNX file of a method's image encoder; None for precomputed features.

        Methods with the same file share features. Without a method, returns the file of the pack's
        image encoder. Raises ValueError for an unknown method.
        """
        if method is None:
            return self.info.image_encoder.file
        self.methods[method]  # raises for an unknown method
        return self.info.methods[method].image_encoder or self.info.image_encoder.file

    def image_features(self, images: Sequence[Image.Image], method: str | None = None) -> Tensor:
        """Encodes at least one image of any size and mode into features (B, N, d).

        `method` selects the encoder, see `image_encoder_of`. Raises ValueError if there is no
        image, the method is unknown, or the pack has no image encoder.
        """
        if not images:
            raise ValueError("there is no image to encode; give at least one")
        if isinstance(images, str | Path | Image.Image):
            raise ValueError("image_features takes a list of PIL images, not one image or a path")
        starts = range(0, len(images), IMAGE_BATCH_SIZE)
        pixels = (self.preprocess(images[start : start + IMAGE_BATCH_SIZE]) for start in starts)
        return torch.cat([self.pixel_features(batch, method) for batch in pixels])  # (B, N, d)

    def square_features(
        self, squares: Sequence[Image.Image], method: str | None = None, single_thread: bool = False
    ) -> Tensor:
        """Encodes images from `preprocess.square`; see `image_features`.

        With `single_thread`, a CPU computes only in the caller's thread. Several such callers
        together encode more images per second than one caller that uses all cores.
        """
        return self.pixel_features(self.preprocess.planes(squares), method, single_thread)

    def pixel_features(
        self, pixels: np.ndarray, method: str | None = None, single_thread: bool = False
    ) -> Tensor:
        """Encodes pixels (B, 3, S, S) float32, B >= 1, from `preprocess` into features (B, N, d).

        Raises ValueError if the pixels have another shape or type, or the pack has no image
        encoder, PackError if the features do not have the shape that pack.json states.
        """
        size = self.preprocess.size
        if pixels.shape != (max(1, len(pixels)), 3, size, size) or pixels.dtype != np.float32:
            actual = f"{pixels.shape} {pixels.dtype}"
            raise ValueError(f"pixels must be (B, 3, {size}, {size}) float32, not {actual}")
        self.require_images()
        file = str(self.image_encoder_of(method))
        single_thread = single_thread and self.device.type == "cpu"
        features = self._sessions.run(file, {"pixels": pixels}, single_thread).to(self.device)
        shape, expected = tuple(features.shape[1:]), (len(self.boxes), self.info.image_encoder.dim)
        if shape != expected:
            message = f"{file} gives {shape} features for an image, but pack.json says {expected}"
            raise PackError(f"{message}; export it again")
        return features

    def require_images(self) -> None:
        """Raises ValueError if the pack has no image encoder."""
        if self.info.image_encoder.file is None:
            fault = f"the pack {self.info.name} searches precomputed features and reads no images"
            raise ValueError(f"{fault}; choose a pack with an image encoder")

    def start_image_encoder(self) -> None:
        """Starts the image encoder; raises PackError if it fails, ValueError if there is none."""
        self.require_images()
        self._sessions.start(str(self.info.image_encoder.file), ["pixels"])

    @torch.no_grad()
    def image_views(
        self,
        features: Tensor | np.ndarray,
        method: str,
        attention: bool = False,
        mask: Tensor | None = None,
    ) -> Views:
        """Turns image features (B, N, d) into views (B, V, D).

        An array may be memory-mapped and is read in batches. `attention` requests attention
        (B, V, N), which some methods lack. `mask` (B, N) bool is False on padding; None stands
        for no padding. Raises ValueError if the method is unknown or the width d is wrong.
        """
        head = self.methods[method]
        mask = self._complete_mask(features, mask)
        return self.encode_batches(head.encode_image, features, mask, attention)

    @torch.no_grad()
    def image_parts(self, features: Tensor, method: str, mask: Tensor | None = None) -> Parts:
        """Splits the views of `image_views` into the contributions of the N features.

        Raises ValueError as `image_views` does, if the parts would have more than `MAX_PART_VALUES`
        values, or if the method's score cannot be split.
        """
        head, mask = self.methods[method], self._complete_mask(features, mask)
        inputs = features.to(self.device), mask.to(self.device)
        return _split(head.encode_image, head.image_parts, *inputs)

    def to_grid(self, attention: Tensor) -> Tensor:
        """Reshapes maps (..., N) to (..., rows, columns), without the value of a summary token."""
        cells = self.grid[0] * self.grid[1]
        return attention[..., -cells:].unflatten(-1, self.grid)

    def text_features(self, texts: Sequence[str], method: str) -> tuple[Tensor, Tensor]:
        """Encodes texts into features (B, M, d), 0 on padding, and their mask (B, M).

        Texts are stripped and truncated to the pack's `max_length` tokens; M is the length of the
        longest text. Raises ValueError for no texts, an empty text or an unknown method, PackError
        if the features do not have the shape that pack.json states.
        """
        if isinstance(texts, str):
            raise ValueError(f'text_features takes a list of texts; write ["{texts[:60]}"]')
        return self.token_features(*self.reader.batch(texts), method)

    def token_features(
        self, ids: np.ndarray, lengths: np.ndarray, method: str
    ) -> tuple[Tensor, Tensor]:
        """Encodes ids (B, M) and lengths (B,) from `pad`; see `text_features` for the result."""
        self.methods[method]  # raises for an unknown method
        entry = self.info.methods[method]
        features = torch.zeros(*ids.shape, entry.text_dim, device=self.device)  # (B, M, d)
        order = lengths.argsort(kind="stable")  # texts of similar length share a batch
        batches = [order[i : i + TEXT_BATCH_SIZE] for i in range(0, len(ids), TEXT_BATCH_SIZE)]

        def encode(rows: np.ndarray) -> Tensor:
            length = int(lengths[rows].max())
            inputs = {"ids": np.ascontiguousarray(ids[rows, :length]), "lengths": lengths[rows]}
            # one thread on a CPU: small batches gain nothing from more threads
            batch = self._sessions.run(entry.text_encoder, inputs, self.device.type == "cpu")
            if batch.shape != (expected := (len(rows), length, entry.text_dim)):
                file, shape = entry.text_encoder, tuple(batch.shape)
                raise PackError(f"{file} gives features {shape}, not {expected}; export it again")
            return batch

        with ThreadPoolExecutor(self.threads) as pool:
            encoded = pool.map(encode, batches) if len(batches) > 1 else map(encode, batches)
            for rows, batch in zip(batches, encoded, strict=True):
                features[torch.from_numpy(rows), : batch.shape[1]] = batch.to(self.device)
        return features, lengths_to_mask(torch.from_numpy(lengths), ids.shape[1]).to(self.device)

    @torch.no_grad()
    def text_views(self, texts: Sequence[str], method: str, attention: bool = False) -> Views:
        """Turns texts into views (B, V, D); `attention` requests attention (B, V, M).

        See `text_features` for M and errors, and `image_views` for attention.
        """
        head = self.methods[method]
        features, mask = self.text_features(texts, method)
        return self.encode_batches(head.encode_text, features, mask, attention)

    @torch.no_grad()
    def text_parts(self, texts: Sequence[str], method: str) -> Parts:
        """Splits the views of `text_views` into contributions of M tokens; see `image_parts`."""
        head = self.methods[method]
        return _split(head.encode_text, head.text_parts, *self.text_features(texts, method))

    def _complete_mask(self, features: Tensor | np.ndarray, mask: Tensor | None) -> Tensor:
        """Checks the width of features (B, N, d); returns `mask`, by default True everywhere."""
        dim, shape = self.info.image_encoder.dim, tuple(features.shape)
        if len(shape) != 3 or shape[2] != dim:
            raise ValueError(f"the pack {self.info.name} reads features (B, N, {dim}), not {shape}")
        return torch.ones(features.shape[:2], dtype=torch.bool) if mask is None else mask

    def encode_batches(
        self, encode: Encode, features: Tensor | np.ndarray, mask: Tensor, attention: bool
    ) -> Views:
        """Calls `encode` on batches of features (B, N, d) and mask (B, N); joins the views."""
        view_batches = []
        for i in range(0, len(features), HEAD_BATCH_SIZE):
            batch, batch_mask = features[i : i + HEAD_BATCH_SIZE], mask[i : i + HEAD_BATCH_SIZE]
            if isinstance(batch, np.ndarray):
                batch = torch.from_numpy(np.array(batch, np.float32))
            inputs = batch.to(self.device), batch_mask.to(self.device)
            view_batches.append(encode(*inputs, attention=attention))
        embeddings = torch.cat([views.embeddings for views in view_batches])  # (B, V, D)
        maps = [views.attention for views in view_batches if views.attention is not None]
        return Views(embeddings, torch.cat(maps) if maps else None)


def load_head(info: PackInfo, name: str) -> Method:
    """Loads a method of a pack in eval mode; raises PackError if its weights do not fit."""
    entry = info.methods[name]
    try:
        tensors, _ = load_tensors(info.folder / entry.head)
        key, sizes = entry.method or name, (entry.image_dim, entry.text_dim)
        with torch.device("meta"):  # allocates no memory until the weights fit the stated sizes
            method = models.build(key, *sizes, entry.arguments)
        check_fit(method, tensors, entry.head)
        method = models.build(key, *sizes, entry.arguments)
        load_strict(method, tensors, entry.head)
    except (TypeError, ValueError) as error:
        raise PackError(f"the pack {info.folder} does not load: {error}") from error
    if entry.title is not None:
        method.title = entry.title  # type: ignore[misc]  # replaces the class's title
    return method.eval().requires_grad_(False)


def _split(
    encode: Encode, split: Callable[[Tensor, Tensor], Parts], features: Tensor, mask: Tensor
) -> Parts:
    """Calls `split`; raises ValueError if the parts would have over `MAX_PART_VALUES` values."""
    values_per_feature = encode(features[:1], mask[:1], attention=False).embeddings.numel()  # V * D
    if (count := values_per_feature * mask.numel()) > MAX_PART_VALUES:
        items = f"{len(mask)} items have {count:,} values to split"
        raise ValueError(f"{items}, more than {MAX_PART_VALUES:,}; request fewer items")
    return split(features, mask)
