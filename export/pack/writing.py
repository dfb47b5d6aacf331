"""Writes a pack's pack.json and model card, and describes the files that pack.json lists."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.pack import card
from export.pack.gallery import combined_sha256, read_gallery
from export.pack.reading import load_info
from export.pack.schema import CARD, FOLDER, MANIFEST, FileInfo, GallerySummary, Metrics, PackInfo
from export.pack.validation import PackError, check
from models.files import sha256_of, write_whole


def describe_file(path: Path) -> FileInfo:
    """Size and SHA-256 of a file."""
    return FileInfo(sha256_of(path), path.stat().st_size)


def summarize_gallery(folder: Path) -> GallerySummary:
    """The entry of pack.json for the gallery in a pack's folder."""
    gallery = read_gallery(folder / FOLDER)
    checksum, size = combined_sha256(gallery)
    return GallerySummary(
        file="gallery/gallery.json",
        split=gallery.split,
        images=len(gallery.images),
        captions=len(gallery.captions),
        images_sha256=checksum,
        images_bytes=size,
    )


def write_info(info: PackInfo) -> None:
    """Writes pack.json and the model card into the pack's folder, each whole or not at all."""
    write_whole(info.folder / CARD, card.render(info))
    content = json.dumps(info.to_json(), indent=2, ensure_ascii=False) + "\n"
    write_whole(info.folder / MANIFEST, content)


def update_metrics(pack: Path, method: str, metrics: Mapping[str, Any]) -> PackInfo:
    """Writes a method's measured values into pack.json and renders the model card again.

    Args:
        pack: the pack's folder.
        method: a method of the pack.
        metrics: `split`, `command`, `hardware` and `values`, see `Metrics`; by default `seed` is
            the training configuration's.

    Returns:
        The pack's new description.

    Raises:
        PackError: the pack has no such method, or the metrics are incomplete.
    """
    info = load_info(pack, verify=False)
    if method not in info.methods:
        raise PackError(f'{pack} has no method "{method}"; it has {", ".join(info.methods)}')
    entry = info.methods[method]
    values = {"seed": entry.config.get("seed"), **metrics}
    entry = replace(entry, metrics=check(Metrics, values, f"metrics of {method}"))
    updated = replace(info, methods={**info.methods, method: entry})
    write_info(updated)
    return updated
