"""A runtime that averages pixels in place of encoding, and counts images."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import from_folder
from polyview.models import Views
from polyview.models.preprocess import Preprocess
from tests.app.conftest import finish

METHODS = {"one": 1.0, "two": 2.0}  # factors of the features


class FakeRuntime:
    """A fake runtime of two methods, for tests of storing and indexing."""

    def __init__(self, checksum: str = "a pack", eye: str = "an encoder", frames: int = 1) -> None:
        self.preprocess = Preprocess(size=16)
        self.device = torch.device("cpu")
        self.regions = None
        row = SimpleNamespace(row_search=True, row_dim=lambda _, dim: dim, features_add_up=False)
        self.methods = dict.fromkeys(METHODS, row)
        self.info = SimpleNamespace(
            checksum=checksum,
            preprocess=self.preprocess,
            files={"eye.onnx": SimpleNamespace(sha256=eye)},
            folder=Path("nowhere"),
            image_encoder=SimpleNamespace(frames=frames),
        )
        self.threads = 2
        self._lock = threading.Lock()
        self.encoded = 0
        self.heads = 0

    def image_encoder_of(self, _method: str) -> str:
        """The image encoder's file, the same for all methods."""
        return "eye.onnx"

    def square_features(
        self, squares: Sequence[Image.Image], _method: str, single_thread: bool = False
    ) -> Tensor:
        """The mean colours (B, 16, 3) of the rows of pixels."""
        assert single_thread, "many threads encode"
        with self._lock:
            self.encoded += len(squares)
        pixels = np.stack([np.asarray(square, np.float32) for square in squares])
        return torch.from_numpy(pixels.mean(axis=2) / 255)

    def image_views(self, features: Tensor, method: str, mask: Tensor) -> Views:
        """Two views, of the upper and lower halves; the means over the frames of a set."""
        self.heads += len(features)
        frames = features.unflatten(1, (-1, 2, 8)).mean(dim=3)  # (B, T, 2, 3)
        real = mask[:, ::16, None, None]  # (B, T, 1, 1)
        return Views(METHODS[method] * (frames * real).sum(dim=1) / real.sum(dim=1))  # (B, 2, 3)


def indexed(folder: Path, cache: Path, runtime: Any) -> Index:
    """Fills an index of a folder with a `FakeRuntime`."""
    index = finish(Index(runtime, from_folder(folder), cache))
    assert index.progress.stage == "ready", index.progress
    return index
