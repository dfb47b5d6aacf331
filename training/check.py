"""Checks that a pack preprocesses inputs as its model expects: `python -m polyview check`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from polyview.export.check import COUNT, check_preprocessing, choose_pairs
from polyview.export.hub.packs import resolve
from polyview.export.runtime import Runtime
from polyview.training.data.open_split import open_pack_gallery, open_split
from polyview.training.settings import exit_on_error


def main(argv: Sequence[str] | None = None) -> int:
    """Checks the pack named on the command line; returns 1 if a preprocessing step is wrong."""
    description = "Check that a pack preprocesses images and texts as its model expects."
    parser = argparse.ArgumentParser(prog="python -m polyview check", description=description)
    add = parser.add_argument
    add("pack", help="folder or Hub id of a pack")
    add("--method", help="a method of the pack (default: the best)")
    help_text = "folder of images with captions (docs/your-data.md); default: the pack's gallery"
    add("--data", type=Path, help=help_text)
    add("--split", help="split to read (default: val; test for a pack's own gallery)")
    add("--pairs", type=int, default=COUNT, help=f"pairs to check (default: {COUNT})")
    options = parser.parse_args(argv)
    with exit_on_error():
        pack, split = resolve(options.pack), options.split or ("val" if options.data else "test")
        runtime = Runtime.load(pack, "cpu")
        method = options.method or runtime.methods.best
        runtime.methods.require_single(method)
        data = open_split(options.data, split) if options.data else open_pack_gallery(pack, split)
        if data.frames > 1:
            raise ValueError(f"{data.folder} holds clips; a check needs still images")
        pairs = choose_pairs(data.image_of.tolist(), options.pairs)
        images = [data.images[row] for row in pairs]
        texts = [data.captions[row] for row in pairs.values()]
        verdicts = check_preprocessing(runtime, method, images, texts)
    print(f"{len(images)} pairs of {data.folder}, {method}; gain in standard deviations of scores")
    for entry in verdicts:
        text = "right; the best alternative is" if entry.right else "WRONG: the model expects"
        if not entry.error:
            text = "right; the scores are the same with"
        print(f"  {entry.step:26} {entry.gain:+.3f} +- {entry.error:.3f}  {text}: {entry.way}")
    if not verdicts[0].right:
        print(f"fix the {verdicts[0].step} first: {verdicts[0].way}")
    return int(not verdicts[0].right)
