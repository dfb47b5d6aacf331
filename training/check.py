"""Checks that a pack preprocesses inputs as its model expects: `python -m polyview check`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from polyview.export.check import PAIRS, check_preprocessing, choose_pairs
from polyview.export.hub.packs import resolve
from polyview.export.runtime import Runtime
from polyview.training.data.open_split import from_pack, open_split
from polyview.training.settings import exit_on_error


def main(argv: Sequence[str] | None = None) -> int:
    """Checks the pack named on the command line; returns 1 if a preprocessing step is wrong."""
    description = "Check that a pack preprocesses images and texts as its model expects."
    parser = argparse.ArgumentParser(prog="python -m polyview check", description=description)
    add = parser.add_argument
    add("pack", help="folder or Hub id of a pack")
    add("--method", help="a method of the pack (default: the best)")
    captions = "folder of images with captions (docs/your-data.md); default: the pack's gallery"
    add("--data", type=Path, help=captions)
    add("--split", help="split (default: val; test for a pack's own gallery)")
    add("--pairs", type=int, default=PAIRS, help=f"number of images (default: {PAIRS})")
    options = parser.parse_args(argv)
    with exit_on_error():
        pack, split = resolve(options.pack), options.split or ("val" if options.data else "test")
        runtime = Runtime.load(pack, "cpu")
        method = options.method or runtime.methods.best
        runtime.methods.require_single(method)
        data = open_split(options.data, split) if options.data else from_pack(pack, split)
        if data.frames > 1:
            raise ValueError(f"{data.folder} holds clips; a check needs still images")
        pairs = choose_pairs(data.image_of.tolist(), options.pairs)
        images = [data.images[row] for row in pairs]
        texts = [data.captions[row] for row in pairs.values()]
        rows = check_preprocessing(runtime, method, images, texts)
    print(f"{len(images)} pairs of {data.folder}, {method}; gain in standard deviations of scores")
    for row in rows:
        verdict = "right; the best alternative is" if row.right else "WRONG: the model expects"
        verdict = verdict if row.error else "right; no different from"
        print(f"  {row.step:26} {row.gain:+.3f} +- {row.error:.3f}  {verdict}: {row.way}")
    if not rows[0].right:
        print(f"fix the {rows[0].step} first: {rows[0].way}")
    return int(not rows[0].right)
