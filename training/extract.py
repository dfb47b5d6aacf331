"""Makes what trainings keep of images and captions once, so that every training can start at once.

`python -m training.extract --recipe flickr8k/vse_infty --set data=DIR --set backbone=SOURCE`
`python -m training.extract --data DIR --backbone SOURCE`

With a recipe it is all that the recipe's training reads: every look at the training images, the
validation images, and the token features of a text encoder that is frozen. Without one it is one
look at the images of some splits. DIR holds photographs with captions
(`training/data/photographs.py`), or rendered scenes; SOURCE is a run folder, a pack, a Hugging Face
folder or a Hub id (`export/hub/sources.py`). An extraction that was interrupted goes on where it
was when the command is run again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from training.data.extraction import CACHE, skipped_rows
from training.data.features import Extraction, feature_file, read_features, refuse_missing
from training.data.open_split import open_split, open_training
from training.data.split import Split
from training.data.texts import build_text_side, check_text
from training.loop.command import refusals_end
from training.loop.config import TrainConfig, load_recipe


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and makes what is missing."""
    options = _parser().parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    with refusals_end():
        extraction = Extraction(
            options.cache, options.batch, options.workers, options.device, options.skip_damaged
        )
        if options.recipe:
            _extract_recipe(_config(options), extraction)
            return
        if not (options.data and options.backbone):
            raise ValueError("name a --recipe, or --data and --backbone")
        for name in options.splits.split(","):
            split = open_split(options.data, name.strip())
            _extract(split, options.backbone, extraction)


def _config(options: argparse.Namespace) -> TrainConfig:
    given = {"data": options.data, "backbone": options.backbone}
    named = [f"{name}={value}" for name, value in given.items() if value]
    return load_recipe(TrainConfig, options.recipe, [*options.set, *named])


def _extract_recipe(config: TrainConfig, extraction: Extraction) -> None:
    """Makes all that a training reads; texts are looked at before images take their time."""
    check_text(config.text)
    if not config.backbone_frozen:
        raise ValueError(
            "backbone_frozen is false: the image encoder is trained along, so there are no "
            "features to extract"
        )
    data = Path(config.data)
    train, val = open_training(data, config.also), open_split(data, "val")
    train = _extract(train, config.backbone, extraction, config.feature_copies)
    val = _extract(val, config.backbone, extraction)
    if config.text.source and config.text.frozen:
        captions = train.first(config.train_images).captions, val.captions
        device = extraction.torch_device
        build_text_side(config.text, *captions, extraction.cache, device)
        print(f"token features of {sum(map(len, captions))} captions in {extraction.cache}")


def _extract(split: Split, backbone: str, extraction: Extraction, copies: int = 1) -> Split:
    began = time.perf_counter()
    refuse_missing(backbone, "backbone")
    made = read_features(split, backbone, extraction, copies)
    if len(split.features):
        folder = split.folder.parent
        raise ValueError(f"{folder} holds ready-made features; there is nothing to extract")
    path = feature_file(split, backbone, extraction)
    seconds = time.perf_counter() - began
    count, cells, width = made.features.shape
    left_out = len(skipped_rows(path))
    note = f", {left_out} damaged images left out" if left_out else ""
    looks = f", {copies} looks" if copies > 1 else ""
    name = split.folder.name
    print(f"{name}: {count} x {cells} x {width} in {path}{looks}, {seconds:.0f} s{note}")
    return made


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.extract", description="Cache the features of an image encoder."
    )
    add = parser.add_argument
    add("--recipe", help="make all that the training of this recipe reads")
    what = "replace a setting of the recipe"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    add("--data", type=Path, help="folder of photographs with captions, or scenes")
    add("--backbone", help="run folder, Hugging Face folder or Hub id")
    what = f"folder that the features of photographs go into; {CACHE} without it"
    add("--cache", type=Path, default=CACHE, help=what)
    what = "which splits, with commas, where no recipe says it; train,val without it"
    add("--splits", default="train,val", help=what)
    add("--batch", type=int, default=32, help="images in a batch")
    add("--workers", type=int, default=0, help="threads that decode; 0: one for each processor")
    add("--threads", type=int, default=0, help="CPU threads of the encoder; 0 leaves it to torch")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--skip-damaged", action="store_true", help="leave out images that cannot be read")
    return parser


if __name__ == "__main__":
    main()
