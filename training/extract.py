"""Caches the features of images and captions, so that trainings with them start at once.

`python -m training.extract --recipe flickr8k/vse_infty --set data=DIR --set backbone=SOURCE`
`python -m training.extract --data DIR --backbone SOURCE`

With a recipe it makes everything that the recipe's training reads: features of all copies of the
training images, of the validation images, and the token features of a frozen text encoder. Without
one it makes the features of the images of some splits. SOURCE is a run folder, a pack, a Hugging
Face folder or a Hub id (`export/encoders/`). An interrupted extraction continues where it
stopped when the command is run again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from training.data.extraction import CACHE, Extraction, skipped_rows
from training.data.features import feature_file, load_features, refuse_missing
from training.data.open_split import holds_features
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
        how = Extraction(
            options.cache, options.batch, options.workers, options.device, options.skip_damaged
        )
        source = {"data": options.data, "backbone": options.backbone}
        if options.recipe:
            changes = [f"{name}={value}" for name, value in source.items() if value]
            _extract_recipe(load_recipe(TrainConfig, options.recipe, [*options.set, *changes]), how)
            return
        if not all(source.values()):
            raise ValueError("name a --recipe, or --data and --backbone")
        config = TrainConfig(data=str(options.data), backbone=options.backbone)
        for name in options.splits.split(","):
            _extract(config, name.strip(), how)


def _extract_recipe(config: TrainConfig, how: Extraction) -> None:
    """Makes everything that a training reads."""
    check_text(config.text)  # before images take their time
    if not config.backbone_frozen:
        raise ValueError(
            "backbone_frozen is false: the image encoder is trained along, so there are no "
            "features to extract"
        )
    train = _extract(config, "train", how, config.feature_copies).first(config.train_images)
    val = _extract(config, "val", how)
    if config.text.source and config.text.frozen:
        captions = train.captions, val.captions
        build_text_side(config.text, *captions, how.cache, how.torch_device)
        print(f"token features of {sum(map(len, captions))} captions in {how.cache}")


def _extract(config: TrainConfig, name: str, how: Extraction, copies: int = 1) -> Split:
    data, backbone = Path(config.data), config.backbone
    if holds_features(data):
        raise ValueError(f"{data} holds ready-made features; there is nothing to extract")
    refuse_missing(backbone, "backbone")
    split = load_features(data, name, backbone, how, copies, config.also)
    path = feature_file(split, backbone, how)
    skipped = len(skipped_rows(path))
    note = f", {skipped} damaged images left out" if skipped else ""
    note += f", {copies} copies" if copies > 1 else ""
    print(f"{name}: {' x '.join(map(str, split.features.shape))} in {path}{note}")
    return split


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
