"""Photographs with captions: a folder of images and a captions file in one of four formats.

    file,caption,split                               CSV with `,` `;` `|` or tab; a line per caption
    {"file": ..., "captions": [...], "split": ...}   JSON Lines; a line per image or caption
    {"images": [{"filename", "split", "sentences": [{"raw"}]}]}                   Karpathy's JSON
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}   COCO's JSON

If a file has no splits, checksums of the image names determine them. The images are in `images/`
(for COCO in images/train2014 and images/val2014) or, if `images/` does not exist, in the folder of
the captions file.
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from polyview.training.data.image_files import ImageFiles
from polyview.training.data.split import Split, flatten_captions

# captions files of published data sets; preferred to other files in the folder
DATA_SETS = {
    "dataset_flickr8k.json": "Flickr8k",
    "dataset_flickr30k.json": "Flickr30K",
    "dataset_coco.json": "COCO",
}
USUAL_NAMES = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.json")  # also preferred
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
SPLIT_RATIO = 10  # without splits, one in ten images is for validation, and one for testing
IMAGES = "images"
EVALUATED_CAPTIONS = 5  # captions per image in evaluation; a few COCO images have six or seven
_FILE_COLUMNS = ("file", "filename", "file_name", "image", "image_name")
_CAPTION_COLUMNS = ("caption", "captions", "text", "sentence", "comment")
_SPLITS = {"validation": "val", "restval": "train"}  # COCO's restval is training data
_MAX_NAMED = 3  # maximum number of missing files named in an error
_FIX = "correct it, or fetch it again"


@dataclass
class CaptionedImage:
    """An image file below the folder of images, with its captions and split (None: unknown)."""

    file: str
    captions: list[str]
    split: str | None


class _Row(BaseModel, strict=True, extra="allow"):
    """A row of a table or of JSON Lines; `model_extra` has the fields with unknown names."""

    file: str = Field(validation_alias=AliasChoices(*_FILE_COLUMNS))
    captions: list[str] | str = Field(validation_alias=AliasChoices(*_CAPTION_COLUMNS))
    split: str | None = None
    row_number: Any = Field(None, alias="")  # ignored: an index without a name
    comment_number: Any = None  # ignored: a column of Flickr30K's table


class _Sentence(BaseModel, strict=True):
    raw: str


class _Image(BaseModel, strict=True):
    """An image of Karpathy's or COCO's JSON."""

    file: str = Field(validation_alias=AliasChoices("filename", "file_name"))
    filepath: str = ""
    split: str | None = None
    sentences: list[_Sentence] = []
    id: int | str | None = None


class _Annotation(BaseModel, strict=True):
    image_id: int | str
    caption: str


class _Json(BaseModel, strict=True):
    images: list[_Image]
    annotations: list[_Annotation] | None = None


_Entries = Iterator[tuple[str, str, list[str], str | None]]  # location, file, captions, split
_Model = TypeVar("_Model", bound=BaseModel)


def find_captions(data: Path) -> Path | None:
    """Returns the captions file of a folder, or None; returns `data` if it is a file.

    Raises ValueError if several files of the folder may hold the captions.
    """
    if data.is_file():
        return data
    files = sorted(path for path in data.iterdir() if path.is_file()) if data.is_dir() else []
    preferred = [path for path in files if path.name in (*DATA_SETS, *USUAL_NAMES)]
    candidates = preferred or [path for path in files if path.suffix.lower() in ENDINGS]
    if len(candidates) > 1:
        names = " and ".join(path.name for path in candidates)
        raise ValueError(f"{data} holds {names}; name the one that holds the captions")
    return candidates[0] if candidates else None


def read_captions(path: Path) -> list[CaptionedImage]:
    """Reads the images of a captions file, in order; raises ValueError if the file is damaged."""
    try:
        text = path.read_text("utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error}); {_FIX}") from error
    reader = {".json": _parse_json, ".jsonl": _parse_lines}.get(path.suffix.lower(), _parse_table)
    images: dict[str, CaptionedImage] = {}
    for location, file, captions, split in reader(path, text):
        _check_name(location, file)
        image = images.setdefault(file, CaptionedImage(file, [], split))
        if image.split != split:
            splits = f'in the split "{split or ""}" here and in "{image.split or ""}" above'
            raise ValueError(f"{location}: {file} is {splits}; an image belongs to one split")
        lines = [" ".join(caption.split()) for caption in captions]
        if "" in lines:
            raise ValueError(f"{location}: {file} has an empty caption; write it, or remove it")
        image.captions += lines
    for image in images.values():
        if not image.captions:
            raise ValueError(f"{path}: {image.file} has no caption; add one, or remove the image")
    _assign_splits(path, list(images.values()))
    return list(images.values())


def _parse_json(path: Path, text: str) -> _Entries:
    content = _validate(_Json, str(path), text)
    files: dict[int | str | None, str] = {}
    for number, image in enumerate(content.images):
        files[image.id] = "/".join(part for part in (image.filepath, image.file) if part)
        if content.annotations is None:
            sentences = [sentence.raw for sentence in image.sentences]
            yield f"{path}: image {number}", files[image.id], sentences, image.split
    for number, entry in enumerate(content.annotations or ()):
        location = f"{path}: annotation {number}"
        if entry.image_id not in files:
            raise ValueError(f'{location}: no image has the "id" {entry.image_id!r:.60}; {_FIX}')
        yield location, files[entry.image_id], [entry.caption], None


def _parse_lines(path: Path, text: str) -> _Entries:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield from _parse_entry(f"{path}, line {number}", line)


def _parse_table(path: Path, text: str) -> _Entries:
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(",;|\t", key=first_line.count)
    rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
    columns: list[str] = []
    try:
        for row in rows:
            cells, location = [cell.strip() for cell in row], f"{path}, line {rows.line_num}"
            if not any(cells):
                continue
            if not columns:
                columns = [cell.lower() for cell in cells]
                for names in (_FILE_COLUMNS, _CAPTION_COLUMNS):
                    if not set(names) & set(columns):
                        reason = f'its first line is "{", ".join(columns)[:100]}"'
                        advice = "begin it with the line file,caption"
                        raise ValueError(f'{path} has no column "{names[0]}": {reason}; {advice}')
                if repeated := [name for name in columns if name and columns.count(name) > 1]:
                    raise ValueError(f'{path} has several columns "{repeated[0]}"; keep only one')
            elif len(cells) != len(columns):
                counts = f"{len(cells)} values, and the first line names {len(columns)}"
                advice = 'put captions that contain the separator into "quotation marks"'
                raise ValueError(f"{location} has {counts}; {advice}")
            else:
                yield from _parse_entry(location, dict(zip(columns, cells, strict=True)))
    except csv.Error as error:
        location = f"{path}, line {rows.line_num}"
        raise ValueError(f"{location} is not readable ({error}); {_FIX}") from error


def _parse_entry(location: str, value: str | dict[str, str]) -> _Entries:
    row = _validate(_Row, location, value)
    for field in row.model_extra or ():
        advice = "rename it to file, caption or split, or remove it"
        raise ValueError(f'{location} has an unknown or repeated field "{field}"; {advice}')
    captions = [row.captions] if isinstance(row.captions, str) else row.captions
    yield location, row.file, captions, row.split or None


def _validate(model: type[_Model], location: str, value: str | dict[str, str]) -> _Model:
    """Validates JSON text or the cells of a table row; `location` is named in errors."""
    try:
        if isinstance(value, str):
            return model.model_validate_json(value)
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors()[0]
        key = f'"{".".join(map(str, details["loc"]))}": ' if details["loc"] else ""
        raise ValueError(f"{location} is not readable: {key}{details['msg']}; {_FIX}") from error


def _check_name(location: str, file: str) -> None:
    """Raises ValueError if `file` is outside the folder of images or cannot be a file name."""
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f'{location}: the file "{file}" is outside the folder of images; {_FIX}')
    if not file.isprintable() or not 1 <= len(path.name) <= 255:  # file systems have this limit
        raise ValueError(f"{location}: {file!a:.80} cannot be a file name; {_FIX}")


def _assign_splits(path: Path, images: list[CaptionedImage]) -> None:
    """Checks the splits of a captions file, or assigns splits by checksums of the image names."""
    unassigned = [image for image in images if image.split is None]
    if unassigned and len(unassigned) < len(images):
        advice = "give every image a split, or remove all splits"
        raise ValueError(f"{path}: {unassigned[0].file} has no split, unlike others; {advice}")
    split_size = max(1, len(images) // SPLIT_RATIO)  # of "val" and of "test"
    order = sorted(unassigned, key=lambda image: hashlib.sha256(image.file.encode()).hexdigest())
    for i, image in enumerate(order):
        image.split = "val" if i < split_size else "test" if i < 2 * split_size else "train"
    for image in images:
        image.split = _SPLITS.get(str(image.split), image.split)


def open_photographs(data: Path, name: str) -> Split:
    """Opens a split of photographs, given the captions file or its folder.

    The images are `ImageFiles`. The split "train" has all captions of each photograph, other splits
    the first five. Raises FileNotFoundError if the captions file or image files are missing, and
    ValueError if the captions file is damaged, lacks the split, or has an image without captions.
    """
    path, entries = read_folder(data)
    selected = [image for image in entries if image.split == name]
    if not selected:
        sizes = Counter(str(image.split) for image in entries)
        splits = ", ".join(f"{split} ({count})" for split, count in sorted(sizes.items())) or "none"
        raise ValueError(f'{path} has no photographs in the split "{name}"; it has {splits}')
    limit = None if name == "train" else EVALUATED_CAPTIONS
    captions = flatten_captions([image.captions[:limit] for image in selected])
    return Split(*captions, ImageFiles(_image_paths(path, selected)), folder=path.parent / name)


def find_uncaptioned(data: Path) -> list[Path]:
    """Returns the image files of a folder that its captions file does not list, sorted by name."""
    path, images = read_folder(data)
    files = {file for file in _image_folder(path).iterdir() if file.is_file()}
    return sorted(files - {path, *_image_paths(path, images)})


def read_folder(data: Path) -> tuple[Path, list[CaptionedImage]]:
    """Finds and reads the captions file of a folder; returns the file's path and images."""
    path = find_captions(data)
    if path is None:
        formats = ".csv with the columns file and caption, .jsonl or .json, see docs/your-data.md"
        raise FileNotFoundError(f"{data} holds no file of captions ({formats})")
    return path, read_captions(path)


def _image_folder(path: Path) -> Path:
    """Returns the folder of the images that a captions file lists."""
    folder = path.parent / IMAGES
    return folder if folder.is_dir() else path.parent


def _image_paths(path: Path, images: list[CaptionedImage]) -> list[Path]:
    """Returns the paths of photographs; raises FileNotFoundError if any is missing."""
    paths = [_image_folder(path) / image.file for image in images]
    # listing a folder once is much faster than checking 100,000 files
    folders = {file.parent for file in paths}
    existing = {file for parent in folders if parent.is_dir() for file in parent.iterdir()}
    if missing := [str(file.relative_to(path.parent)) for file in paths if file not in existing]:
        names = ", ".join(missing[:_MAX_NAMED]) + (", ..." if len(missing) > _MAX_NAMED else "")
        counts = f"{len(missing)} of the {len(paths)} photographs that {path} lists are missing"
        advice = f"put the image files into {path.parent / IMAGES}"
        raise FileNotFoundError(f"{counts}: {names}; {advice}")
    return paths
