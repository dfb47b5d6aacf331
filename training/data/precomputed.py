"""Ready-made region features with captions, in SCAN's layout.

The papers train on features of Flickr30K and COCO that SCAN's authors published (Lee et al., ECCV
2018; named in a footnote of AVSE, section 4.2). A folder holds two or three files for each of
`train`, `dev` (or `val`), `test` and, for the 5,000 test images of COCO, `testall`:

    <name>_ims.npy     float (rows, 36, 2048); one row, or five equal rows, for each image
    <name>_caps.txt    one caption on each line, grouped by image
    <name>_boxes.npy   optional: float (rows, 36, 4), relative xyxy

Of five equal rows only the first is used. Features are memory-mapped.

`python -m polyview region-gallery --data DIR --split test --out runs/gallery`

turns a split into the gallery of a pack without an image encoder. The gallery contains the features
(`export/pack/gallery.py`) and, with `--images DIR --names FILE`, the photographs; FILE lists their
names in the order of the features. Without photographs, each image is a drawing of its boxes.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from polyview.export.pack.gallery import write_regions
from polyview.export.pack.schema import INDEX
from polyview.models.files import replacing_folder
from polyview.models.preprocess import to_rgb
from polyview.training.data.split import Split, load_array
from polyview.training.settings import exit_on_error, positive_int

REPEATS = 5  # number of equal rows of an image in the published files
COUNT = 1000  # default number of images of a gallery
SIDE = 640  # longer side of a stored photograph in pixels
QUALITY = 82  # quality of WebP files
_DRAWING_SIZE = (320, 240)  # width and height of a drawing
_PAPER_COLOR, _INK_COLOR = (243, 243, 240), (70, 78, 96)
_LINE_COLORS = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167))  # Okabe and Ito


def is_precomputed(folder: Path) -> bool:
    """Returns whether a folder holds precomputed region features."""
    return any(folder.glob("*_ims.npy"))


def open_regions(folder: Path, name: str) -> Split:
    """Opens a split: "train", "val", "test", or another name such as "testall".

    Raises FileNotFoundError if a file is missing, and ValueError if files are damaged or disagree.
    """
    prefixes = ("dev", "val") if name == "val" else (name,)
    prefix = next((p for p in prefixes if (folder / f"{p}_ims.npy").is_file()), None)
    if prefix is None:
        files = " or ".join(f"{p}_ims.npy" for p in prefixes)
        raise FileNotFoundError(f'{folder} has no features of the split "{name}": no {files}')
    rows = load_array(folder / f"{prefix}_ims.npy", 3, "images, regions, numbers")  # (rows, N, d)
    captions, path = _read_captions(folder / f"{prefix}_caps.txt"), folder / f"{prefix}_boxes.npy"
    boxes = _read_boxes(path, (*rows.shape[:2], 4)) if path.is_file() else None
    sample = rows[: 4 * REPEATS]  # shows whether the file repeats rows
    is_repeat = [np.array_equal(row, sample[i - i % REPEATS]) for i, row in enumerate(sample)]
    if len(rows) == len(captions) and len(rows) % REPEATS == 0 and all(is_repeat):
        rows, boxes = rows[::REPEATS], None if boxes is None else boxes[::REPEATS]
    if len(captions) % len(rows):
        counts = f"there are {len(rows)} images and {len(captions)} captions"
        reason = f"{folder / prefix}_caps.txt needs the same number of captions for each image"
        raise ValueError(f"{reason}: {counts}; fetch the files again")
    image_of = np.repeat(np.arange(len(rows)), len(captions) // len(rows))
    return Split(captions, image_of, features=rows, boxes=boxes, folder=folder / name)


def _read_captions(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; add the captions of the features")
    lines = path.read_text("utf-8").splitlines() or [""]
    empty_line = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty_line is not None:
        raise ValueError(f"{path}: line {empty_line} is empty; every line must be a caption")
    return lines


def _read_boxes(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    boxes = load_array(path, 3, "images, regions, 4")
    if boxes.shape != shape:
        raise ValueError(f"{path} must hold a box for each region, {shape}, not {boxes.shape}")
    low, high = float(boxes.min()), float(boxes.max())
    if not (low >= 0 and high <= 1):
        reason = f"boxes must be relative xyxy, 0 to 1, but reach from {low:g} to {high:g}"
        raise ValueError(f"{path}: {reason}; divide them by their image's width and height")
    return boxes


def write_gallery(
    data: Split, split_name: str, out: Path, photographs: Sequence[Path] = (), count: int = COUNT
) -> None:
    """Writes images, features, boxes and `gallery.json` of a split atomically.

    `data` holds precomputed features, `photographs` one photograph for each image. Without
    photographs, region boxes are drawn. At most the first `count` images are written.

    Raises FileExistsError if `out` exists, ValueError if the numbers of photographs and images
    differ, and OSError if a photograph cannot be read.
    """
    assert isinstance(data.features, np.ndarray)  # precomputed features are an array
    if out.exists():
        raise FileExistsError(f"{out} exists already; remove it or choose another folder")
    if photographs and len(photographs) != data.image_count:
        counts = f"{len(photographs)} photographs, but features of {data.image_count} images"
        raise ValueError(f"there are {counts}; list one name for each image")
    count = min(count, data.image_count)
    boxes = None if data.boxes is None else data.boxes[:count]
    files = [f"images/{split_name}-{row:06}.webp" for row in range(count)]
    records = [{"file": file, "captions": list[dict[str, str]]()} for file in files]
    subset = data.head(count)
    for text, row in zip(subset.captions, subset.image_of.tolist(), strict=True):
        records[row]["captions"].append({"text": text})
    with replacing_folder(out) as draft:
        (draft / "images").mkdir(parents=True)
        for row, file in enumerate(files):
            if photographs:
                with Image.open(photographs[row]) as photograph:
                    image = to_rgb(photograph)
                image.thumbnail((SIDE, SIDE))
            else:
                image = _draw_boxes(row, None if boxes is None else boxes[row])
            image.save(draft / file, quality=QUALITY)
        write_regions(draft, data.features[:count], boxes)
        index = {"split": split_name, "world": data.folder.parent.resolve().name, "images": records}
        (draft / INDEX).write_text(json.dumps(index), "utf-8")


def _draw_boxes(row: int, boxes: np.ndarray | None) -> Image.Image:
    """Draws a placeholder for a photograph: its number and its region boxes (N, 4)."""
    image = Image.new("RGB", _DRAWING_SIZE, _PAPER_COLOR)
    pen = ImageDraw.Draw(image)
    for i, box in enumerate([] if boxes is None else boxes):
        start, end = (box[:2] * _DRAWING_SIZE).round(), (box[2:] * _DRAWING_SIZE).round() - 1
        corners = [*np.minimum(start, end).tolist(), *np.maximum(start, end).tolist()]
        pen.rectangle(corners, outline=_LINE_COLORS[i % len(_LINE_COLORS)])
    pen.text((8, 6), f"image {row + 1}: regions, no photograph", fill=_INK_COLOR)
    return image


@exit_on_error()
def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and writes the gallery."""
    description = "Turn precomputed features of regions into a pack's gallery."
    parser = argparse.ArgumentParser("python -m polyview region-gallery", description=description)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of features and captions")
    add("--split", default="test", help="split to write (default: test)")
    add("--out", type=Path, required=True, help="gallery folder to write")
    add("--images", type=Path, help="folder of photographs (default: draw the boxes)")
    add("--names", type=Path, help="text file of the photographs' names, one per line, in order")
    add("--count", type=positive_int, default=COUNT, help=f"number of images (default: {COUNT:,})")
    options = parser.parse_args(argv)
    if (options.images is None) != (options.names is None):
        raise ValueError("--images and --names need each other; give both options, or neither")
    lines = options.names.read_text("utf-8").splitlines() if options.names else []
    photographs = [options.images / line.strip() for line in lines if line.strip()]
    data = open_regions(options.data, options.split)
    write_gallery(data, options.split, options.out, photographs, options.count)
