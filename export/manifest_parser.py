"""Reading `pack.json`: every value has its type and its range, or there is a sentence about it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from export.fields import Fields, PackError, plain_path
from export.gallery import FOLDER, INDEX
from export.manifest import (
    FORMAT,
    FileInfo,
    GallerySummary,
    ImageEncoderInfo,
    MethodInfo,
    Metrics,
    PackInfo,
    TokenizerInfo,
)
from models.preprocess import Preprocess

MAX_MANIFEST = 4 * 2**20  # bytes of pack.json
MAX_FILE = 2**31 - 1  # bytes of any other file; no ONNX file can be larger
MAX_DIM = 65_536  # width of features
MAX_TOKENS = 1024  # of one text
_NAME = re.compile(r"[a-z0-9_]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def parse_info(values: Any, folder: Path) -> PackInfo:
    """Validates what a pack.json holds, without looking at any other file.

    Args:
        values: the parsed JSON.
        folder: the pack's folder.

    Raises:
        PackError: names the first thing that is wrong.
    """
    said = Fields(values, "pack.json")
    version = said.integer("format", least=1)
    if version != FORMAT:
        raise PackError(
            f"pack.json is of format {version}; this version of Polyview reads format {FORMAT}: "
            + ("update Polyview" if version > FORMAT else "export the pack again")
        )
    said.only("format", *(f.name for f in fields(PackInfo) if f.name != "folder"))
    return PackInfo(
        folder=folder,
        name=check_name(said.text("name"), "pack.json: name"),
        title=said.text("title"),
        licence=said.text("licence"),
        credits=said.text("credits"),
        description=said.text("description"),
        preprocess=_preprocess(said.child("preprocess")),
        image_encoder=_image_encoder(said.child("image_encoder")),
        tokenizer=_tokenizer(said.child("tokenizer")),
        methods={
            check_name(name, "pack.json: methods"): _method(entry)
            for name, entry in said.child("methods").items()
        },
        files={
            plain_path(path, "pack.json: files"): _file(entry)
            for path, entry in said.child("files").items()
        },
        gallery=_gallery(said.child("gallery")) if said.has("gallery") else None,
    )


def check_name(name: str, where: str) -> str:
    """Returns `name` if it is the name of a pack or a method: lower-case letters, digits, `_`."""
    if not _NAME.fullmatch(name):
        raise PackError(
            f"{where}: {name[:64]!r} is no name; use 1 to 64 lower-case letters, digits and '_'"
        )
    return name


def parse_metrics(said: Fields) -> Metrics:
    """Reads the `metrics` of a method."""
    said.only(*Metrics.__dataclass_fields__)
    values = said.child("values")
    return Metrics(
        split=said.text("split"),
        command=said.text("command"),
        hardware=said.text("hardware"),
        seed=said.integer("seed") if said.has("seed") else None,
        values={name: values.number(name) for name in values.names()},
    )


def _preprocess(said: Fields) -> Preprocess:
    said.only(*Preprocess.__dataclass_fields__)
    values: dict[str, Any] = {
        "size": said.integer("size", least=1, most=MAX_DIM),
        "mean": said.numbers("mean", 3),
        "std": said.numbers("std", 3),
        "fit": said.text("fit"),
    }
    if said.has("resize"):
        values["resize"] = said.integer("resize", most=MAX_DIM)
    if said.has("filter"):
        values["filter"] = said.text("filter")
    try:
        return Preprocess.from_json(values)
    except ValueError as error:
        raise PackError(f"{said.where}: {error}") from error


def _image_encoder(said: Fields) -> ImageEncoderInfo:
    said.only(*ImageEncoderInfo.__dataclass_fields__)
    grid = said.sequence("grid")
    if len(grid) != 2 or any(type(size) is not int or not 1 <= size <= 1024 for size in grid):
        raise PackError(f"{said.where}: grid must be [rows, columns], each 1 to 1024, not {grid}")
    return ImageEncoderInfo(
        None if "file" in said.names() and not said.has("file") else said.path("file"),
        said.integer("dim", least=1, most=MAX_DIM),
        (grid[0], grid[1]),
        said.boolean("summary_token") if said.has("summary_token") else False,
    )


def _tokenizer(said: Fields) -> TokenizerInfo:
    said.only(*TokenizerInfo.__dataclass_fields__)
    return TokenizerInfo(said.path("file"), said.integer("max_length", least=1, most=MAX_TOKENS))


def _method(said: Fields) -> MethodInfo:
    said.only(*MethodInfo.__dataclass_fields__)
    return MethodInfo(
        arguments=said.mapping("arguments"),
        image_dim=said.integer("image_dim", least=1, most=MAX_DIM),
        text_dim=said.integer("text_dim", least=1, most=MAX_DIM),
        text_encoder=said.path("text_encoder"),
        head=said.path("head"),
        config=said.mapping("config"),
        parity=_parity(said.child("parity")),
        metrics=parse_metrics(said.child("metrics")) if said.has("metrics") else None,
        image_encoder=said.path("image_encoder") if said.has("image_encoder") else None,
    )


def _parity(said: Fields) -> dict[str, float | bool]:
    if not said.names():
        return {}
    said.only("numbers", "ranking", "fp16_numbers", "fp16_ranking")
    return {
        "numbers": said.number("numbers"),
        "ranking": said.boolean("ranking"),
        "fp16_numbers": said.number("fp16_numbers"),
        "fp16_ranking": said.number("fp16_ranking"),
    }


def _file(said: Fields) -> FileInfo:
    said.only(*FileInfo.__dataclass_fields__)
    return FileInfo(_sha256(said, "sha256"), said.integer("bytes", most=MAX_FILE))


def _gallery(said: Fields) -> GallerySummary:
    said.only(*GallerySummary.__dataclass_fields__)
    if said.path("file") != f"{FOLDER}/{INDEX}":
        raise PackError(f"{said.where}: file must be {FOLDER}/{INDEX}, not {said.path('file')}")
    return GallerySummary(
        file=said.path("file"),
        split=said.text("split"),
        images=said.integer("images", least=1),
        captions=said.integer("captions"),
        images_sha256=_sha256(said, "images_sha256"),
        images_bytes=said.integer("images_bytes"),
    )


def _sha256(said: Fields, key: str) -> str:
    value = said.text(key)
    if not _SHA256.fullmatch(value):
        raise PackError(
            f"{said.where}: {key} must be 64 lower-case hexadecimal digits, not {value!r}"
        )
    return value
