"""Encodes images with a frozen image encoder, once, into a file of features.

Threads decode images ahead of the encoder (Pillow releases the GIL as it decodes). Features go into
a memory-mapped file as they are made. A row whose first number is NaN is not done yet, so that an
extraction that was interrupted, even by `kill -9`, continues with those rows.
"""

import json
import os
import shutil
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from filelock import FileLock
from numpy.lib.format import open_memmap
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from models.files import replacing, write_whole
from models.preprocess import Preprocess

CACHE = Path("data/cache")
WORTH_A_GRAPH = 200  # images; building an ONNX graph takes some seconds
_BATCHES_AHEAD = 3  # decoded while the encoder works
_MAX_NAMED = 10  # damaged images named in an error


@dataclass(frozen=True)
class Extraction:
    """How features are made where they are not cached yet.

    Attributes:
        cache: folder for the features of photographs; those of scenes lie beside the scenes.
        batch: images in a batch.
        workers: threads that decode; 0 takes one for each processor.
        device: "cuda", "cpu" or "auto".
        skip_damaged: leave out photographs that cannot be read, instead of refusing.
    """

    cache: Path = CACHE
    batch: int = 32
    workers: int = 0
    device: str = "auto"
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes that make no sense and a device that does not exist."""
        if self.batch < 1 or self.workers < 0:
            raise ValueError(
                f"batch must be 1 or more and workers 0 or more, not {self.batch} and "
                f"{self.workers}"
            )
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError('device "cuda" needs a CUDA GPU; choose cpu or auto')

    @property
    def torch_device(self) -> torch.device:
        """Where encoders compute."""
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        return torch.device("cuda" if cuda else "cpu")


class GraphEncoder(nn.Module):
    """A frozen image encoder in onnxruntime, which on CPUs is faster than torch.

    Args:
        encoder: pixels (B, 3, S, S) to features (B, N, d); put in eval mode.
        side: S.
    """

    def __init__(self, encoder: nn.Module, side: int) -> None:
        super().__init__()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracing exporter is deprecated
            graph = Path(folder) / "encoder.onnx"
            torch.onnx.export(
                encoder.eval(),
                (torch.zeros(2, 3, side, side),),
                graph,
                input_names=["pixels"],
                dynamic_axes={"pixels": {0: "B"}},
                dynamo=False,
            )
            options = ort.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            self.session = ort.InferenceSession(graph, options, ["CPUExecutionProvider"])

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> features (B, N, d), float32."""
        return torch.from_numpy(self.session.run(None, {"pixels": pixels.numpy()})[0])


def extract(
    encoder: nn.Module,
    preprocess: Preprocess,
    images: Sequence[Image.Image],
    path: Path,
    how: Extraction,
    title: str = "features",
) -> None:
    """Makes a file of features, or continues one.

    Of several processes that need the same file, one makes it, and the others wait.

    Args:
        encoder: pixels (B, 3, S, S) to features (B, n, d), in eval mode, on `how`'s device.
        preprocess: how images become pixels.
        images: N images; `ImageFiles` names damaged ones.
        path: the file to make, (N, n, d) float16; the unfinished file lies beside it. Without the
            rows of damaged images, if they are skipped: see `skipped_rows`.
        how: batch size, threads, device, and whether damaged images are skipped.
        title: of the progress bar.

    Raises:
        ValueError: images are damaged (all are read first, and named), there is none, or features
            are not finite.
        OSError: the disk is too small.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock.partial")
    with FileLock(lock):
        if not path.is_file():
            _extract(encoder, preprocess, images, path, how, title)
    lock.unlink(missing_ok=True)


def skipped_rows(path: Path) -> list[int]:
    """The rows that `extract` left out of a file of features."""
    about = path.with_suffix(".json")
    if not about.is_file():
        return []
    return json.loads(about.read_text("utf-8"))["skipped"]


def _extract(
    encoder: nn.Module,
    preprocess: Preprocess,
    images: Sequence[Image.Image],
    path: Path,
    how: Extraction,
    title: str,
) -> None:
    unfinished, total = path.with_name(f".{path.name}.unfinished.partial"), len(images)
    out = np.load(unfinished, mmap_mode="r+") if unfinished.is_file() else None
    missing = range(total) if out is None else np.flatnonzero(np.isnan(out[:, 0, 0])).tolist()
    if how.torch_device.type == "cpu" and len(missing) >= WORTH_A_GRAPH:
        encoder = GraphEncoder(encoder, preprocess.size)
    damaged: dict[int, str] = {}
    with tqdm(total=total, initial=total - len(missing), desc=title, mininterval=1) as bar:
        for row_batch, squares in _decoded(images, preprocess, missing, how):
            pairs = list(zip(row_batch, squares, strict=True))
            damaged |= {row: square for row, square in pairs if isinstance(square, str)}
            rows = [row for row in row_batch if row not in damaged]
            if rows:
                readable = [square for square in squares if not isinstance(square, str)]
                features = _encode(encoder, preprocess, readable, how.torch_device)  # (b, n, d)
                if out is None:
                    out = _allocate(unfinished, (total, *features.shape[1:]))
                done = features[:, 0, 0].copy()
                features[:, 0, 0] = np.nan
                out[rows] = features
                out[rows, 0, 0] = done  # last, as it marks the rows as done
            bar.update(len(row_batch))
    if damaged and not (how.skip_damaged and out is not None):
        raise ValueError(_damage(list(damaged.values()), total))
    if out is None:
        raise ValueError(f"there are no images to make {path} from")
    if damaged:
        _write_without(out, sorted(damaged), path)
    else:
        path.with_suffix(".json").unlink(missing_ok=True)
        out.flush()
        unfinished.replace(path)
    unfinished.unlink(missing_ok=True)


def _decoded(
    images: Sequence[Image.Image], preprocess: Preprocess, rows: Sequence[int], how: Extraction
) -> Iterator[tuple[Sequence[int], list[np.ndarray | str]]]:
    """Batches of rows and their squares (S, S, 3) uint8, or the reason why there is none."""

    def square(row: int) -> np.ndarray | str:
        try:
            return np.asarray(preprocess.square(images[row]), np.uint8)
        except (OSError, ValueError) as error:
            return str(error)

    queue = deque[tuple[Sequence[int], list[Future[Any]]]]()
    with ThreadPoolExecutor(how.workers or os.cpu_count()) as pool:
        for start in range(0, len(rows), how.batch):
            batch = rows[start : start + how.batch]
            queue.append((batch, [pool.submit(square, row) for row in batch]))
            while len(queue) > _BATCHES_AHEAD or (queue and start + how.batch >= len(rows)):
                first, futures = queue.popleft()
                yield first, [future.result() for future in futures]


@torch.inference_mode()
def _encode(
    encoder: nn.Module, preprocess: Preprocess, squares: list[np.ndarray], device: torch.device
) -> np.ndarray:
    """Features (B, n, d) float16 of B squares (S, S, 3) uint8."""
    pixels = torch.from_numpy(preprocess.planes(np.stack(squares)))
    features: np.ndarray = encoder(pixels.to(device)).half().cpu().numpy()
    if not np.isfinite(features).all():
        raise ValueError(
            "the image encoder gives features that are not finite in half precision; its weights "
            "are damaged, or it needs another preprocessing"
        )
    return features


def _allocate(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A new file of features in which no row is done."""
    size, free = 2 * int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if size > free:
        raise OSError(
            f"the features need {size / 1e9:.1f} GB, but {path.parent} has only {free / 1e9:.1f} "
            "GB left; make room or choose another --cache"
        )
    with replacing(path) as draft:
        open_memmap(draft, "w+", np.float16, shape)[:, 0, 0] = np.nan
    return np.load(path, mmap_mode="r+")


def _write_without(features: np.ndarray, rows: list[int], path: Path) -> None:
    """Copies the features without some rows into `path`, and notes the rows beside it."""
    complete = np.delete(np.arange(len(features)), rows)
    with replacing(path) as draft:
        out = open_memmap(draft, "w+", np.float16, (len(complete), *features.shape[1:]))
        for start in range(0, len(complete), 256):
            out[start : start + 256] = features[complete[start : start + 256]]
        out.flush()
        about = {"images": len(complete), "skipped": rows}
        write_whole(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")


def _damage(reasons: list[str], total: int) -> str:
    """The sentence that names damaged images."""
    lines = "".join(f"\n  {reason}" for reason in reasons[:_MAX_NAMED])
    more = f"\n  and {len(reasons) - _MAX_NAMED} more" if len(reasons) > _MAX_NAMED else ""
    return (
        f"{len(reasons)} of {total} images cannot be read:{lines}{more}\n"
        "replace them and run again (only they will be read), or leave them out with --skip-damaged"
    )
