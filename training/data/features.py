"""An image encoder's side of a split: features that are cached, or pixels where it is trained."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from export.encoders.sources import describe_image_source, load_image_source
from models.encoders import IMAGE_ENCODERS
from models.encoders.encoder import ImageEncoder
from models.files import no_such
from models.preprocess import Preprocess
from training.data.extraction import Extraction, extract, skipped_rows
from training.data.image_files import ImageFiles, crops
from training.data.open_split import open_split, open_training
from training.data.split import Copies, Pixels, Split

LOCAL = ("runs", "data")  # folders of trainings and fetched encoders; never a Hub owner
_MADE_BY = {
    "runs/backbone": "training.pretrain --recipe scenes/backbone",
    "runs/photo_backbone": "training.distill --recipe flickr8k/backbone",
    "runs/photos_backbone_first": "training.distill --recipe photos/backbone_first",
    "runs/photos_backbone": "training.distill --recipe photos/backbone",
}


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
    """The image encoder of a source, with its weights as they are, to be trained.

    Args:
        backbone: see `export/encoders/`.

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
    refuse_crops(split, copies)
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
    split = _without(split, skipped_rows(feature_file(split, backbone, how)))
    return replace(split, features=features, summary_token=summary)


def refuse_crops(split: Split, copies: int) -> None:
    """Raises ValueError where there are no photographs to crop."""
    if copies > 1 and not isinstance(split.images, ImageFiles):
        raise ValueError(
            f"feature_copies={copies} crops photographs, and {split.folder.parent} holds none; "
            "leave it at 1"
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


def refuse_features(split: Split) -> None:
    """Raises ValueError where there are no images for an encoder that is trained along."""
    if not len(split.images):
        raise ValueError(
            f"{split.folder.parent} holds ready-made features, with which no image encoder can be "
            "trained; set backbone_frozen=true, or name a folder with images"
        )


def read_pixels(split: Split, side: ImageSide) -> Split:
    """A split whose features are its images, for an image encoder that is trained along.

    Raises:
        ValueError: it holds features, no images.
    """
    refuse_features(split)
    pixels = Pixels(split.images, side.preprocess)
    return replace(split, features=pixels, summary_token=side.encoder.summary_token)


def _without(split: Split, rows: list[int]) -> Split:
    """The split without the captions of some images, whose rows the others close up to."""
    if not rows:
        return split
    present = ~np.isin(split.image_of, rows)  # (N_txt,)
    captions = [text for text, stays in zip(split.captions, present, strict=True) if stays]
    image_of = split.image_of[present]
    return replace(split, captions=captions, image_of=image_of - np.searchsorted(rows, image_of))


def refuse_missing(source: str | Path, setting: str) -> None:
    """Refuses a source below `runs/` or `data/` that does not exist, before anyone asks the Hub.

    Args:
        source: as a recipe or an option names it, see `export/encoders/`.
        setting: whose value it is: "backbone", or an option such as "--pack".

    Raises:
        FileNotFoundError: with the command that makes the folder, or the nearest existing name.
    """
    name = str(source).partition("#")[0]
    folder = Path(name)
    if folder.parts[:1] not in [(part,) for part in LOCAL] or folder.is_dir():
        return
    option = setting if setting.startswith("--") else f"--set {setting}=..."
    if name in _MADE_BY:
        command = f"python -m {_MADE_BY[name]} --out {name}"
        raise FileNotFoundError(
            f"there is no folder {name}; make it with {command}, or name another one with {option}"
        )
    advice = (
        f"see docs/photographs.md, or name a run, a Hugging Face folder or a Hub id with {option}"
    )
    raise FileNotFoundError(no_such("folder", folder, advice))
