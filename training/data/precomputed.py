"""Ready-made region features with captions, in the common layout.

Flickr30K and COCO are trained on the features that SCAN's authors published (Lee et al., ECCV 2018;
the footnote of AVSE, section 4.2, names them): a folder with, for each of `train`, `dev` (or
`val`), `test` and, for the 5,000 test images of COCO, `testall`,

    <part>_ims.npy     float (rows, 36, 2048); one row, or five equal rows, for each image
    <part>_caps.txt    one caption on each line, grouped by image
    <part>_boxes.npy   optional: float (rows, 36, 4), relative xyxy

Some published folders have five equal rows for each image, one for each caption; every fifth is
read. Features are memory-mapped.
"""

from pathlib import Path

import numpy as np

from polyview.training.data.split import Split, load_array

PARTS = {"train": ("train",), "val": ("dev", "val"), "test": ("test",)}
REPEATED = 5


def is_precomputed(folder: Path) -> bool:
    """Whether a folder holds features in this layout."""
    return any(folder.glob("*_ims.npy"))


def open_regions(folder: Path, name: str) -> Split:
    """Features and captions of a split: "train", "val", "test", or another part such as "testall".

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: features, captions and boxes disagree.
    """
    parts = PARTS.get(name, (name,))
    part = next((part for part in parts if (folder / f"{part}_ims.npy").is_file()), None)
    if part is None:
        files = " or ".join(f"{part}_ims.npy" for part in parts)
        raise FileNotFoundError(f'{folder} has no features of the split "{name}": no {files}')
    rows = load_array(folder / f"{part}_ims.npy", 3, "images, regions, numbers")  # (rows, n, d)
    captions, boxes = _captions(folder / f"{part}_caps.txt"), None
    if (path := folder / f"{part}_boxes.npy").is_file():
        boxes = _boxes(path, (*rows.shape[:2], 4))
    first = rows[: 4 * REPEATED]
    equal = [np.array_equal(row, first[i - i % REPEATED]) for i, row in enumerate(first)]
    if len(rows) == len(captions) and len(rows) % REPEATED == 0 and all(equal):
        rows, boxes = rows[::REPEATED], None if boxes is None else boxes[::REPEATED]
    if len(captions) % len(rows):
        raise ValueError(
            f"the captions of {folder / part}_caps.txt do not divide evenly: there are "
            f"{len(rows)} images and {len(captions)} captions; fetch the files again"
        )
    image_of = np.repeat(np.arange(len(rows)), len(captions) // len(rows))
    return Split(captions, image_of, features=rows, boxes=boxes, folder=folder / name)


def _captions(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}, the captions of the features beside it")
    lines = path.read_text("utf-8").splitlines() or [""]
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None:
        raise ValueError(f"{path}: line {empty} is empty; every line must be a caption")
    return lines


def _boxes(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    boxes = load_array(path, 3, "images, regions, 4")
    if boxes.shape != shape:
        raise ValueError(f"{path} must hold a box for each region, {shape}, not {boxes.shape}")
    low, high = float(boxes.min()), float(boxes.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"{path}: boxes must be relative xyxy, 0 to 1, but reach from {low:g} to {high:g}; "
            "divide them by the width and height of their image"
        )
    return boxes
