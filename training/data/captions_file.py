"""What a folder of photographs says of them: one file of captions, in any of four forms.

    file,caption,split                                    CSV: a line a caption; `,` `;` `|` or tabs
    {"file": ..., "captions": [...], "split": ...}        JSON Lines: a line an image or a caption
    {"images": [{"filename", "split", "sentences": [{"raw"}]}]}            JSON, as Karpathy's
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}   JSON, as COCO's

The split may be left out everywhere; it is then drawn by the files' names, always alike.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

# what the field calls its files; they win over others beside them
KNOWN = {
    "dataset_flickr8k.json": "Flickr8k",
    "dataset_flickr30k.json": "Flickr30K",
    "dataset_coco.json": "COCO",
}
OWN = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.json")
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
HELD_OUT = 10  # one image of so many is for validation, another for testing, where none is said
_FILE = ("file", "filename", "file_name", "image", "image_name")
_CAPTION = ("caption", "captions", "text", "sentence", "comment")
_SPLIT = "split"
_SPLITS = {"validation": "val", "restval": "train"}  # COCO's restval is trained on everywhere
_LONGEST_NAME = 255  # characters
_AGAIN = "mend it, or fetch it again"


@dataclass
class Captioned:
    """An image with captions.

    Attributes:
        file: relative to the folder of images.
        captions: at least one.
        split: "train", "val" or "test", or another; None until it is drawn.
        drawn: whether the file says no split, so that it was drawn.
    """

    file: str
    captions: list[str]
    split: str | None
    drawn: bool = False


def find_captions(data: Path) -> Path | None:
    """The captions file of a folder, or `data` itself where it is a file; None where there is none.

    Raises:
        ValueError: there are several.
    """
    if data.is_file():
        return data
    if not data.is_dir():
        return None
    for names in (tuple(KNOWN) + OWN, None):
        there = [
            path
            for path in sorted(data.iterdir())
            if path.is_file() and (path.name in names if names else path.suffix.lower() in ENDINGS)
        ]
        if len(there) > 1:
            listed = " and ".join(path.name for path in there)
            raise ValueError(f"{data} holds {listed}; name the one that holds the captions")
        if there:
            return there[0]
    return None


def name_of(path: Path) -> str:
    """What people call a data set: "Flickr8k", or the name of its folder."""
    return KNOWN.get(path.name, path.resolve().parent.name)


def read_captions(path: Path) -> list[Captioned]:
    """Reads a captions file.

    Returns:
        Each image once, in the order of the file; each caption on one line; each with a split.

    Raises:
        ValueError: it is damaged, or an entry of it makes no sense; the sentence names it.
    """
    try:
        text = path.read_text("utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); {_AGAIN}") from error
    reader = {".json": _from_json, ".jsonl": _from_lines}.get(path.suffix.lower(), _from_table)
    found: dict[str, Captioned] = {}
    for where, file, captions, split in reader(path, text):
        _refuse_name(where, file)
        known = found.setdefault(file, Captioned(file, [], split))
        if known.split != split:
            raise ValueError(
                f'{where}: {file} is in the split "{split or ""}" here and in '
                f'"{known.split or ""}" above; an image belongs to one'
            )
        known.captions += [_one_line(where, file, caption) for caption in captions]
    images = list(found.values())
    for image in images:
        if not image.captions:
            raise ValueError(f"{path}: {image.file} has no caption; give it one, or remove it")
    _give_splits(path, images)
    return images


_Entries = Iterable[tuple[str, str, list[Any], str | None]]  # where, file, captions, split


def _from_json(path: Path, text: str) -> _Entries:
    try:
        content = json.loads(text)
        images = content["images"]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON ({error}); {_AGAIN}") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f'{path} has no list "images"; {_AGAIN}') from error
    if not isinstance(images, list):
        raise ValueError(f'{path}: "images" is no list; {_AGAIN}')
    annotations = content.get("annotations")
    if isinstance(annotations, list):
        yield from _from_coco(path, images, annotations)
        return
    for number, entry in enumerate(images):
        where = f"{path}: image {number}"
        file = _value(where, entry, "filename", str)
        if "filepath" in entry:
            file = f"{_value(where, entry, 'filepath', str)}/{file}"
        sentences = _value(where, entry, "sentences", list)
        captions = [s.get("raw") if isinstance(s, dict) else None for s in sentences]
        split = None if entry.get(_SPLIT) is None else _value(where, entry, _SPLIT, str)
        yield where, file, captions, split


def _from_coco(path: Path, images: list[Any], annotations: list[Any]) -> _Entries:
    files: dict[Any, str] = {}
    for number, entry in enumerate(images):
        where = f"{path}: image {number}"
        files[_value(where, entry, "id", int | str)] = _value(where, entry, "file_name", str)
    for number, entry in enumerate(annotations):
        where = f"{path}: annotation {number}"
        image = _value(where, entry, "image_id", int | str)
        if image not in files:
            raise ValueError(f'{where}: there is no image with the "id" {image!r:.60}; {_AGAIN}')
        yield where, files[image], [_value(where, entry, "caption", str)], None


def _from_lines(path: Path, text: str) -> _Entries:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not readable JSON ({error}); {_AGAIN}") from error
        if not isinstance(entry, dict):
            raise ValueError(f'{where} is no object like {{"file": "a.jpg", "caption": "a dog"}}')
        yield _row(where, entry)


def _from_table(path: Path, text: str) -> _Entries:
    head = next((line for line in text.splitlines() if line.strip()), "")
    mark = max(",;|\t", key=head.count)
    rows = csv.reader(io.StringIO(text), delimiter=mark, skipinitialspace=True, strict=True)
    columns: list[str] = []
    try:
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = [cell.strip().lower() for cell in cells]
                _refuse_columns(path, columns)
                continue
            where = f"{path}, line {rows.line_num}"
            if len(cells) != len(columns):
                raise ValueError(
                    f"{where} has {len(cells)} values, and the first line names {len(columns)}; "
                    'put a caption that holds the separator into "quotation marks"'
                )
            yield _row(where, dict(zip(columns, (cell.strip() for cell in cells), strict=True)))
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {rows.line_num} is not readable ({error}); {_AGAIN}"
        ) from error


def _refuse_columns(path: Path, columns: list[str]) -> None:
    for names in (_FILE, _CAPTION):
        if not set(names) & set(columns):
            raise ValueError(
                f'{path} has no column "{names[0]}": its first line is '
                f'"{", ".join(columns)[:100]}"; begin it with the line file,caption'
            )


def _row(where: str, entry: Mapping[str, Any]) -> tuple[str, str, list[Any], str | None]:
    """A line of a table or of JSON Lines."""
    captions = next((entry[name] for name in _CAPTION if name in entry), None)
    if captions is None:
        raise ValueError(f'{where} has no "caption"; {_AGAIN}')
    name = next((name for name in _FILE if name in entry), _FILE[0])
    split = entry.get(_SPLIT) or None
    if split is not None and not isinstance(split, str):
        raise ValueError(f'{where}: "split" must be a text such as train, not {split!r:.60}')
    captions = captions if isinstance(captions, list) else [captions]
    return where, _value(where, entry, name, str), captions, split


def _value(where: str, entry: Any, key: str, kind: Any) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        wanted = getattr(kind, "__name__", "int or str")
        raise ValueError(f'{where} has no "{key}" of type {wanted}; {_AGAIN}')
    return value


def _refuse_name(where: str, file: str) -> None:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f'{where} names the file "{file}", which leaves the folder of images')
    if not file.isprintable() or not 1 <= len(path.name) <= _LONGEST_NAME:
        raise ValueError(f"{where}: {file!a:.80} can be no file's name; {_AGAIN}")


def _one_line(where: str, file: str, caption: Any) -> str:
    line = " ".join(caption.split()) if isinstance(caption, str) else ""
    if not line:
        raise ValueError(f"{where}: {file} has an empty caption; write it, or remove it")
    return line


def _give_splits(path: Path, images: list[Captioned]) -> None:
    """Checks the splits that are given, or draws them: by image, and always alike."""
    without = [image for image in images if image.split is None]
    if len(without) < len(images):
        if without:
            raise ValueError(
                f"{path}: {without[0].file} has no split and others have one; give every image "
                "one, or none"
            )
        for image in images:
            image.split = _SPLITS.get(str(image.split), image.split)
        return
    held_out = max(1, len(images) // HELD_OUT)
    for place, image in enumerate(sorted(images, key=_number)):
        image.drawn = True
        image.split = "val" if place < held_out else "test" if place < 2 * held_out else "train"


def _number(image: Captioned) -> str:
    """What the split of an image is drawn by; other images do not change it."""
    return hashlib.sha256(image.file.encode()).hexdigest()
