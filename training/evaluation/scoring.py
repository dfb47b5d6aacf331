"""Encodes and scores a split with the methods and ensembles of a pack."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from polyview.export.runtime import Runtime
from polyview.models import Method, Views
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.split import Clips, Split
from polyview.training.settings import unknown_name_message

IMAGE_BATCH_SIZE = 32
CAPTION_BATCH_SIZE = 256


def draw_half(data: Split, index: int) -> Split:
    """Draws random half 0 or 1 of a split; raises ValueError unless its images are photographs."""
    if data.relevant is not None or not isinstance(data.images, ImageFiles):
        raise ValueError(f"--halves needs photographs, and {data.folder} has none; omit --halves")
    rows = np.sort(np.random.default_rng(0).permutation(len(data.images))[index::2])
    return data.select_photographs(rows)


def limit_frames(runtime: Runtime, data: Split) -> Split:
    """Limits clips to the number of frames that a pack's methods read.

    Raises ValueError if the methods read different numbers of frames.
    """
    if not isinstance(data.features, Clips):
        return data
    counts = {int(entry.config.get("frames", 0)) for entry in runtime.info.methods.values()}
    if len(counts) > 1:
        cause = f"the methods of {runtime.info.name} read {sorted(counts)} frames of a clip"
        raise ValueError(f"{cause}; measure separate packs, or the runs")
    return data.with_frames(counts.pop())


def features_by_method(
    runtime: Runtime, data: Split, methods: Iterable[str]
) -> dict[str, Tensor | np.ndarray]:
    """Returns `image_features` of several methods; each encoder runs only once."""
    file_of = {name: runtime.image_encoder_of(name) for name in methods}
    method_of = {file: name for name, file in file_of.items()}
    by_file = {file: image_features(runtime, data, name) for file, name in method_of.items()}
    return {name: by_file[file] for name, file in file_of.items()}


def image_features(runtime: Runtime, data: Split, method: str) -> Tensor | np.ndarray:
    """Encodes all images, or all frames of clips, into features (N_img, N, d) with ONNX.

    The encoder is that of `method`. A pack without an image encoder uses the precomputed features
    of the data. Raises ValueError if data and pack differ in kind (images or features) or in width.
    """
    source, dim = data.folder.parent, runtime.info.image_encoder.dim
    if runtime.image_encoder_of(method) is None:
        if len(data.images) or not isinstance(data.features, np.ndarray | Clips):
            cause = f"{source} holds images, but the pack reads precomputed features of width {dim}"
            raise ValueError(f"{cause}; choose a feature folder (training/data/precomputed.py)")
        if (width := data.features.shape[2]) != dim:
            cause = f"{source} holds features of width {width}, but the pack reads width {dim}"
            raise ValueError(f"{cause}; choose a folder of the features that it was trained on")
        return data.features[:]
    total = len(data.images)
    if not total:
        cause = f"{source} holds precomputed features, but the pack reads images"
        raise ValueError(f"{cause}; choose a folder of images")
    batches = []
    for start in tqdm(range(0, total, IMAGE_BATCH_SIZE), desc="images", mininterval=1):
        rows = range(start, min(start + IMAGE_BATCH_SIZE, total))
        batches.append(runtime.image_features([data.images[row] for row in rows], method))
    features = torch.cat(batches)  # (images or frames, cells, d)
    return features.reshape(data.image_count, -1, features.shape[2])


@torch.inference_mode()
def split_views(
    runtime: Runtime,
    method: str,
    data: Split,
    features: Tensor | np.ndarray,
    attention: bool = False,
) -> tuple[Views, Views]:
    """Computes the views of all images and captions with the pack's ONNX encoders and torch heads.

    `features` are `image_features` of the same data. `attention` adds maps (N_img, V, N).
    """
    mask = torch.from_numpy(data.mask(slice(None), features.shape[1]))
    images = runtime.image_views(features, method, attention, mask)
    return images, text_views(runtime, method, data.captions)


def text_views(runtime: Runtime, method: str, texts: Sequence[str]) -> Views:
    """Encodes texts in batches; returns a method's views, with embeddings (N_txt, W, D)."""
    starts = range(0, len(texts), CAPTION_BATCH_SIZE)
    batches = [runtime.text_views(texts[i : i + CAPTION_BATCH_SIZE], method) for i in starts]
    return Views(torch.cat([batch.embeddings for batch in batches]))


@torch.inference_mode()
def score_matrix(method: Method, images: Views, texts: Views) -> np.ndarray:
    """Computes the scores (N_img, N_txt) float32 of all pairs, 512 images at a time."""
    starts = range(0, len(images), 512)
    blocks = [method.score(images[i : i + 512], texts).float().cpu() for i in starts]
    return torch.cat(blocks).numpy()


def ensemble_scores(scores: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Averages the scores (N_img, N_txt) of the methods in `name`, which are joined by `+`.

    >>> ensemble_scores({"a": np.array([[1.0, 0.0]]), "b": np.array([[0.5, 0.5]])}, "a+b").tolist()
    [[0.75, 0.25]]
    """
    return np.mean([scores[part] for part in name.split("+")], axis=0)


def ensemble_members(names: Iterable[str], known: Iterable[str], kind: str) -> list[str]:
    """Returns the distinct methods or runs in `names`, which may hold ensembles such as `a+b`.

    `kind` is the word for them in messages, "method" or "run". Raises ValueError if a name is not
    among the `known`, or an ensemble repeats a name.
    """
    known, distinct_members = list(known), list[str]()
    for name in names:
        members = name.split("+")
        if len(set(members)) < len(members):
            raise ValueError(f'the ensemble "{name}" names a {kind} twice; name each once')
        distinct_members += [member for member in members if member not in distinct_members]
    if unknown := [member for member in distinct_members if member not in known]:
        raise ValueError(unknown_name_message(kind, unknown[0], known))
    return distinct_members
