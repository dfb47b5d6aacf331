"""Computes and caches the features of frozen image encoders.

An encoder encodes each image once. Threads decode images ahead of the encoder (Pillow releases the
GIL while decoding). Feature files are written atomically.
"""

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from polyview.export.encoders.sources import describe_image_source, load_image_source
from polyview.models.encoders import IMAGE_ENCODERS
from polyview.models.files import atomic_write, not_found_error, replacing
from polyview.models.preprocess import Preprocess
from polyview.training.data.image_files import ImageFiles, crops, find_damaged, prefetch, thread_map
from polyview.training.data.split import Copies, Split

CACHE = Path("data/cache")
MIN_GRAPH_IMAGES = 200  # for fewer images, the export to ONNX takes longer than it saves
_BATCH_SIZE = 64  # images
_MAX_NAMED = 10  # maximum number of damaged images named in an error
_LOCAL_FOLDERS = ("runs", "data")  # folders of runs and downloaded encoders, not owners on the Hub
_COMMANDS = {  # folder -> command that creates it
    "runs/backbone": "pretrain --recipe scenes/backbone",
    "runs/photo_backbone": "distill --recipe flickr8k/backbone",
    "runs/photos_backbone_first": "distill --recipe photos/backbone_first",
    "runs/photos_backbone": "distill --recipe photos/backbone",
}


@dataclass(frozen=True)
class Extraction:
    """Settings for computing and caching features.

    Attributes:
        cache: folder for features of photographs and texts; scenes hold their own image features.
        device: "cuda", "cpu" or "auto".
        skip_damaged: leave out photographs that cannot be read instead of raising an error.
    """

    cache: Path = CACHE
    device: str = "auto"
    skip_damaged: bool = False

    @property
    def torch_device(self) -> torch.device:
        """The device that encoders run on; raises ValueError if it is not available."""
        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise ValueError('device "cuda" needs a CUDA GPU; choose cpu or auto')
        return torch.device("cuda" if has_cuda and self.device != "cpu" else "cpu")


def read_features(
    split: Split, backbone: str | Path, extraction: Extraction | None = None, copies: int = 1
) -> Split:
    """Adds the features of a frozen image encoder to a split that has none.

    `backbone` is the source of the encoder (`export/encoders/`), which is loaded only if features
    are not cached. `copies` is the number of versions of each photograph: the photograph and random
    crops. The features (N_img, N, d) are float16 and memory-mapped. Raises FileNotFoundError if the
    encoder is missing, and ValueError if images are damaged or their number has changed.
    """
    if len(split.features):
        return split
    refuse_missing(backbone, "backbone")
    extraction = extraction or Extraction()
    summary_token = IMAGE_ENCODERS[describe_image_source(backbone)["arch"]].summary_token
    versions = []
    for copy in range(copies):
        path = feature_file(split, backbone, extraction, copy)
        if not path.is_file():
            images = crops(split.images, copy) if copy else split.images
            encoder, preprocess, _ = load_image_source(backbone, extraction.torch_device)
            extract(encoder, preprocess, images, path, extraction.torch_device)
        array = np.load(path, mmap_mode="r")  # (images, N, d)
        if len(array) != len(split.images) and isinstance(split.images, ImageFiles):
            counts = f"{len(array):,} images instead of {len(split.images):,}"
            raise ValueError(f"{path} has features of {counts}; delete it to compute them again")
        size = split.frames * array.shape[1]  # a clip has the features of all its frames
        versions.append(array.reshape(-1, size, array.shape[2]))
    features = Copies(versions) if copies > 1 else versions[0]
    return replace(split, features=features, summary_token=summary_token)


def feature_file(split: Split, backbone: str | Path, extraction: Extraction, copy: int = 0) -> Path:
    """Returns the path of the features of a split's images (`copy` 0) or of random crops of them.

    The file name includes a checksum of the encoder (weights, sizes and preprocessing) and, for
    photographs, of the names of the files.
    """
    sha256 = describe_image_source(backbone)["sha256"]
    if not isinstance(split.images, ImageFiles):
        return split.folder / f"features-{sha256[:12]}.npy"
    return _cache_file(split, sha256, extraction, f"-copy{copy}.npy" if copy else ".npy")


def _cache_file(split: Split, sha256: str, extraction: Extraction, end: str) -> Path:
    """Returns a cache path ending in `end`, with a checksum of `sha256` and the file names."""
    assert isinstance(split.images, ImageFiles)
    key_values = [sha256, [path.name for path in split.images.paths]]
    key = hashlib.sha256(json.dumps(key_values).encode()).hexdigest()[:12]
    return extraction.cache / split.folder.parent.resolve().name / f"{split.folder.name}-{key}{end}"


def drop_damaged(split: Split, extraction: Extraction) -> Split:
    """Removes photographs that the cache lists as damaged; raises ValueError if none is left.

    If there is no list and `extraction.skip_damaged` is set, first lists the damaged photographs.
    """
    if not isinstance(split.images, ImageFiles):
        return split
    path = _cache_file(split, "", extraction, "-damaged.json")
    if extraction.skip_damaged and not path.is_file():
        atomic_write(path, json.dumps(sorted(find_damaged(split.images))))
    if not path.is_file():
        return split
    damaged_rows = json.loads(path.read_text("utf-8"))
    if len(damaged_rows) == len(split.images):
        advice = f"replace the photographs and delete {path}"
        raise ValueError(f"no photograph of {split.folder} can be read; {advice}")
    return split.select_photographs(np.delete(np.arange(len(split.images)), damaged_rows))


def refuse_missing(source: str | Path, setting: str) -> None:
    """Raises FileNotFoundError for a missing source below `runs/` or `data/`.

    Without this check, the source would be requested from the Hub. The message has the command that
    creates the folder, or the closest existing name, and the setting to change.
    """
    name = str(source).partition("#")[0]  # without the suffix "#projected" or "#frame"
    folder = Path(name)
    if not folder.parts or folder.parts[0] not in _LOCAL_FOLDERS or folder.is_dir():
        return
    if name in _COMMANDS:
        command = f"python -m polyview {_COMMANDS[name]} --out {name}"
        advice = f"make it with {command}, or change {setting}"
        raise FileNotFoundError(f"there is no folder {name}; {advice}")
    advice = f"see docs/your-data.md, or set {setting} to a run, Hugging Face folder or Hub id"
    raise not_found_error("folder", folder, advice)


def _compile_with_onnx(encoder: nn.Module, side: int) -> Callable[[Tensor], Tensor]:
    """Returns a function that runs the encoder in onnxruntime, which is faster on a CPU."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing exporter is deprecated
        graph = Path(folder) / "encoder.onnx"
        sample = (torch.zeros(2, 3, side, side),)
        options: dict[str, Any] = {"input_names": ["pixels"], "dynamic_axes": {"pixels": {0: "B"}}}
        torch.onnx.export(encoder.eval(), sample, graph, **options, dynamo=False)
        session_options = ort.SessionOptions()
        session_options.intra_op_num_threads = torch.get_num_threads()
        session = ort.InferenceSession(graph, session_options, ["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])


@torch.inference_mode()
def extract(
    encoder: nn.Module,
    preprocess: Preprocess,
    images: Sequence[Image.Image],
    path: Path,
    device: torch.device,
) -> None:
    """Atomically writes the features (N_img, N, d) float16 of images to a file.

    `encoder` is in eval mode on `device`. It maps pixels (B, 3, S, S) to features (B, N, d). If
    several processes need the same file, one writes it and the others wait. Raises ValueError if
    features are not finite or images are damaged; the message names damaged images. Raises
    DiskFullError if the disk has no space left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock.partial")
    with FileLock(lock):
        if not path.is_file():
            encode: Callable[[Tensor], Tensor] = encoder
            if device.type == "cpu" and len(images) >= MIN_GRAPH_IMAGES:
                encode = _compile_with_onnx(encoder, preprocess.size)
            with replacing(path) as draft, draft.open("wb") as file:
                for pixels in _decode(images, preprocess, f"features, {path.name}"):
                    features = encode(pixels.to(device)).half().cpu().numpy()  # (B, N, d)
                    if not np.isfinite(features).all():
                        raise ValueError(
                            "the image encoder gives features that are not finite in half "
                            "precision; its weights are damaged, or it needs other preprocessing"
                        )
                    if not file.tell():  # the first batch shows the shape of the features
                        shape = (len(images), *features.shape[1:])
                        header = {"descr": "<f2", "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_1_0(file, header)
                    file.write(features.tobytes())
    lock.unlink(missing_ok=True)


def _decode(images: Sequence[Image.Image], preprocess: Preprocess, title: str) -> Iterator[Tensor]:
    """Yields batches of pixels (B, 3, S, S); raises ValueError at the end if images are damaged."""

    def read_square(row: int) -> np.ndarray | str:
        """Returns the pixels of an image, or the reason why it cannot be read."""
        try:
            return np.asarray(preprocess.square(images[row]), np.uint8)
        except (OSError, ValueError) as error:
            return str(error)

    starts, reasons = range(0, len(images), _BATCH_SIZE), list[str]()
    batches = (thread_map(read_square, range(n, min(n + _BATCH_SIZE, len(images)))) for n in starts)
    with tqdm(total=len(images), desc=title, mininterval=1) as bar:
        for batch in prefetch(batches):
            bar.update(len(batch))
            reasons += [result for result in batch if isinstance(result, str)]
            if not reasons:
                yield torch.from_numpy(preprocess.planes(np.stack(batch)))
    if reasons:
        lines = "".join(f"\n  {reason}" for reason in reasons[:_MAX_NAMED])
        omitted = f"\n  and {len(reasons) - _MAX_NAMED} more" if len(reasons) > _MAX_NAMED else ""
        listing = f"{len(reasons)} of {len(images)} images cannot be read:{lines}{omitted}"
        advice = "replace them, or remove the files and their captions"
        raise ValueError(f"{listing}\n{advice}; only train can skip them, with --skip-damaged")
