"""Scores a whole split with a method of a pack and turns the matrix into metrics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tqdm import tqdm

from export.runtime import Runtime
from models import Views
from training.data.clips import Clips
from training.data.split import SeenObjects, Split
from training.evaluation.evidence import Place, named_places
from training.evaluation.faithfulness import faithfulness, mentioned_shares
from training.evaluation.kinds import kind_metrics
from training.evaluation.metrics import folded_metrics, relevance_metrics, retrieval_metrics
from training.evaluation.statistics import view_statistics, winning_views

IMAGES_AT_ONCE = 32
CAPTIONS_AT_ONCE = 256


def image_features(
    runtime: Runtime, data: Split, method: str | None = None
) -> torch.Tensor | np.ndarray:
    """Features (N_img, N, d) of all images, of clips frame by frame, through an ONNX encoder.

    A pack without an image encoder reads the ready-made features of the data, which stay on the
    disk.

    Args:
        runtime: a loaded pack.
        data: whose images.
        method: whose image encoder reads them; None takes the pack's.

    Raises:
        ValueError: the data are images and the pack reads features, or the other way round; or
            features are of another width.
    """
    source, dim = data.folder.parent, runtime.info.image_encoder.dim
    if runtime.image_encoder_of(method) is None:
        if len(data.images) or not isinstance(data.features, np.ndarray | Clips):
            raise ValueError(
                f"{source} holds images, but the pack reads ready-made features of {dim} numbers a "
                "region; name a folder of those (training/data/precomputed.py)"
            )
        if data.features.shape[2] != dim:
            raise ValueError(
                f"{source} holds features of {data.features.shape[2]} numbers a region, but the "
                f"pack reads {dim}; name a folder of the features that it was trained on"
            )
        return data.features[:]
    if not len(data.images):
        raise ValueError(
            f"{source} holds ready-made features, but the pack reads images; name a folder of "
            "images"
        )
    parts, starts = [], range(0, len(data.images), IMAGES_AT_ONCE)
    for start in tqdm(starts, desc="images", mininterval=1):
        rows = range(start, min(start + IMAGES_AT_ONCE, len(data.images)))
        parts.append(runtime.image_features([data.images[row] for row in rows], method))
    made = torch.cat(parts)  # (images, n, d)
    return made.reshape(data.image_count, -1, made.shape[2])


def as_read(runtime: Runtime, data: Split) -> Split:
    """Data as a pack's methods read them: of clips as many frames as in training.

    Raises:
        ValueError: its methods were trained on different numbers of frames.
    """
    if not isinstance(data.features, Clips):
        return data
    frames = {int(entry.config.get("frames", 0)) for entry in runtime.info.methods.values()}
    if len(frames) > 1:
        raise ValueError(
            f"the methods of {runtime.info.name} look at {sorted(frames)} frames of a clip; "
            "measure a pack of each, or the runs"
        )
    return data.with_frames(frames.pop())


@torch.inference_mode()
def split_views(
    runtime: Runtime,
    method: str,
    data: Split,
    features: torch.Tensor | np.ndarray,
    attention: bool = False,
) -> tuple[Views, Views]:
    """Views of all images and of all captions as the pack ships: ONNX encoders, torch heads.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        data: what to encode.
        features: `image_features` of the same data, as the method reads it.
        attention: also compute the images' maps (N_img, V, N).
    """
    mask = torch.from_numpy(data.mask(slice(None), features.shape[1]))
    images = runtime.image_views(features, method, attention, mask)
    return images, text_views(runtime, method, data.captions)


def text_views(runtime: Runtime, method: str, texts: Sequence[str]) -> Views:
    """Views of texts by a method, encoded some at a time."""
    starts = range(0, len(texts), CAPTIONS_AT_ONCE)
    batches = [runtime.text_views(texts[i : i + CAPTIONS_AT_ONCE], method) for i in starts]
    return Views(torch.cat([batch.embeddings for batch in batches]))


def score_metrics(scores: np.ndarray, data: Split, folds: int = 1) -> dict[str, float]:
    """Metrics of a score matrix (N_img, N_txt), averaged over so many folds of the images."""
    if folds > 1:
        return folded_metrics(scores, data.image_of, folds)
    metrics = retrieval_metrics(scores, data.image_of)
    if data.relevant is not None:
        metrics |= relevance_metrics(scores, data.relevant())
    return metrics | kind_metrics(scores, data)


def mentioned_cells(runtime: Runtime, data: Split) -> np.ndarray | None:
    """`mentioned_shares` of each caption on the pack's grid; None where objects are not known."""
    if data.objects is None:
        return None
    return mentioned_shares(_seen(data.objects, runtime), data.image_of, runtime.grid)  # (N_txt, N)


def named_cells(runtime: Runtime, data: Split) -> list[Place]:
    """`named_places` of the captions on the pack's grid; none where objects are not known.

    Raises:
        ValueError: the pack reads ready-made features, which are on no grid.
    """
    if runtime.info.image_encoder.file is None:
        raise ValueError(
            "--evidence asks which cells of a grid a score is from, and a region is on no grid"
        )
    if data.objects is None or not data.objects.names:
        return []
    words = [runtime.tokenize(caption).words for caption in data.captions]
    return named_places(_seen(data.objects, runtime), words, data.image_of, runtime.grid)


def _seen(objects: SeenObjects, runtime: Runtime) -> SeenObjects:
    """The same objects, their masks cropped to the part of the image that the encoder sees."""

    def cropped(mask: np.ndarray) -> np.ndarray:
        height, width = mask.shape
        x0, y0, x1, y1 = runtime.preprocess.visible_box(width, height)
        rows = slice(round(y0 * height), round(y1 * height))
        return mask[rows, round(x0 * width) : round(x1 * width)]

    return replace(objects, masks=[cropped(mask) for mask in objects.masks])


def view_metrics(
    runtime: Runtime,
    method: str,
    data: Split,
    views: tuple[Views, Views],
    covered: np.ndarray | None,
) -> dict[str, float]:
    """`view_statistics` of a method, and `faithfulness` where it can be measured.

    That needs `split_views` with attention, and `mentioned_cells` (N_txt, cells) of the same data.
    """
    head, (images, texts) = runtime.methods[method], views
    values = view_statistics(head, images, texts, data.image_of)
    if covered is None or images.attention is None:
        return values
    winners = winning_views(head, images, texts, data.image_of)
    maps = runtime.on_grid(images.attention).flatten(2).cpu().numpy()  # (N_img, V, cells)
    return values | faithfulness(maps, covered, data.image_of, winners)
