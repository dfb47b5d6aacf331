"""The pack: the unit that is trained, shipped, loaded and shared.

A folder, or a Hub repository with the same files:

    pack.json                    describes the pack, see `export/pack/schema.py`
    image_encoder.onnx           pixels (B, 3, S, S) -> features (B, N, d)
    tokenizer.json               Hugging Face `tokenizers` format
    <method>/image_encoder.onnx  the same, where the method was trained with one of its own
    <method>/text_encoder.onnx   ids (B, L), lengths (B,) -> features (B, L, d)
    <method>/head.safetensors    the heads, for `models.build`
    gallery/                     optional, see `export/pack/gallery.py` and `regions.py`
    training/                    optional: recipes and logs
    README.md                    the model card, rendered from pack.json
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from export.pack.gallery import combined_sha256, read_gallery
from export.pack.schema import CARD, FOLDER, MANIFEST, MAX_MANIFEST, PackInfo, parse_info
from export.pack.validation import PackError, read_json
from export.pack.weights import check_weights
from models.files import no_such, sha256_of


def load_info(path: Path, verify: bool = True) -> PackInfo:
    """Reads and checks a pack.

    Args:
        path: the pack's folder.
        verify: compare every SHA-256 and check the weights for NaN and foreign content; without it
            only the presence and the size of every file are checked.

    Raises:
        FileNotFoundError: there is no such folder, no pack.json in it, or a named file is missing.
        PackError: anything invalid; the message names the file and what is wrong.
    """
    info = read_info(path)
    for name in info.files:
        check_file(info, name, verify)
    if info.gallery is not None:
        _check_gallery(info, verify)
    return info


def read_info(path: Path) -> PackInfo:
    """Reads and validates pack.json without looking at the files it names; see `load_info`."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(no_such("pack folder", folder, "name a folder with a pack.json"))
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} is not a pack: it has no {MANIFEST}")
    _refuse_links_outside(folder, [MANIFEST])
    return parse_info(read_json(folder / MANIFEST, MAX_MANIFEST), folder)


def check_file(info: PackInfo, name: str, verify: bool = True) -> None:
    """Checks one of a pack's files; see `load_info`."""
    path, expected = info.path(name), info.files[name]
    if not path.is_file():
        raise FileNotFoundError(f"the pack {info.folder} lacks {name}; fetch or export it again")
    _refuse_links_outside(info.folder, [name])
    size = path.stat().st_size
    if size != expected.bytes:
        raise PackError(
            f"{path} has {size} bytes, but pack.json says {expected.bytes}; fetch the pack again"
        )
    if verify:
        if sha256_of(path) != expected.sha256:
            raise PackError(
                f"{path} is not the file whose SHA-256 pack.json says; fetch the pack again"
            )
        check_weights(path)


def list_files(info: PackInfo) -> list[str]:
    """All files of a pack, relative to its folder; other files there are not part of it.

    Raises:
        PackError: the model card is a link to outside the pack.
    """
    names = {MANIFEST, *info.files}
    if (info.folder / CARD).is_file():
        _refuse_links_outside(info.folder, [CARD])
        names.add(CARD)
    if info.gallery is not None:
        names |= {f"{FOLDER}/{file}" for file in read_gallery(info.folder / FOLDER).files}
    return sorted(names)


def _check_gallery(info: PackInfo, verify: bool) -> None:
    """Compares the gallery's size and images with what pack.json states."""
    folder, expected = info.folder, info.gallery
    assert expected is not None
    gallery = read_gallery(folder / FOLDER)
    _refuse_links_outside(folder, (f"{FOLDER}/{name}" for name in gallery.files))
    counted = (gallery.split, len(gallery.images), len(gallery.captions))
    stated = (expected.split, expected.images, expected.captions)
    if counted != stated:
        raise PackError(f"the gallery of {folder} is {counted}, but pack.json says {stated}")
    if verify and combined_sha256(gallery) != (expected.images_sha256, expected.images_bytes):
        raise PackError(
            f"the gallery images of {folder} are not those whose SHA-256 pack.json says; "
            "fetch the pack again"
        )


def _refuse_links_outside(folder: Path, names: Iterable[str]) -> None:
    """Refuses links to outside the pack; each folder is resolved once, of files only links.

    In the Hub client's cache a pack is `models--owner--name/snapshots/commit`, made of links to the
    `blobs` beside `snapshots`, which may be links to the cache's common `blobs`.
    """
    root = folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed += [parent / "blobs" for parent in root.parents[1:3]]

    @cache
    def inside(path: Path) -> bool:
        real = path.resolve()
        return any(real.is_relative_to(place) for place in allowed)

    for name in names:
        path = folder / name
        if not inside(path if path.is_symlink() else path.parent):
            raise PackError(f"{path} is a link to outside the pack; put the file itself there")
