"""Checks that a pack (ONNX encoders, stored heads) computes the same as torch.

Numbers: the largest difference of features, embeddings and scores, in units of the larger of 1 and
the largest magnitude, must stay below `TOLERANCE`, at several batch sizes and lengths. Ranking: in
both directions, the pack must order everything as torch does; scores that torch itself puts within
`TIE` of each other, which is float32 noise, may swap.
"""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.schema import Parity
from polyview.export.runtime import Runtime
from polyview.models import Method
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.views import lengths_to_mask

TOLERANCE = 1e-4
TIE = 1e-5
RANKED, FEW = 48, 4  # images of the last probe; few if each takes seconds
LARGE = 256  # pixels
REGIONS = 7  # of an image, if features are not computed from pixels
SEED = 20240


class DriftError(ValueError):
    """The pack does not compute what torch computes; the message names the difference."""


@dataclass(frozen=True)
class TorchStack:
    """The torch modules of one method, in eval mode.

    Without an image encoder, the method reads features that were computed elsewhere.
    """

    image_encoder: ImageEncoder | None
    text_encoder: TextEncoder
    method: Method


@dataclass(frozen=True)
class Probe:
    """One input: pixels (B_img, 3, S, S) float32, ids (B_txt, L) int64 and lengths (B_txt,).

    For a pack without an image encoder, `pixels` are features (B_img, N, d).
    """

    pixels: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray


def make_probes(runtime: Runtime) -> list[Probe]:
    """Seeded inputs: three shapes of noise, and a last one for the rankings.

    The last is the beginning of the pack's gallery with its captions, or noise without a gallery.
    """
    rng = np.random.default_rng(SEED)
    longest = runtime.info.tokenizer.max_length
    shapes = [(1, 1, 1), (3, 5, min(7, longest)), (2, 3, longest)]
    if runtime.info.gallery is None:
        ranked = FEW if runtime.preprocess.size > LARGE else RANKED
        shapes.append((ranked, ranked, min(12, longest)))
    noise = [_noise(rng, runtime, *shape) for shape in shapes]
    return noise if runtime.info.gallery is None else [*noise, _from_gallery(runtime)]


def check_parity(runtime: Runtime, name: str, rounded: TorchStack, original: TorchStack) -> Parity:
    """Compares a method of a pack, loaded on the CPU, with its torch modules.

    `rounded` has the weights that the pack holds, `original` those as trained.

    Raises:
        DriftError: numbers or ranking differ.
    """
    worst, probes = 0.0, make_probes(runtime)
    for probe in probes:
        shipped, expected = _run_pack(runtime, name, probe), _run_torch(rounded, probe)
        place = f"at {len(probe.pixels)} images and {probe.ids.shape} tokens"
        for quantity, reference in expected.items():
            drift = _difference(shipped[quantity], reference)
            if not drift <= TOLERANCE:
                raise DriftError(
                    f"{name}: {quantity} of the pack differ from torch by {drift:.2g} {place} "
                    f"(tolerance {TOLERANCE:g}); the export is wrong and was not kept"
                )
            worst = max(worst, drift)
        if not same_ranking(shipped["scores"], expected["scores"]):
            raise DriftError(
                f"{name}: the pack ranks differently from torch {place}, although numbers differ "
                f"by {worst:.2g} only; the export was not kept"
            )
    scores, trained = expected["scores"], _run_torch(original, probes[-1])["scores"]
    # share of rows and columns, taken together, with the same argmax
    first = torch.cat([scores.argmax(dim) == trained.argmax(dim) for dim in (0, 1)])
    return Parity(worst, True, float((scores - trained).abs().max()), float(first.float().mean()))


def same_ranking(scores: Tensor, reference: Tensor) -> bool:
    """Whether two score matrices (B_img, B_txt) order every row and every column alike.

    >>> same_ranking(torch.tensor([[0.1, 0.3]]), torch.tensor([[0.2, 0.4]]))
    True
    >>> same_ranking(torch.tensor([[0.1, 0.3]]), torch.tensor([[0.4, 0.2]]))
    False
    """
    slack = TIE * max(1.0, float(reference.abs().max()))
    for ours, theirs in ((scores, reference), (scores.T, reference.T)):
        along = theirs.gather(1, ours.argsort(dim=1, descending=True))
        if bool((along - along.cummin(dim=1).values > slack).any()):
            return False
    return True


def _noise(rng: np.random.Generator, runtime: Runtime, images: int, texts: int, size: int) -> Probe:
    side, encoder = runtime.preprocess.size, runtime.info.image_encoder
    pixels = rng.integers(0, 256, (images, side, side, 3), np.uint8)
    lengths = rng.integers(1, size + 1, texts)
    lengths[0] = size
    ids = rng.integers(1, runtime.reader.size, (texts, size))
    ids[np.arange(size) >= lengths[:, None]] = 0
    if encoder.file is None:
        return Probe(rng.normal(size=(images, REGIONS, encoder.dim)).astype("f"), ids, lengths)
    return Probe(runtime.preprocess.planes(pixels), ids, lengths)


def _from_gallery(runtime: Runtime) -> Probe:
    gallery = load_gallery(runtime.info.folder)
    entries = gallery.images[:RANKED]
    captions = [caption.text for entry in entries for caption in entry.captions[:2]]
    if runtime.regions is not None:
        pixels = runtime.regions.features(range(len(entries))).numpy()
    else:
        images = [Image.open(gallery.folder / entry.file) for entry in entries]
        pixels = runtime.preprocess(images)
    return Probe(pixels, *runtime.reader.batch(captions))


@torch.no_grad()
def _run_torch(stack: TorchStack, probe: Probe) -> dict[str, Tensor]:
    lengths = torch.from_numpy(probe.lengths)
    image_features = torch.from_numpy(probe.pixels)  # (B_img, N, d) without an encoder
    if stack.image_encoder is not None:
        image_features = stack.image_encoder(image_features)
    text_features = stack.text_encoder(torch.from_numpy(probe.ids), lengths)  # (B_txt, L, d)
    mask = lengths_to_mask(lengths, probe.ids.shape[1])
    return _outputs(stack.method, image_features, text_features, mask)


@torch.no_grad()
def _run_pack(runtime: Runtime, name: str, probe: Probe) -> dict[str, Tensor]:
    image_features = torch.from_numpy(probe.pixels)
    if runtime.info.image_encoder.file is not None:
        image_features = runtime.pixel_features(probe.pixels, name)
    text_features, mask = runtime.token_features(probe.ids, probe.lengths, name)
    return _outputs(runtime.methods[name], image_features, text_features, mask)


def _outputs(
    method: Method, image_features: Tensor, text_features: Tensor, text_mask: Tensor
) -> dict[str, Tensor]:
    image_mask = torch.ones(image_features.shape[:2], dtype=torch.bool)
    images = method.encode_image(image_features, image_mask)
    texts = method.encode_text(text_features, text_mask)
    return {
        "image features": image_features,
        "text features": text_features,
        "image embeddings": images.embeddings,
        "text embeddings": texts.embeddings,
        "scores": method.score(images, texts),
    }


def _difference(ours: Tensor, reference: Tensor) -> float:
    """The largest difference, in units of the larger of 1 and the largest magnitude."""
    if ours.shape != reference.shape:
        return float("inf")
    return float((ours - reference).abs().max()) / max(1.0, float(reference.abs().max()))
