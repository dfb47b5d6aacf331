"""Puts methods of one pack into another: `python -m export.merge --help`.

For a method that was trained again, or a new one: the others keep their weights, their metrics and
their place. Both packs must have the same image encoder and tokenizer, file for file; a method with
an image encoder of its own takes it along.
"""

import argparse
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from export.build.command import refuse_freer, run_command
from export.pack.reading import list_files, load_info, write_info
from export.pack.schema import MethodInfo, PackInfo
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
        FileNotFoundError: there is no such pack.
        ValueError: the packs do not share image encoder and tokenizer, there is no such method, or
            the licence of `pack` allows what that of `source` does not.
    """
    target, origin = load_info(pack), load_info(source)
    for name in names:
        if name not in origin.methods:
            known = ", ".join(origin.methods)
            raise ValueError(f'{source} has no method "{name}"; choose one of {known}')
    moved = {name: origin.methods[name] for name in names or origin.methods}
    _refuse_unlike(target, origin, moved)
    files = {path: file for path, file in target.files.items() if not _belongs(path, moved)}
    added = {path: file for path, file in origin.files.items() if _belongs(path, moved)}
    # a text encoder that several methods share lies outside their folders
    added |= {method.text_encoder: origin.files[method.text_encoder] for method in moved.values()}
    merged = replace(target, methods={**target.methods, **moved}, files={**files, **added})
    with replacing_folder(pack) as work:
        own = [path for path in list_files(target) if not _belongs(path, moved)]
        for info, paths in ((target, own), (origin, added)):
            for path in paths:
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(info.path(path), work / path)
        write_info(replace(merged, folder=work))
        load_info(work)
    return replace(merged, folder=pack)


def _refuse_unlike(target: PackInfo, origin: PackInfo, moved: Mapping[str, MethodInfo]) -> None:
    """Methods can move only where images and texts are read as they were where they come from."""
    refuse_freer(target.licence, origin.licence, f"{origin.folder}")
    shared = any(method.image_encoder is None for method in moved.values())

    def reads(info: PackInfo) -> dict[str, object]:
        encoder = info.image_encoder
        return {
            "tokenizers": info.files.get(info.tokenizer.file),
            "image encoders": (encoder.file, info.files.get(encoder.file or "")) if shared else "",
            "image features": replace(encoder, file=None),
            "image preprocessing": info.preprocess,
        }

    theirs = reads(origin)
    for what, ours in reads(target).items():
        if ours != theirs[what]:
            raise ValueError(
                f"{origin.folder} and {target.folder} have different {what}; methods can only move "
                "between packs where they are the same"
            )


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

    def build(options: argparse.Namespace) -> PackInfo:
        return merge_methods(options.pack, options.source, options.method)

    return run_command(parser, build, argv, "merge failed")
