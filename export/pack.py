"""The pack: the unit that is trained, shipped, loaded and shared.

A folder, or a Hub repository with the same files:

    pack.json                    says what there is, see `export/manifest.py`
    image_encoder.onnx           pixels (B, 3, S, S) -> features (B, N, d)
    tokenizer.json               Hugging Face `tokenizers` format
    <method>/image_encoder.onnx  the same, where the method was trained with one of its own
    <method>/text_encoder.onnx   ids (B, L), lengths (B,) -> features (B, L, d)
    <method>/head.safetensors    the heads, for `models.build`
    gallery/                     optional, see `export/gallery.py`
    training/                    optional: recipes and logs
    README.md                    the model card, rendered from pack.json
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from export import card
from export.fields import Fields, PackError, read_json
from export.gallery import (
    FOLDER,
    INDEX,
    GalleryCaption,
    GalleryImage,
    GalleryInfo,
    GalleryObject,
    combined_sha256,
    load_gallery,
    read_gallery,
)
from export.manifest import (
    FileInfo,
    GallerySummary,
    MethodInfo,
    Metrics,
    PackInfo,
)
from export.manifest_parser import MAX_MANIFEST, parse_info, parse_metrics
from export.weights import check_weights

__all__ = [
    "FileInfo",
    "GalleryCaption",
    "GalleryImage",
    "GalleryInfo",
    "GalleryObject",
    "GallerySummary",
    "MethodInfo",
    "Metrics",
    "PackError",
    "PackInfo",
    "describe_file",
    "list_files",
    "load_gallery",
    "load_info",
    "resolve",
    "summarize_gallery",
    "update_metrics",
    "write_info",
]

MANIFEST = "pack.json"
CARD = "README.md"
_HUB_ID = re.compile(r"(?P<id>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w-][\w./-]*))?", re.ASCII)


def load_info(path: Path, verify: bool = True) -> PackInfo:
    """Reads and checks a pack.

    Args:
        path: the pack's folder.
        verify: compare every SHA-256 and look for NaN in the weights; without it only the presence
            and the size of every file are checked.

    Raises:
        FileNotFoundError: there is no such folder, no pack.json in it, or a named file is missing.
        PackError: anything that does not hold; the message names the file and what is wrong.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no pack folder {folder}")
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} is not a pack: it has no {MANIFEST}")
    _refuse_leaving(folder, MANIFEST)
    info = parse_info(read_json(folder / MANIFEST, MAX_MANIFEST), folder)
    for name, expected in info.files.items():
        _check_file(folder, name, expected, verify)
    if info.gallery is not None:
        _check_gallery(folder, info.gallery, verify)
    return info


def describe_file(path: Path) -> FileInfo:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:  # in pieces, however large it is
        return FileInfo(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def summarize_gallery(folder: Path) -> GallerySummary:
    """What pack.json says about the gallery in a pack's folder."""
    gallery = read_gallery(folder / FOLDER)
    checksum, size = combined_sha256(gallery)
    return GallerySummary(
        file=f"{FOLDER}/{INDEX}",
        split=gallery.split,
        images=len(gallery.images),
        captions=len(gallery.captions),
        images_sha256=checksum,
        images_bytes=size,
    )


def write_info(info: PackInfo) -> None:
    """Writes pack.json and the model card into the pack's folder, each whole or not at all."""
    _write(info.folder / CARD, card.render(info))
    _write(info.folder / MANIFEST, json.dumps(info.to_json(), indent=2, ensure_ascii=False) + "\n")


def update_metrics(pack: Path, method: str, metrics: Mapping[str, Any]) -> PackInfo:
    """Puts a method's measured numbers into pack.json and renders the model card again.

    Args:
        pack: the pack's folder.
        method: a method of the pack.
        metrics: `split`, `command`, `hardware` and `values`, see `Metrics`; `seed` is that of the
            training configuration unless it is given.

    Returns:
        The pack's new description.

    Raises:
        PackError: the pack has no such method, or the metrics lack something.
    """
    info = load_info(pack, verify=False)
    if method not in info.methods:
        raise PackError(f'{pack} has no method "{method}"; it has {", ".join(info.methods)}')
    entry = info.methods[method]
    said = {"seed": entry.config.get("seed"), **metrics}
    entry = replace(entry, metrics=parse_metrics(Fields(said, f"metrics of {method}")))
    updated = replace(info, methods={**info.methods, method: entry})
    write_info(updated)
    return updated


def resolve(pack: str) -> Path:
    """Finds a pack by what a person typed.

    Args:
        pack: a folder, or a Hub repository as `owner/name` or `owner/name@revision`, which is
            fetched; a folder that exists wins.

    Raises:
        FileNotFoundError: it is neither a folder nor looks like a repository.
        HubError: the repository could not be fetched, or is no pack.
    """
    folder = Path(pack).expanduser()
    if folder.is_dir():
        return folder
    match = _HUB_ID.fullmatch(pack)
    if match is None:
        raise FileNotFoundError(
            f'there is no folder "{pack}", and it is not a Hub repository such as owner/name'
        )
    from export.hub import pull  # here, because most starts need neither the client nor its imports

    return pull(match["id"], match["revision"])


def list_files(info: PackInfo) -> list[str]:
    """All files of a pack, relative to its folder; what else lies there does not belong to it.

    Raises:
        PackError: the model card is a link to outside the pack.
    """
    names = [MANIFEST, *info.files]
    if (info.folder / CARD).is_file():
        _refuse_leaving(info.folder, CARD)
        names.append(CARD)
    if info.gallery is not None:
        names += [f"{FOLDER}/{file}" for file in read_gallery(info.folder / FOLDER).files]
    return sorted(set(names))


def _check_file(folder: Path, name: str, expected: FileInfo, verify: bool) -> None:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"the pack {folder} lacks {name}; fetch or export it again")
    _refuse_leaving(folder, name)
    size = path.stat().st_size
    if size != expected.bytes:
        raise PackError(
            f"{path} has {size} bytes, but pack.json says {expected.bytes}; fetch the pack again"
        )
    if not verify:
        return
    if describe_file(path) != expected:
        raise PackError(
            f"{path} is not the file whose SHA-256 pack.json says; fetch the pack again"
        )
    check_weights(path)


def _check_gallery(folder: Path, expected: GallerySummary, verify: bool) -> None:
    gallery = read_gallery(folder / FOLDER)
    for name in gallery.files:
        _refuse_leaving(folder, f"{FOLDER}/{name}")
    found = (gallery.split, len(gallery.images), len(gallery.captions))
    said = (expected.split, expected.images, expected.captions)
    if found != said:
        raise PackError(f"the gallery of {folder} is {found}, but pack.json says {said}")
    if verify and combined_sha256(gallery) != (expected.images_sha256, expected.images_bytes):
        raise PackError(
            f"the gallery images of {folder} are not those whose SHA-256 pack.json says; "
            "fetch the pack again"
        )


def _refuse_leaving(folder: Path, name: str) -> None:
    """Refuses a link to outside the pack.

    In the Hub client's cache a pack is `models--owner--name/snapshots/commit`, made of links to the
    `blobs` beside `snapshots`, which may be links to the cache's common `blobs`.
    """
    real, root = (folder / name).resolve(), folder.resolve()
    homes = [root]
    if root.parent.name == "snapshots":
        homes += [home / "blobs" for home in root.parents[1:3]]
    if not any(real.is_relative_to(home) for home in homes):
        raise PackError(f"{folder / name} is a link to outside the pack; put the file itself there")


def _write(path: Path, content: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
