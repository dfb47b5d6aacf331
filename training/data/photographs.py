"""Photographs with captions: a folder, its captions file, its images.

The captions are one file in any form of `training/data/captions_file.py`, among them the splits
that Karpathy and Fei-Fei (CVPR 2015) made of Flickr8k, Flickr30K and COCO. The image files lie in
`images/` (those of COCO in images/train2014 and images/val2014), or beside the captions file where
there is no such folder.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from training.data.captions_file import Captioned, find_captions, read_captions
from training.data.image_files import ImageFiles
from training.data.split import Split

IMAGES = "images"
EVALUATED_CAPTIONS = 5  # a few photographs of COCO have six or seven; the field measures the first
_MAX_NAMED = 3  # missing files named in an error


def open_photographs(data: Path, name: str) -> Split:
    """Opens a split.

    For evaluation ("val" and "test") the first five captions of a photograph count, for training
    all of them.

    Args:
        data: folder with a captions file, or that file.
        name: "train", "val" or "test".

    Returns:
        The split; its `images` are `ImageFiles`, all of which exist.

    Raises:
        FileNotFoundError: there is no captions file, or image files are missing.
        ValueError: the captions file is damaged, lacks the split, or holds an image without any.
    """
    path, listed = _read(data)
    chosen = [image for image in listed if image.split == name]
    if not chosen:
        sizes = Counter(str(image.split) for image in listed)
        counts = ", ".join(f"{part} ({count})" for part, count in sorted(sizes.items()))
        raise ValueError(
            f'{path} has no photographs in the split "{name}"; it has {counts or "none at all"}'
        )
    limit = None if name == "train" else EVALUATED_CAPTIONS
    captions = [image.captions[:limit] for image in chosen]
    return Split(
        [text for texts in captions for text in texts],
        np.repeat(np.arange(len(chosen)), [len(texts) for texts in captions]),
        ImageFiles(_paths(path, chosen)),
        folder=path.parent / name,
    )


def uncaptioned(data: Path) -> list[Path]:
    """The images in a folder that its captions file does not list, sorted by name.

    Raises:
        FileNotFoundError, ValueError: see `open_photographs`.
    """
    path, images = _read(data)
    listed = {path, *_paths(path, images)}
    return sorted(file for file in _root(path).iterdir() if file.is_file() and file not in listed)


def _read(data: Path) -> tuple[Path, list[Captioned]]:
    path = find_captions(data)
    if path is None:
        raise FileNotFoundError(
            f"{data} holds no file of captions (.csv with the columns file and caption, .jsonl or "
            ".json, see training/data/captions_file.py)"
        )
    return path, read_captions(path)


def _root(path: Path) -> Path:
    """The folder of the images of a captions file."""
    folder = path.parent / IMAGES
    return folder if folder.is_dir() else path.parent


def _paths(path: Path, images: list[Captioned]) -> list[Path]:
    """The photographs' files, all of which must exist."""
    paths = [_root(path) / image.file for image in images]
    # listing a folder once is far cheaper than asking for each of 100,000 files
    folders = {file.parent for file in paths}
    existing = {file for parent in folders if parent.is_dir() for file in parent.iterdir()}
    missing = [str(file.relative_to(path.parent)) for file in paths if file not in existing]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        raise FileNotFoundError(
            f"{len(missing)} of the {len(paths)} photographs that {path} lists are missing: "
            f"{', '.join(missing[:_MAX_NAMED])}{more}; put the image files into "
            f"{path.parent / IMAGES}"
        )
    return paths
