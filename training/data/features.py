"""An image encoder's side of a split: features that are cached, or pixels where it is trained.

A frozen image encoder reads every image once. Threads decode images ahead of it (Pillow releases
the GIL as it decodes). Features go into a memory-mapped file as they are made; a row whose first
number is NaN is not done yet, so that an extraction that was interrupted, even by `kill -9`,
continues with those rows.
"""

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
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

from export.encoders.sources import describe_image_source, load_image_source
from models.encoders import IMAGE_ENCODERS
from models.encoders.encoder import ImageEncoder
from models.files import no_such, replacing, write_whole
from models.preprocess import Preprocess
from training.data.image_files import ImageFiles, crops
from training.data.open_split import open_split, open_training
from training.data.split import Copies, Pixels, Split

CACHE = Path("data/cache")
WORTH_A_GRAPH = 200  # images; building an ONNX graph takes some seconds
_BATCH, _BATCHES_AHEAD = 32, 3  # images; decoded while the encoder works
_MAX_NAMED = 10  # damaged images named in an error
_LOCAL = ("runs", "data")  # folders of trainings and fetched encoders; never a Hub owner
_MADE_BY = {
    "runs/backbone": "training.pretrain --recipe scenes/backbone",
    "runs/photo_backbone": "training.distill --recipe flickr8k/backbone",
    "runs/photos_backbone_first": "training.distill --recipe photos/backbone_first",
    "runs/photos_backbone": "training.distill --recipe photos/backbone",
}


@dataclass(frozen=True)
class Extraction:
    """How features are made where they are not cached yet.

    Attributes:
        cache: folder for the features of photographs; those of scenes lie beside the scenes.
        device: "cuda", "cpu" or "auto".
        skip_damaged: leave out photographs that cannot be read, instead of refusing.
    """

    cache: Path = CACHE
    device: str = "auto"
    skip_damaged: bool = False

    @property
    def torch_device(self) -> torch.device:
        """Where encoders compute; raises ValueError where there is no such device."""
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise ValueError('device "cuda" needs a CUDA GPU; choose cpu or auto')
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")


@dataclass(frozen=True)
class ImageSide:
    """What a training needs to read images.

    Attributes:
        encoder: pixels (B, 3, S, S) to features (B, N, d).
        preprocess: how images become pixels.
        sha256: checksum of the encoder before training.
        about: what export needs to build it.
    """

    encoder: ImageEncoder
    preprocess: Preprocess
    sha256: str
    about: Mapping[str, Any]


def load_image_side(backbone: str | Path) -> ImageSide:
    """The image encoder of a source (`export/encoders/`), with its weights as they are, to train.

    Raises:
        FileNotFoundError, SourceError: see `load_image_source`.
    """
    encoder, preprocess, source = load_image_source(backbone, rounded=False)
    about = {key: source[key] for key in ("arch", "arguments", "preprocess")}
    return ImageSide(encoder, preprocess, source["sha256"], about)


def load_features(
    data: Path,
    name: str,
    backbone: str | Path,
    extraction: Extraction | None = None,
    copies: int = 1,
    also: Sequence[str] = (),
) -> Split:
    """A split with the features of a frozen image encoder; see `read_features`.

    `also` names further folders whose training photographs join those of `data`: `open_training`.
    """
    split = open_training(data, also) if name == "train" else open_split(data, name)
    return read_features(split, backbone, extraction, copies)


def read_features(
    split: Split, backbone: str | Path, extraction: Extraction | None = None, copies: int = 1
) -> Split:
    """A split with the features of a frozen image encoder, which reads every image once.

    Args:
        split: whose images; features that it has already stay.
        backbone: source of the image encoder, see `export/encoders/`; not loaded where the
            features are cached.
        extraction: how features are made, and where those of photographs are cached.
        copies: number of looks at each photograph, the photograph itself among them.

    Returns:
        The split with features (N, n, d) float16, memory-mapped; without damaged photographs, if
        those are skipped.

    Raises:
        ValueError: photographs are damaged (the message names them), or there is nothing to crop.
    """
    check_images(split, copies)
    if len(split.features):
        return split
    refuse_missing(backbone, "backbone")
    how, about = extraction or Extraction(), describe_image_source(backbone)
    parts = []
    for copy in range(copies):
        path = feature_file(split, backbone, how, copy)
        if not path.is_file():
            images = crops(split.images, copy) if copy else split.images
            encoder, preprocess, _ = load_image_source(backbone, how.torch_device)
            title = f"features of {'/'.join(split.folder.parts[-2:])}"
            extract(encoder, preprocess, images, path, how, title)
        made = np.load(path, mmap_mode="r")  # (images, n, d)
        parts.append(made.reshape(-1, split.frames * made.shape[1], made.shape[2]))
    features = Copies(parts) if copies > 1 else parts[0]
    summary = IMAGE_ENCODERS[about["arch"]].summary_token
    note = feature_file(split, backbone, how).with_suffix(".json")
    if note.is_file():
        split = _without(split, json.loads(note.read_text("utf-8"))["skipped"])
    return replace(split, features=features, summary_token=summary)


def read_pixels(split: Split, side: ImageSide) -> Split:
    """A split whose features are its images, for an image encoder that is trained along.

    Raises:
        ValueError: it holds features, no images.
    """
    check_images(split, trained=True)
    pixels = Pixels(split.images, side.preprocess)
    return replace(split, features=pixels, summary_token=side.encoder.summary_token)


def check_images(split: Split, copies: int = 1, *, trained: bool = False) -> None:
    """Raises ValueError where there are no photographs to crop, or no images to train on."""
    data = split.folder.parent
    if copies > 1 and not isinstance(split.images, ImageFiles):
        raise ValueError(
            f"feature_copies={copies} crops photographs, and {data} holds none; leave it at 1"
        )
    if trained and not len(split.images):
        raise ValueError(
            f"{data} holds ready-made features, with which no image encoder can be trained; set "
            "backbone_frozen=true, or name a folder with images"
        )


def feature_file(split: Split, backbone: str | Path, extraction: Extraction, copy: int = 0) -> Path:
    """The file of a split's features.

    It is named after the encoder's checksum, which changes with its weights, sizes and
    preprocessing; and, for photographs, after the list of their files.

    Args:
        split: rendered scenes, whose features lie beside them, or photographs.
        backbone: source of the image encoder.
        extraction: says where the cache is.
        copy: 0 for the images as they are, else the number of its `crops`.
    """
    sha256 = describe_image_source(backbone)["sha256"]
    if not isinstance(split.images, ImageFiles):
        return split.folder / f"features-{sha256[:12]}.npy"
    listed = [sha256, [path.name for path in split.images.paths]]
    key = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]
    which = f"-copy{copy}" if copy else ""
    folder = split.folder.parent.resolve().name
    return extraction.cache / folder / f"{split.folder.name}-{key}{which}.npy"


def _without(split: Split, rows: list[int]) -> Split:
    """The split without the captions of some images, whose rows the others close up to."""
    present = ~np.isin(split.image_of, rows)  # (N_txt,)
    captions = [text for text, stays in zip(split.captions, present, strict=True) if stays]
    image_of = split.image_of[present]
    return replace(split, captions=captions, image_of=image_of - np.searchsorted(rows, image_of))


def refuse_missing(source: str | Path, setting: str) -> None:
    """Refuses a source below `runs/` or `data/` that does not exist, before anyone asks the Hub.

    Args:
        source: as a recipe or an option names it, see `export/encoders/`.
        setting: whose value it is: "backbone", or another setting.

    Raises:
        FileNotFoundError: with the command that makes the folder, or the nearest existing name.
    """
    name = str(source).partition("#")[0]
    folder = Path(name)
    if folder.parts[:1] not in [(part,) for part in _LOCAL] or folder.is_dir():
        return
    option = f"--set {setting}=..."
    if name in _MADE_BY:
        raise FileNotFoundError(
            f"there is no folder {name}; make it with python -m {_MADE_BY[name]} --out {name}, or "
            f"name another one with {option}"
        )
    advice = (
        f"see docs/your-data.md, or name a run, a Hugging Face folder or a Hub id with {option}"
    )
    raise FileNotFoundError(no_such("folder", folder, advice))


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
            graph, pixels = Path(folder) / "encoder.onnx", (torch.zeros(2, 3, side, side),)
            options: dict[str, Any] = {"input_names": ["pixels"], "dynamo": False}
            options["dynamic_axes"] = {"pixels": {0: "B"}}
            torch.onnx.export(encoder.eval(), pixels, graph, **options)
            session = ort.SessionOptions()
            session.intra_op_num_threads = torch.get_num_threads()
            self.session = ort.InferenceSession(graph, session, ["CPUExecutionProvider"])

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
        path: the file to make, (N, n, d) float16; the unfinished file lies beside it. Damaged
            images that are skipped have no rows; a JSON file beside it lists them.
        how: device, and whether damaged images are skipped.
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
        for rows, squares in _decoded(images, preprocess, missing):
            pairs = list(zip(rows, squares, strict=True))
            damaged |= {row: square for row, square in pairs if isinstance(square, str)}
            whole = {row: square for row, square in pairs if not isinstance(square, str)}
            if whole:
                planes = preprocess.planes(np.stack(list(whole.values())))
                features = _encode(encoder, torch.from_numpy(planes).to(how.torch_device))
                if out is None:
                    out = _allocate(unfinished, (total, *features.shape[1:]))
                done = features[:, 0, 0].copy()
                features[:, 0, 0] = np.nan
                out[list(whole)] = features
                out[list(whole), 0, 0] = done  # last, as it marks the rows as done
            bar.update(len(rows))
    if damaged and not (how.skip_damaged and out is not None):
        lines = [f"\n  {reason}" for reason in list(damaged.values())[:_MAX_NAMED]]
        more = f"\n  and {len(damaged) - _MAX_NAMED} more" if len(damaged) > _MAX_NAMED else ""
        raise ValueError(
            f"{len(damaged)} of {total} images cannot be read:{''.join(lines)}{more}\nreplace them "
            "and run again (only they will be read), or leave them out with --skip-damaged"
        )
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
    images: Sequence[Image.Image], preprocess: Preprocess, rows: Sequence[int]
) -> Iterator[tuple[Sequence[int], list[np.ndarray | str]]]:
    """Batches of rows and their squares (S, S, 3) uint8, or the reason why there is none."""

    def square(row: int) -> np.ndarray | str:
        try:
            return np.asarray(preprocess.square(images[row]), np.uint8)
        except (OSError, ValueError) as error:
            return str(error)

    queue = deque[tuple[Sequence[int], list[Future[Any]]]]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            queue.append((batch, [pool.submit(square, row) for row in batch]))
            while len(queue) > _BATCHES_AHEAD or (queue and start + _BATCH >= len(rows)):
                first, futures = queue.popleft()
                yield first, [future.result() for future in futures]


@torch.inference_mode()
def _encode(encoder: nn.Module, pixels: Tensor) -> np.ndarray:
    """Features (B, n, d) float16 of pixels (B, 3, S, S)."""
    features: np.ndarray = encoder(pixels).half().cpu().numpy()
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
