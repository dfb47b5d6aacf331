"""Ready-made region features with captions, in the layout that the field shares.

Flickr30K and COCO are trained on the features that SCAN's authors published (Lee et al., ECCV 2018;
the footnote of AVSE, section 4.2, names them): a folder with, for each of `train`, `dev` and
`test`, `<part>_ims.npy`, float (images, 36, 2048), and `<part>_caps.txt`, one caption a line, the
captions of an image one after the other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

PARTS = {"train": "train", "val": "dev", "test": "test"}


def is_precomputed(folder: Path) -> bool:
    """Whether a folder holds features in this layout."""
    return (folder / "train_ims.npy").is_file()


def load_precomputed(
    folder: Path, split: str, limit: int = 0
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Features and captions of a split.

    Args:
        folder: see above.
        split: "train", "val" or "test".
        limit: use only the first so many images; 0 for all.

    Returns:
        (N_img, n, d) memory-mapped features, N_txt captions and (N_txt,) the row of each caption's
        image.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the captions do not divide evenly among the images.
    """
    part = PARTS[split]
    features: np.ndarray = np.load(folder / f"{part}_ims.npy", mmap_mode="r")
    captions = (folder / f"{part}_caps.txt").read_text("utf-8").splitlines()
    images = len(features)
    if not captions or len(captions) % images:
        raise ValueError(
            f"{folder / part}_caps.txt holds {len(captions)} captions, which do not divide evenly "
            f"among the {images} images of {part}_ims.npy; fetch both files again"
        )
    each = len(captions) // images
    used = min(limit or images, images)
    return features[:used], captions[: used * each], np.repeat(np.arange(used), each)
