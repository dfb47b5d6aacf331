"""Reads, checks and writes packs.

A pack is a folder, or a Hub repository with the same files:

    pack.json                    describes the pack, see `export/pack/schema.py`
    image_encoder.onnx           pixels (B, 3, S, S) -> features (B, N, d)
    tokenizer.json               Hugging Face `tokenizers` format
    <method>/image_encoder.onnx  the same, if the method has its own image encoder
    <method>/text_encoder.onnx   ids (B, L), lengths (B,) -> features (B, L, d)
    <method>/head.safetensors    weights of the image and text heads
    gallery/                     optional, see `export/pack/gallery.py`
    training/                    optional: recipes and logs
    README.md                    the model card, rendered from pack.json
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from huggingface_hub import ModelCard, ModelCardData

from polyview.export.pack import schema
from polyview.export.pack.gallery import GalleryInfo, load_gallery
from polyview.export.pack.schema import CARD, FOLDER, MANIFEST, FileInfo, GallerySummary, PackInfo
from polyview.export.pack.validation import PackError, check, read_json
from polyview.models import METHODS
from polyview.models.checkpoint import load_tensors
from polyview.models.files import atomic_write, not_found_error, sha256_of

TAG = "polyview"  # marks packs on the Hub
# The Hub's identifiers of licences: SPDX identifiers in lower case.
_HUB_LICENCES = """
    apache-2.0 mit bsd-2-clause bsd-3-clause isc unlicense mpl-2.0 gpl-2.0 gpl-3.0 lgpl-3.0 agpl-3.0
    openrail cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0
    cc-by-nd-4.0 cc-by-nc-nd-4.0
"""


def load_info(path: Path, verify: bool = True) -> PackInfo:
    """Reads and checks a pack.

    With `verify`, compares every SHA-256 and checks the weights (`check_weights`); otherwise checks
    only that every file exists and has the stated size. Raises FileNotFoundError if the folder or
    one of its files does not exist, PackError if the pack is invalid.
    """
    info = read_info(path)
    for name in info.files:
        check_file(info, name, verify)
    if (summary := info.gallery) is not None:
        gallery = load_gallery(info.folder)
        _refuse_links_outside(info.folder, (f"{FOLDER}/{name}" for name in gallery.files))
        images = None if verify else (summary.images_sha256, summary.images_bytes)
        if summarize_gallery(gallery, images) != summary:
            counts = f"{summary.images} images and {summary.captions} captions"
            fault = f"the gallery of {info.folder} is not the one that pack.json describes"
            details = f"with {counts} of the split {summary.split}, and their SHA-256"
            raise PackError(f"{fault}, {details}; fetch the pack again")
    return info


def read_info(path: Path) -> PackInfo:
    """Reads and validates pack.json only; see `load_info`."""
    folder = Path(path)
    if not folder.is_dir():
        raise not_found_error("pack folder", folder, "name a folder with a pack.json")
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} is not a pack: it has no {MANIFEST}")
    _refuse_links_outside(folder, [MANIFEST])
    return schema.parse_info(read_json(folder / MANIFEST, schema.MAX_MANIFEST), folder)


def check_file(info: PackInfo, name: str, verify: bool = True) -> None:
    """Checks one file of a pack; see `load_info`."""
    path, expected = info.folder / name, info.files[name]
    if not path.is_file():
        raise FileNotFoundError(f"the pack {info.folder} lacks {name}; fetch or export it again")
    _refuse_links_outside(info.folder, [name])
    if (size := path.stat().st_size) != expected.bytes:
        fault = f"has {size} bytes, but pack.json says {expected.bytes}"
        raise PackError(f"{path} {fault}; fetch the pack again")
    if verify:
        if sha256_of(path) != expected.sha256:
            raise PackError(f"{path} does not match its SHA-256 in pack.json; fetch the pack again")
        check_weights(path)


def list_files(info: PackInfo, check_gallery: bool = True) -> list[str]:
    """Lists all files of a pack; `check_gallery` raises FileNotFoundError for missing images."""
    names = {MANIFEST, *info.files}
    if (info.folder / CARD).is_file():
        _refuse_links_outside(info.folder, [CARD])
        names.add(CARD)
    if info.gallery is not None:
        names |= {f"{FOLDER}/{file}" for file in load_gallery(info.folder, check_gallery).files}
    return sorted(names)


def describe_file(path: Path) -> FileInfo:
    """Returns pack.json's entry for a file."""
    return FileInfo(sha256_of(path), path.stat().st_size)


def summarize_gallery(
    gallery: GalleryInfo, digest_and_bytes: tuple[str, int] | None = None
) -> GallerySummary:
    """Returns a gallery's entry in pack.json; the SHA-256 and size are computed if None."""
    if digest_and_bytes is None:
        digest, total = hashlib.sha256(), 0
        for file in gallery.files:
            digest.update(f"{file} {sha256_of(gallery.folder / file)}\n".encode())
            total += (gallery.folder / file).stat().st_size
        digest_and_bytes = digest.hexdigest(), total
    counts = len(gallery.images), len(gallery.captions)
    return GallerySummary("gallery/gallery.json", gallery.split, *counts, *digest_and_bytes)


def write_info(info: PackInfo) -> None:
    """Writes pack.json and the model card into the pack's folder, each atomically."""
    atomic_write(info.folder / CARD, render_card(info))
    content = json.dumps(info.to_json(), indent=2, ensure_ascii=False) + "\n"
    atomic_write(info.folder / MANIFEST, content)


def render_card(info: PackInfo) -> str:
    """Returns the model card: Markdown with the Hub's front matter, licence and tags."""
    measured = {name: m.metrics for name, m in info.methods.items() if m.metrics is not None}
    methods = dict.fromkeys(entry.method or name for name, entry in info.methods.items())
    licence = info.licence.lower()
    is_hub_licence = licence in _HUB_LICENCES.split()
    # for a licence that the Hub does not list; the text of the card has the licence's full name
    identifier = re.sub(r"[^a-z0-9.]+", "-", licence).strip("-") or "unknown"
    front = ModelCardData(
        language="en",
        library_name="polyview",
        license=licence if is_hub_licence else "other",
        license_name=None if is_hub_licence else identifier,
        pipeline_tag="feature-extraction",
        tags=[TAG, "image-text-retrieval", "visual-semantic-embedding", "onnx", *methods],
    )
    template = str(Path(__file__).with_name("card.md"))
    values: dict[str, Any] = {"info": info, "known": METHODS, "measured": measured}
    return f"{ModelCard.from_template(front, template, **values)}\n"


def update_metrics(pack: Path, method: str, metrics: Mapping[str, Any]) -> PackInfo:
    """Writes the metrics of a method into pack.json, and renders the model card again.

    `metrics` has the fields of `Metrics`; `seed` defaults to that of the training. Returns the new
    content of pack.json. Raises PackError for an unknown method, or if a field is not valid.
    """
    info = load_info(pack, verify=False)
    if method not in info.methods:
        raise PackError(f'{pack} has no method "{method}"; it has {", ".join(info.methods)}')
    entry = info.methods[method]
    values = {"seed": entry.config.get("seed"), **metrics}
    entry = replace(entry, metrics=check(schema.Metrics, values, f"metrics of {method}"))
    info = replace(info, methods={**info.methods, method: entry})
    write_info(info)
    return info


def _refuse_links_outside(folder: Path, names: Iterable[str]) -> None:
    """Raises PackError for a link to a file outside the pack, except inside the Hub's cache."""
    root = folder.resolve()
    allowed = [root]
    # In the Hub's cache, a pack is `models--owner--name/snapshots/commit`, with links to files in
    # `models--owner--name/blobs`, which may be links to files in `blobs` in the root of the cache.
    if root.parent.name == "snapshots":
        allowed += [parent / "blobs" for parent in root.parents[1:3]]
    for path in (folder / name for name in names):
        real = path.resolve()
        if not any(real.is_relative_to(base) for base in allowed):
            raise PackError(f"{path} is a link to outside the pack; put the file itself there")


def check_weights(path: Path) -> None:
    """Checks an ONNX or safetensors file; ignores other files.

    Raises PackError if the file is not readable, a safetensors file has NaN or infinity, or an ONNX
    file has operators outside ONNX's own domain, or tensors in a second file.
    """
    if path.suffix == ".safetensors":
        try:
            load_tensors(path)
        except (ValueError, RecursionError) as error:
            raise PackError(str(error)) from error
    if path.suffix != ".onnx":
        return
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # onnx does not export protobuf's error classes
        raise PackError(f"{path} is not a readable ONNX file: {error}") from error
    for item in _submessages(model):
        # the two names of ONNX's default domain
        if isinstance(item, onnx.NodeProto) and item.domain not in ("", "ai.onnx"):
            operator = f"{item.op_type!s:.60} of the domain {item.domain!s:.60}"
            advice = "export it again with ONNX's own operators only"
            raise PackError(f"{path} uses the operator {operator}; {advice}")
        if isinstance(item, onnx.TensorProto) and (item.data_location or item.external_data):
            advice = "export it again, with all weights inside"
            raise PackError(f"{path}: tensor {item.name!s:.60} is in another file; {advice}")


def _submessages(message: Any) -> Iterator[Any]:
    """Yields a protobuf message and all messages inside it, at any depth."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "extend") else (value,):
                yield from _submessages(inner)
