"""Puts methods of one pack into another: `python -m export.merge --help`.

For a method that was trained again, or a new one: the others keep their weights, their metrics and
their place. Both packs must have the same image encoder and tokenizer, file for file; a method with
an image encoder of its own takes it along.
"""

import argparse
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from export.build.provenance import refuse_freer
from export.pack.reading import list_files, load_info
from export.pack.schema import MethodInfo, PackInfo
from export.pack.writing import write_info
from models.files import replacing_folder


def merge_methods(pack: Path, source: Path, names: Sequence[str] = ()) -> PackInfo:
    """Copies methods from one pack into another; a method of the same name is replaced.

    The new pack is made whole beside the old one and then takes its place.

    Args:
        pack: the pack that is to have the methods.
        source: the pack that has them.
        names: which; all of them if none is named.

    Returns:
        The new description of `pack`.

    Raises:
        ValueError: the packs do not share image encoder and tokenizer, there is no such method, or
            the licence of `pack` allows what that of `source` does not.
    """
    into, given = load_info(pack), load_info(source)
    for name in names:
        if name not in given.methods:
            known = ", ".join(given.methods)
            raise ValueError(f'{source} has no method "{name}"; choose one of {known}')
    moved = {name: given.methods[name] for name in names or given.methods}
    _refuse_unlike(into, given, moved)
    files = {path: file for path, file in into.files.items() if not _belongs(path, moved)}
    added = {path: file for path, file in given.files.items() if _belongs(path, moved)}
    # a text encoder that several methods share lies outside their folders
    added |= {method.text_encoder: given.files[method.text_encoder] for method in moved.values()}
    merged = replace(into, methods={**into.methods, **moved}, files={**files, **added})
    with replacing_folder(pack) as work:
        own = [path for path in list_files(into) if not _belongs(path, moved)]
        for origin, paths in ((into, own), (given, added)):
            for path in paths:
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin.path(path), work / path)
        write_info(replace(merged, folder=work))
        load_info(work)
    return replace(merged, folder=pack)


def _refuse_unlike(into: PackInfo, given: PackInfo, moved: Mapping[str, MethodInfo]) -> None:
    """Methods can move only where images and texts are read as they were where they come from."""
    shared: list[str | None] = [given.tokenizer.file]
    if any(method.image_encoder is None for method in moved.values()):
        shared.append(given.image_encoder.file)
    refuse_freer(into.licence, given.licence, f"{given.folder}")
    both = f"{given.folder} and {into.folder}"
    for file in shared:
        if file is None and into.image_encoder.file is None:
            continue  # both read features that were computed elsewhere
        if file is None or into.files.get(file) != given.files[file]:
            raise ValueError(
                f"{both} have different files {file}; methods can only move between packs whose "
                "image encoder and tokenizer are the same"
            )
    if given.preprocess != into.preprocess:
        raise ValueError(f"{both} prepare images differently")
    if replace(given.image_encoder, file=None) != replace(into.image_encoder, file=None):
        raise ValueError(f"the image encoders of {both} give features of different shapes")


def _belongs(path: str, methods: Collection[str]) -> bool:
    """Whether a pack's file is one of these methods': weights, recipe or log."""
    parts = path.removeprefix("training/").split("/")
    return len(parts) > 1 and parts[0] in methods


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m export.merge", description="Put methods of one pack into another."
    )
    add = parser.add_argument
    add("--pack", type=Path, required=True, help="the pack that is to have the methods")
    add("--source", type=Path, required=True, help="the pack that has them")
    add("--method", action="append", default=[], help="which; repeat, or leave out for all")
    options = parser.parse_args(argv)
    try:
        info = merge_methods(options.pack, options.source, options.method)
    except (ValueError, OSError) as error:
        print(f"merge failed: {error}", file=sys.stderr)
        return 1
    print(f"{options.pack}: {', '.join(info.methods)}")
    return 0
