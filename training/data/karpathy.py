"""Photographs with captions, in the JSON form of Karpathy's splits.

Flickr8k, Flickr30K and COCO are used with the splits that Karpathy and Fei-Fei (CVPR 2015) made
and published, one JSON file a data set. A folder of such photographs holds

    dataset_flickr8k.json, dataset_flickr30k.json, dataset_coco.json, or captions.json for any other
    images/               the files; those of COCO in images/train2014 and images/val2014

`images` in the JSON lists, for each photograph, `filename` (and, for COCO, `filepath`, its folder),
`split`, `imgid` and `sentences`, each with `raw` text. COCO's `restval` photographs belong to the
training split, as in every paper that trains on it.
"""

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from training.data.image_files import ImageFiles
from training.data.split import Split

JSON_FILES = (
    "dataset_flickr8k.json",
    "dataset_flickr30k.json",
    "dataset_coco.json",
    "captions.json",
)
IMAGES = "images"
EVALUATED_CAPTIONS = 5  # a few photographs of COCO have six or seven; the field measures the first
_PARTS = {"train": ("train", "restval")}
_LARGEST_ID = 2**62
_LONGEST_NAME = 255  # characters
_NAMED = 3  # missing files named in a refusal


def karpathy_file(folder: Path) -> Path | None:
    """The JSON file of a folder of photographs, None where there is none.

    Raises:
        ValueError: there are several.
    """
    there = [folder / name for name in JSON_FILES if (folder / name).is_file()]
    if len(there) > 1:
        names = " and ".join(path.name for path in there)
        raise ValueError(f"{folder} holds {names}; give each data set a folder of its own")
    return there[0] if there else None


def open_photographs(folder: Path, name: str) -> Split:
    """Opens a split.

    For evaluation ("val" and "test") the first five captions of a photograph count, for training
    all of them.

    Args:
        folder: see above.
        name: "train", "val" or "test".

    Returns:
        The split; its `images` are `ImageFiles`, all there.

    Raises:
        FileNotFoundError: the folder has no such JSON, or image files are missing.
        ValueError: the JSON is damaged, lacks the split, or holds a photograph without captions.
    """
    path = karpathy_file(folder)
    if path is None:
        raise FileNotFoundError(f"{folder} holds none of {', '.join(JSON_FILES)}")
    entries = _entries(path)
    chosen = [e for e in entries if e["split"] in _PARTS.get(name, (name,))]
    if not chosen:
        there = Counter(entry["split"] for entry in entries)
        listed = ", ".join(f"{part} ({count})" for part, count in sorted(there.items()))
        raise ValueError(
            f'{path} has no photographs in the split "{name}"; it has {listed or "none at all"}'
        )
    files = ImageFiles(_paths(folder, path, chosen))
    captions = [_captions(path, entry, all_of_them=name == "train") for entry in chosen]
    rows = np.repeat(np.arange(len(chosen)), [len(texts) for texts in captions])
    texts = [text for texts in captions for text in texts]
    return Split(texts, rows, files, folder=folder / name)


def uncaptioned(folder: Path) -> list[Path]:
    """The files in a folder's `images/` that its JSON does not list, in the order of their names.

    Raises:
        FileNotFoundError, ValueError: see `open_photographs`.
    """
    path = karpathy_file(folder)
    if path is None:
        raise FileNotFoundError(f"{folder} holds none of {', '.join(JSON_FILES)}")
    listed = set(_paths(folder, path, _entries(path)))
    return sorted(file for file in (folder / IMAGES).iterdir() if file not in listed)


def _entries(path: Path) -> list[dict[str, Any]]:
    """The photographs that a JSON file lists, with the keys that are read from them."""
    try:
        content = path.read_text("utf-8")
        listed = json.loads(content)["images"]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON ({error}); fetch it again") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f'{path} has no list "images"; fetch it again') from error
    if not isinstance(listed, list):
        raise ValueError(f'{path}: "images" is no list; fetch it again')
    kinds = {"filename": str, "split": str, "imgid": int, "sentences": list}
    for number, entry in enumerate(listed):
        for key, kind in kinds.items():
            value = entry.get(key) if isinstance(entry, dict) else None
            if not isinstance(value, kind):
                raise ValueError(
                    f'{path}: image {number} has no "{key}" of type {kind.__name__}; fetch it again'
                )
        if not -_LARGEST_ID <= entry["imgid"] <= _LARGEST_ID:
            raise ValueError(f'{path}: the "imgid" of image {number} is too large; fetch it again')
        names = f"{entry['filename']}/{entry.get('filepath', '')}"
        if not names.isprintable() or not 1 <= len(entry["filename"]) <= _LONGEST_NAME:
            raise ValueError(
                f'{path}: the "filename" of image {number}, {entry["filename"]!a:.80}, can be no '
                "file's; fetch it again"
            )
    return listed


def _paths(folder: Path, path: Path, entries: list[dict[str, Any]]) -> list[Path]:
    """The photographs' files, all of which must be there."""
    names = [
        f"{e['filepath']}/{e['filename']}" if "filepath" in e else e["filename"] for e in entries
    ]
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f'{path} names the file "{name}", which leaves the folder of images')
    root = folder / IMAGES
    folders = {(root / name).parent for name in names}
    # listing a folder once is far cheaper than asking for each of 100,000 files
    there = {file for parent in folders if parent.is_dir() for file in parent.iterdir()}
    paths = [root / name for name in names]
    missing = [str(file.relative_to(folder)) for file in paths if file not in there]
    if missing:
        more = ", ..." if len(missing) > _NAMED else ""
        raise FileNotFoundError(
            f"{len(missing)} of the {len(paths)} photographs that {path} lists are missing: "
            f"{', '.join(missing[:_NAMED])}{more}; put the image files into {root}"
        )
    return paths


def _captions(path: Path, entry: dict[str, Any], *, all_of_them: bool) -> list[str]:
    """A photograph's captions, each on one line."""
    raw = [s.get("raw") if isinstance(s, dict) else None for s in entry["sentences"]]
    texts = [" ".join(text.split()) if isinstance(text, str) else "" for text in raw]
    if not texts or not all(texts):
        what = "has an empty caption" if texts else "has no caption"
        raise ValueError(
            f'{path}: {entry["filename"]} {what} ("sentences", "raw"); mend the entry or remove it'
        )
    return texts if all_of_them else texts[:EVALUATED_CAPTIONS]
