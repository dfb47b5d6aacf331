"""The pack: the unit that is trained, shipped, loaded and shared.

A folder, or a Hub repository with the same files:

    pack.json                    says what there is, see `export/pack/schema.py`
    image_encoder.onnx           pixels (B, 3, S, S) -> features (B, N, d)
    tokenizer.json               Hugging Face `tokenizers` format
    <method>/image_encoder.onnx  the same, where the method was trained with one of its own
    <method>/text_encoder.onnx   ids (B, L), lengths (B,) -> features (B, L, d)
    <method>/head.safetensors    the heads, for `models.build`
    gallery/                     optional, see `export/pack/gallery.py` and `regions.py`
    training/                    optional: recipes and logs
    README.md                    the model card, rendered from pack.json

Packs that lie side by side may share a file, see `export.pack.schema.PackInfo.path`.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from export.pack.gallery import combined_sha256, read_gallery
from export.pack.schema import (
    CARD,
    FOLDER,
    MANIFEST,
    MAX_MANIFEST,
    FileInfo,
    GallerySummary,
    PackInfo,
    parse_info,
)
from export.pack.validation import PackError, read_json
from export.pack.weights import check_weights
from models.files import sha256_of


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
    info = read_info(path)
    for name, expected in info.files.items():
        _check_file(info, name, expected, verify)
    if info.gallery is not None:
        _check_gallery(info.folder, info.gallery, verify)
    return info


def read_info(path: Path) -> PackInfo:
    """Reads what pack.json says, without a look at the files that it names; see `load_info`."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no pack folder {folder}")
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} is not a pack: it has no {MANIFEST}")
    _refuse_leaving(folder, [MANIFEST])
    return parse_info(read_json(folder / MANIFEST, MAX_MANIFEST), folder)


def check_file(info: PackInfo, name: str) -> None:
    """Checks one of a pack's files, as `load_info` does with all of them; errors are the same."""
    _check_file(info, name, info.files[name], verify=True)


def list_files(info: PackInfo) -> list[str]:
    """All files of a pack, for `PackInfo.path`; what else lies in its folder is not part of it.

    Raises:
        PackError: the model card is a link to outside the pack.
    """
    names = [MANIFEST, *info.files]
    if (info.folder / CARD).is_file():
        _refuse_leaving(info.folder, [CARD])
        names.append(CARD)
    if info.gallery is not None:
        names += [f"{FOLDER}/{file}" for file in read_gallery(info.folder / FOLDER).files]
    return sorted(set(names))


def _check_file(info: PackInfo, name: str, expected: FileInfo, verify: bool) -> None:
    path = info.path(name)
    if not path.is_file():
        raise FileNotFoundError(f"the pack {info.folder} lacks {name}; fetch or export it again")
    _refuse_leaving(info.folder if path == info.folder / name else path.parent, [path.name])
    size = path.stat().st_size
    if size != expected.bytes:
        raise PackError(
            f"{path} has {size} bytes, but pack.json says {expected.bytes}; fetch the pack again"
        )
    if not verify:
        return
    if sha256_of(path) != expected.sha256:
        raise PackError(
            f"{path} is not the file whose SHA-256 pack.json says; fetch the pack again"
        )
    check_weights(path)


def _check_gallery(folder: Path, expected: GallerySummary, verify: bool) -> None:
    gallery = read_gallery(folder / FOLDER)
    _refuse_leaving(folder, [f"{FOLDER}/{name}" for name in gallery.files])
    found = (gallery.split, len(gallery.images), len(gallery.captions))
    stated = (expected.split, expected.images, expected.captions)
    if found != stated:
        raise PackError(f"the gallery of {folder} is {found}, but pack.json says {stated}")
    if verify and combined_sha256(gallery) != (expected.images_sha256, expected.images_bytes):
        raise PackError(
            f"the gallery images of {folder} are not those whose SHA-256 pack.json says; "
            "fetch the pack again"
        )


def _refuse_leaving(folder: Path, names: Sequence[str]) -> None:
    """Refuses links to outside the pack; each folder is resolved once, of files only links are.

    In the Hub client's cache a pack is `models--owner--name/snapshots/commit`, made of links to the
    `blobs` beside `snapshots`, which may be links to the cache's common `blobs`.
    """
    root = folder.resolve()
    homes = [root]
    if root.parent.name == "snapshots":
        homes += [home / "blobs" for home in root.parents[1:3]]

    @cache
    def inside(path: Path) -> bool:
        real = path.resolve()
        return any(real.is_relative_to(home) for home in homes)

    for name in names:
        path = folder / name
        if not inside(path if path.is_symlink() else path.parent):
            raise PackError(f"{path} is a link to outside the pack; put the file itself there")
