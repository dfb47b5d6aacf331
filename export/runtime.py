"""The runtime: from images and sentences to features (ONNX) and views (torch), as a pack says.

Four calls from an image and a sentence to their score:

    runtime = Runtime.load(Path("app/bundled/scenes"))
    images = runtime.image_views(runtime.image_features([image]), "vse_infty")  # (1, V, D)
    texts = runtime.text_views(["a dog on the beach"], "vse_infty")  # (1, V, D)
    score = runtime.methods["vse_infty"].score(images, texts)  # (1, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from export.heads import load_head
from export.pack.reading import load_info
from export.pack.regions import regions_of
from export.pack.schema import ImageEncoderInfo, PackInfo
from export.pack.tokens import load_tokenizer
from export.pack.validation import PackError
from export.sessions import Device, Encoder, Sessions
from export.texts import TextReader, Tokens
from models import Method, Views
from models.evidence import Parts
from models.views import grid_boxes, lengths_to_mask

IMAGE_BATCH = 32
TEXT_BATCH = 128
HEAD_BATCH = 128
MAX_PARTS = 1 << 28  # numbers of what elements bring to views: 1 GB
WHOLE = torch.tensor([[0.0, 0.0, 1.0, 1.0]])  # (1, 4)


class Runtime:
    """A loaded pack. Safe to use from several threads.

    Build it with `Runtime.load`. An ONNX session starts at its first use.

    Attributes:
        info: what pack.json says.
        methods: name -> heads and score, in eval mode, float32, on `device`.
        device: where heads compute and where all tensors returned here are.
        preprocess: how an image becomes pixels.
        grid: rows and columns of the image features; see `on_grid` for one that sums up the rest.
        boxes: (N, 4) the features' boxes in the square image the encoder sees, relative xyxy.
        regions: features of its gallery's images, where they are ready-made; None elsewhere.
        threads: processor threads of one ONNX session, and what callers in many threads may use.
        providers: onnxruntime's providers really in use, best first.
        reader: how a text becomes tokens.
    """

    def __init__(self, info: PackInfo, sessions: Sessions) -> None:
        self.info = info
        self.device: torch.device = sessions.device
        self.methods = {name: load_head(info, name).to(self.device) for name in info.methods}
        self.preprocess = info.preprocess
        self.grid = info.image_encoder.grid
        self.boxes = _boxes(info.image_encoder)  # (N, 4)
        self.threads = sessions.threads
        self.regions = regions_of(info)
        self._sessions = sessions
        first = next(iter(info.methods))
        self.providers: list[str] = self._text_encoder(first).get_providers()
        tokenizer = load_tokenizer(info.path(info.tokenizer.file))
        self.reader = TextReader(tokenizer, info.tokenizer.max_length)

    @classmethod
    def load(cls, pack: Path, device: Device = "auto", threads: int | None = None) -> Runtime:
        """Loads a pack, checking all of it first.

        Args:
            pack: the pack's folder.
            device: "cuda" insists on CUDA; "auto" falls back to the CPU.
            threads: processor threads for each ONNX session; None chooses.

        Raises:
            FileNotFoundError: the pack or a file of it is missing.
            PackError: the pack is damaged, or holds a method this version does not know.
            DeviceError: the device cannot be used.
        """
        info = load_info(pack)
        return cls(info, Sessions(info.path, device, threads))

    def image_encoder_of(self, method: str | None) -> str | None:
        """The file of the image encoder that a method reads; methods of one file share features.

        Args:
            method: a method of the pack; None asks for the pack's own encoder.

        Returns:
            A path in the pack; None where features are computed elsewhere.

        Raises:
            ValueError: an unknown method.
        """
        if method is None:
            return self.info.image_encoder.file
        self._method(method)
        return self.info.methods[method].image_encoder or self.info.image_encoder.file

    def features_by_method(
        self, images: Sequence[Image.Image], methods: Sequence[str]
    ) -> dict[str, Tensor]:
        """`image_features` for each of some methods, computed once for each distinct encoder."""
        found: dict[str | None, Tensor] = {}
        for name in methods:
            file = self.image_encoder_of(name)
            if file not in found:
                found[file] = self.image_features(images, name)
        return {name: found[self.image_encoder_of(name)] for name in methods}

    def image_features(self, images: Sequence[Image.Image], method: str | None = None) -> Tensor:
        """Encodes images of any size and mode.

        Args:
            images: at least one.
            method: whose image encoder reads them; None takes the pack's.

        Returns:
            (B, N, d) features.

        Raises:
            ValueError: there is no image, or no such method.
        """
        if not images:
            raise ValueError("there is no image to encode; give at least one")
        parts = []
        for start in range(0, len(images), IMAGE_BATCH):
            # one by one, because a sequence may open its images only when asked for them
            rows = range(start, min(start + IMAGE_BATCH, len(images)))
            squares = [self.preprocess.square(images[i]) for i in rows]
            parts.append(self.square_features(squares, method))
        return torch.cat(parts)  # (B, N, d)

    def square_features(
        self, squares: Sequence[Image.Image], method: str | None = None, alone: bool = False
    ) -> Tensor:
        """`image_features` of images that `preprocess.square` has cut out already.

        Args:
            squares: at least one.
            method: see `image_features`.
            alone: compute in the caller's thread only, where the pack computes on the CPU; several
                threads that do so encode more images a second than one that uses them all.
        """
        return self.pixel_features(self.preprocess.pixels(squares), method, alone)

    def unfamiliar(self, images: Sequence[Image.Image]) -> np.ndarray | None:
        """Which images (B,) are unlike those that the pack was trained on.

        A few dozen tell of a gallery: it is unlike them where most of its images are.

        Returns:
            (B,) bool, see `Domain`; None where the pack does not say what its own images are like.
        """
        domain = self.info.domain
        if domain is None:
            return None
        return domain.distances(self.image_features(images).cpu().numpy()) > domain.limit

    def require_images(self) -> None:
        """Raises ValueError where the pack has no image encoder; `image_views` takes features."""
        if self.info.image_encoder.file is None:
            raise ValueError(
                f"the pack {self.info.name} searches features that were computed elsewhere, "
                f"{self.info.image_encoder.dim} numbers for each region, and reads no pictures; "
                "choose a pack with an image encoder"
            )

    def image_encoder(self, method: str | None = None, alone: bool = False) -> Encoder:
        """The image encoder of a method, or of the pack; see `require_images`, `Sessions.get`."""
        self.require_images()
        file = str(self.image_encoder_of(method))
        return self._sessions.get(file, ["pixels"], alone and self.device.type == "cpu")

    def pixel_features(
        self, pixels: np.ndarray, method: str | None = None, alone: bool = False
    ) -> Tensor:
        """Encodes preprocessed images.

        Args:
            pixels: (B, 3, S, S) float32, as `preprocess` makes them.
            method: see `image_features`.
            alone: see `square_features`.

        Returns:
            (B, N, d) features.

        Raises:
            ValueError: pixels of another shape or type.
            PackError: the encoder does not give what pack.json says.
        """
        size, encoder = self.preprocess.size, self.info.image_encoder
        wanted = len(pixels) > 0 and pixels.shape[1:] == (3, size, size)
        if not wanted or pixels.dtype != np.float32:
            raise ValueError(
                f"pixels must be (B, 3, {size}, {size}) float32, not {pixels.shape} {pixels.dtype}"
            )
        run, starts = self.image_encoder(method, alone).run, range(0, len(pixels), IMAGE_BATCH)
        parts = [run({"pixels": pixels[i : i + IMAGE_BATCH]}).to(self.device) for i in starts]
        features = parts[0] if len(parts) == 1 else torch.cat(parts)  # (B, N, d)
        if features.shape[1:] != (len(self.boxes), encoder.dim):
            raise PackError(
                f"{self.image_encoder_of(method)} gives {tuple(features.shape[1:])} features for "
                f"an image, but pack.json says {(len(self.boxes), encoder.dim)}; export it again"
            )
        return features

    @torch.no_grad()
    def image_views(
        self,
        features: Tensor | np.ndarray,
        method: str,
        attention: bool = False,
        mask: Tensor | None = None,
    ) -> Views:
        """Turns image features into views.

        Args:
            features: (B, N, d); an array may lie on the disk, of which a part is read at a time.
            method: a method of the pack.
            attention: also compute the (B, V, N) maps.
            mask: (B, N) bool, where sets differ in size; None for all real.

        Returns:
            (B, V, D) views.

        Raises:
            ValueError: an unknown method, or features of another width.
        """
        head = self._method(method)
        return self._in_batches(head.encode_image, features, self._mask(features, mask), attention)

    @torch.no_grad()
    def image_parts(self, features: Tensor, method: str, mask: Tensor | None = None) -> Parts:
        """What each feature brings to the views of `image_views`, for `Method.evidence`.

        Raises:
            ValueError: as there, or the method's score cannot be split.
        """
        head, mask = self._method(method), self._mask(features, mask)
        given = features.to(self.device), mask.to(self.device)
        _check_parts(head.encode_image, *given)
        return head.image_parts(*given)

    def _mask(self, features: Tensor | np.ndarray, mask: Tensor | None) -> Tensor:
        """The mask (B, N) of image features, which are checked; all real where there is none."""
        dim = self.info.image_encoder.dim
        if features.ndim != 3 or features.shape[2] != dim:
            raise ValueError(
                f"the pack {self.info.name} reads features (B, N, {dim}), "
                f"not {tuple(features.shape)}"
            )
        return torch.ones(features.shape[:2], dtype=torch.bool) if mask is None else mask

    def on_grid(self, attention: Tensor) -> Tensor:
        """Maps over the features of an image as maps over its grid.

        Args:
            attention: (..., N); a summary's share is left out, because its place is everywhere.

        Returns:
            (..., rows, columns).
        """
        cells = self.grid[0] * self.grid[1]
        return attention[..., -cells:].unflatten(-1, self.grid)

    def words(self) -> list[str]:
        """The words that the tokenizer knows, see `TextReader.words`."""
        return self.reader.words()

    def tokenize(self, text: str) -> Tokens:
        """Splits a text into the tokens that its encoders read; see `TextReader.read`."""
        return self.reader.read(text)

    def tokens(self, text: str) -> list[str]:
        """The words of a text as its encoders see them, see `tokenize`."""
        return self.tokenize(text).words

    def text_features(self, texts: Sequence[str], method: str) -> tuple[Tensor, Tensor]:
        """Encodes texts with a method's text encoder.

        Args:
            texts: at least one; each is stripped, must hold a word, and is cut at the pack's
                `max_length` tokens.
            method: a method of the pack.

        Returns:
            (B, M, d) features, 0 on padding, and their (B, M) mask; M is the longest text's length.

        Raises:
            ValueError: no texts, an empty text, or an unknown method.
        """
        self._method(method)
        return self.token_features(*self.reader.batch(texts), method)

    def token_features(
        self, ids: np.ndarray, lengths: np.ndarray, method: str
    ) -> tuple[Tensor, Tensor]:
        """Encodes ids (B, M) int64, 0 beyond their lengths (B,) int64; see `text_features`."""
        self._method(method)
        entry = self.info.methods[method]
        encoder = self._text_encoder(method)
        features = torch.zeros(*ids.shape, entry.text_dim, device=self.device)  # (B, M, d)
        order = lengths.argsort(kind="stable")  # texts of like length share a batch: less padding
        batches = [order[i : i + TEXT_BATCH] for i in range(0, len(ids), TEXT_BATCH)]

        def encode(rows: np.ndarray) -> Tensor:
            longest = int(lengths[rows].max())
            given = np.ascontiguousarray(ids[rows, :longest])
            part = encoder.run({"ids": given, "lengths": lengths[rows]})
            if part.shape != (len(rows), longest, entry.text_dim):
                raise PackError(
                    f"{entry.text_encoder} gives {tuple(part.shape)} features for tokens "
                    f"{(len(rows), longest)}, but pack.json says {entry.text_dim} for each; export "
                    "it again"
                )
            return part

        with ThreadPoolExecutor(self.threads) if len(batches) > 1 else nullcontext() as crew:
            parts = crew.map(encode, batches) if crew else map(encode, batches)
            for rows, part in zip(batches, parts, strict=True):
                features[torch.from_numpy(rows), : part.shape[1]] = part.to(self.device)
        return features, lengths_to_mask(torch.from_numpy(lengths), ids.shape[1]).to(self.device)

    @torch.no_grad()
    def text_views(self, texts: Sequence[str], method: str, attention: bool = False) -> Views:
        """Turns texts into views (B, V, D), see `text_features`; attention is (B, V, M)."""
        head = self._method(method)
        features, mask = self.text_features(texts, method)
        return self._in_batches(head.encode_text, features, mask, attention)

    @torch.no_grad()
    def text_parts(self, texts: Sequence[str], method: str) -> Parts:
        """What each token brings to the views of `text_views`, see `image_parts`."""
        head, given = self._method(method), self.text_features(texts, method)
        _check_parts(head.encode_text, *given)
        return head.text_parts(*given)

    def _text_encoder(self, method: str) -> Encoder:
        """On the CPU it computes in its caller's thread: a few texts need no more."""
        file = self.info.methods[method].text_encoder
        return self._sessions.get(file, ["ids", "lengths"], self.device.type == "cpu")

    def _in_batches(
        self, encode: _Encode, features: Tensor | np.ndarray, mask: Tensor, attention: bool
    ) -> Views:
        """Runs a head over (B, N, d) and (B, N), a part of the batch at a time to save memory."""
        parts = []
        for i in range(0, len(features), HEAD_BATCH):
            rows = slice(i, i + HEAD_BATCH)
            part = features[rows]
            if isinstance(part, np.ndarray):
                part = torch.from_numpy(np.array(part, np.float32))
            given = part.to(self.device), mask[rows].to(self.device)
            parts.append(encode(*given, attention=attention))
        embeddings = torch.cat([part.embeddings for part in parts])  # (B, V, D)
        maps = [part.attention for part in parts if part.attention is not None]
        return Views(embeddings, torch.cat(maps) if maps else None)

    def _method(self, name: str) -> Method:
        if name not in self.methods:
            known = ", ".join(self.methods)
            raise ValueError(f'the pack {self.info.name} has no method "{name}"; it has {known}')
        return self.methods[name]


class _Encode(Protocol):
    """`Method.encode_image` or `Method.encode_text`."""

    def __call__(self, features: Tensor, mask: Tensor, *, attention: bool) -> Views: ...


def _check_parts(encode: _Encode, features: Tensor, mask: Tensor) -> None:
    """Raises ValueError for parts of more than `MAX_PARTS` numbers."""
    views = encode(features[:1], mask[:1], attention=False).embeddings.numel()
    count = views * mask.numel()
    if count > MAX_PARTS:
        raise ValueError(
            f"{mask.shape[1]} elements of {len(mask)} items in views of {views} numbers are "
            f"{count:,} numbers to split, more than {MAX_PARTS:,}; ask about fewer at a time"
        )


def _boxes(encoder: ImageEncoderInfo) -> Tensor:
    """Places (N, 4) of an image's features; a summary's, which comes first, is the whole."""
    cells = grid_boxes(*encoder.grid)
    return torch.cat([WHOLE, cells]) if encoder.summary_token else cells
