"""Ready-made region features with captions, in the common layout.

Flickr30K and COCO are trained on the features that SCAN's authors published (Lee et al., ECCV 2018;
the footnote of AVSE, section 4.2, names them): a folder with, for each of `train`, `dev` (or
`val`), `test` and, for the 5,000 test images of COCO, `testall`,

    <part>_ims.npy     float (rows, 36, 2048); one row, or five equal rows, for each image
    <part>_caps.txt    one caption on each line, grouped by image
    <part>_ids.txt     optional: a number for each row or caption, equal for the same image
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
        ValueError: features, captions, ids and boxes disagree.
    """
    parts = PARTS.get(name, (name,))
    part = next((part for part in parts if (folder / f"{part}_ims.npy").is_file()), None)
    if part is None:
        files = " or ".join(f"{part}_ims.npy" for part in parts)
        raise FileNotFoundError(f'{folder} has no features of the split "{name}": no {files}')
    rows = load_array(folder / f"{part}_ims.npy", 3, "images, regions, numbers")  # (rows, n, d)
    captions = _captions(folder / f"{part}_caps.txt")
    ids = _numbers(folder / f"{part}_ids.txt")
    step = REPEATED if _is_repeated(rows, len(captions), ids) else 1
    boxes = _boxes(folder / f"{part}_boxes.npy", rows)
    return Split(
        captions,
        _image_of(folder / part, len(rows[::step]), len(captions), ids),
        features=rows[::step],
        boxes=None if boxes is None else boxes[::step],
        folder=folder / name,
    )


def _captions(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}, the captions of the features beside it")
    lines = path.read_text("utf-8").splitlines() or [""]
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None:
        raise ValueError(f"{path}: line {empty} is empty; every line must be a caption")
    return lines


def _numbers(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    try:
        return np.array([int(line) for line in path.read_text("utf-8").split()], np.int64)
    except ValueError as error:
        raise ValueError(f"{path} must hold one whole number a line: {error}") from error


def _is_repeated(rows: np.ndarray, captions: int, ids: np.ndarray | None) -> bool:
    """Whether each image has five rows, judged by ids or else by the first images' features."""
    if len(rows) != captions or len(rows) % REPEATED:
        return False
    if ids is not None and len(ids) == len(rows):
        groups = ids.reshape(-1, REPEATED)
        return bool((groups == groups[:, :1]).all())
    first = rows[: 4 * REPEATED]
    return all(np.array_equal(row, first[i - i % REPEATED]) for i, row in enumerate(first))


def _image_of(name: Path, images: int, captions: int, ids: np.ndarray | None) -> np.ndarray:
    """The image of each caption: by ids if each caption has one, else evenly."""
    facts = f"there are {images} images and {captions} captions; fetch the files again"
    if ids is not None and len(ids) not in (images, captions):
        raise ValueError(f"{name}_ids.txt holds {len(ids)} numbers, but {facts}")
    if ids is not None and len(ids) == captions != images:
        starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
        if len(starts) != images or len(np.unique(ids[starts])) != images:
            raise ValueError(
                f"{name}_ids.txt has {len(np.unique(ids))} different numbers in {len(starts)} runs "
                f"of lines, but {facts}"
            )
        return np.cumsum(np.isin(np.arange(captions), starts)) - 1
    if captions % images:
        raise ValueError(f"the captions of {name}_caps.txt do not divide evenly: {facts}")
    return np.repeat(np.arange(images), captions // images)


def _boxes(path: Path, rows: np.ndarray) -> np.ndarray | None:
    if not path.is_file():
        return None
    boxes, shape = load_array(path, 3, "images, regions, 4"), (*rows.shape[:2], 4)
    if boxes.shape != shape:
        raise ValueError(f"{path} must hold a box for each region, {shape}, not {boxes.shape}")
    low, high = float(boxes.min()), float(boxes.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"{path}: boxes must be relative xyxy, 0 to 1, but reach from {low:g} to {high:g}; "
            "divide them by the width and height of their image"
        )
    return boxes
