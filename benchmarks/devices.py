"""The app's work for a few images and captions on one device, and how two devices compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from app.gallery.vector_index import Gallery, Match
from export.pack.reading import load_info
from export.runtime import Runtime
from export.sessions import DeviceError, Sessions
from models import Views
from models.sinkhorn import match_blocks

HITS = 10
LIT = 12  # images whose evidence is asked for at once, as a page has them
NUMBERS = ("features", "image views", "text views", "heatmap", "scores", "evidence", "ranking")
TOLERANCE = 1e-3  # of the largest number there is; float32 sums in another order differ by less


@dataclass(frozen=True)
class Difference:
    """How far the numbers of two devices are apart.

    Attributes:
        what: which numbers.
        largest: difference, as a share of the largest number.
    """

    what: str
    largest: float

    @property
    def close(self) -> bool:
        """Whether it is what rounding explains; NaN is not."""
        return self.largest <= TOLERANCE


def open_on(pack: Path, device: torch.device) -> tuple[Runtime, str]:
    """A pack on a device.

    Returns:
        The runtime, whose encoders leave what they give on the device; and a sentence where
        onnxruntime cannot use the device, so that the encoders compute on the CPU.
    """
    if device.type == "cpu":
        info = load_info(pack)
        return Runtime(info, Sessions(info.path, "cpu", bound=True)), ""
    try:
        return Runtime.load(pack, "cuda"), ""
    except DeviceError as error:
        info = load_info(pack)
        sessions = Sessions(info.path, "cpu", heads=device, bound=True)
        return Runtime(info, sessions), f"The encoders computed on the CPU: {error}."


class Work:
    """What is asked of one method; all that comes of it stays on the device.

    Args:
        runtime: on the device.
        name: of the method.
        images: the gallery.
        captions: what is asked.

    Attributes:
        features: of the images, (N, n, d).
        views: of the images, (N, V, D).
    """

    def __init__(
        self, runtime: Runtime, name: str, images: Sequence[Image.Image], captions: Sequence[str]
    ) -> None:
        self.runtime, self.name, self.captions = runtime, name, captions
        self.method = runtime.methods[name]
        self._pixels = runtime.preprocess(images)
        self.features, self.views = self.index()
        self._gallery = Gallery("images", self.method, runtime.device, len(images))
        self._gallery.add(range(len(images)), self.views)

    def index(self) -> tuple[Tensor, Views]:
        """Features and views of all images, from their pixels."""
        features = self.runtime.pixel_features(self._pixels, self.name)
        return features, self.runtime.image_views(features, self.name)

    def query(self, caption: str) -> list[Match]:
        """The best images for a caption."""
        return self._gallery.search(self.runtime.text_views([caption], self.name), HITS)

    def heatmap(self) -> Tensor | None:
        """The maps (V, rows, columns) of the first image; None where the method has none."""
        maps = self.runtime.image_views(self.features[:1], self.name, attention=True).attention
        return None if maps is None else self.runtime.on_grid(maps[0])

    @torch.inference_mode()
    def evidence(self, caption: str) -> Tensor:
        """What cells of the first images find in the words of a caption, (B, n, M)."""
        images = self.runtime.image_parts(self.features[:LIT], self.name)
        return self.method.evidence(images, self.runtime.text_parts([caption], self.name)).cells

    def numbers(self) -> dict[str, Tensor | None]:
        """All of `NUMBERS` but the ranking; None for what the method does not have."""
        texts = self.runtime.text_views(list(self.captions), self.name)
        return {
            "features": self.features,
            "image views": self.views.embeddings,
            "text views": texts.embeddings,
            "heatmap": self.heatmap(),
            "scores": self.scores(),
            "evidence": self.evidence(self.captions[0]),
        }

    @torch.inference_mode()
    def scores(self) -> Tensor:
        """Of every image for every caption, (N, T)."""
        return self.method.score(
            self.views, self.runtime.text_views(list(self.captions), self.name)
        )


def compare(reference: Work, other: Work) -> list[Difference]:
    """How far the second is from the first in each of `NUMBERS` that the method has."""
    found = []
    sides = zip(reference.numbers().items(), other.numbers().values(), strict=True)
    for (what, wanted), given in sides:
        if wanted is not None and given is not None:
            found.append(Difference(what, apart(wanted, given)))
    ranked = [[match.id for match in other.query(caption)] for caption in other.captions]
    found.append(Difference("ranking", misplaced(reference.scores(), ranked)))
    return found


def apart(wanted: Tensor, given: Tensor) -> float:
    """The largest difference, as a share of the largest number; NaN where there is one.

    >>> apart(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]))
    0.25
    """
    wanted, given = wanted.double().cpu(), given.double().cpu()
    return float((wanted - given).abs().max() / wanted.abs().max().clamp(min=1e-12))


def misplaced(scores: Tensor, ranked: Sequence[Sequence[int]]) -> float:
    """By how much a ranking is wrong, in scores: images that score the same may change places.

    Args:
        scores: (N, T) of the reference.
        ranked: of each of T texts the best images, best first.

    Returns:
        The largest difference of the score that stands in a place and the one that belongs there,
        as a share of the largest score.

    >>> scores = torch.tensor([[4.0], [2.0], [2.0], [1.0]])
    >>> misplaced(scores, [[0, 2]]), misplaced(scores, [[1, 0]])
    (0.0, 0.5)
    """
    best = scores.sort(dim=0, descending=True).values  # (N, T)
    there = torch.tensor(ranked, device=scores.device).T  # (k, T)
    return apart(best[: len(there)], scores.gather(0, there))


@torch.inference_mode()
def sinkhorn_difference(device: torch.device, pairs: int) -> Difference:
    """AVSE's plans of some pairs of 4 x 2 blocks on the CPU and on a device."""
    drawn = torch.Generator().manual_seed(0)
    affinity = torch.rand(8, 4, pairs, generator=drawn) * 2 - 1
    dustbin = torch.tensor(0.3)
    plan = match_blocks(affinity.to(device), dustbin.to(device))
    return Difference("Sinkhorn plans", apart(match_blocks(affinity, dustbin), plan))
